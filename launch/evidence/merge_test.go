package evidence

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
)

func seen() []Node {
	wait := []Stack{{
		Thread: "1",
		Frames: []Frame{{Func: "main", File: "/u/t.py", Line: 3}, {Func: "all_reduce", File: "/x/torch/d.py", Line: 8}},
	}}
	odd := []Stack{{Thread: "1", Frames: []Frame{
		{Func: "main", File: "/u/t.py", Line: 3},
		{Func: `<script>alert("&")</script>` + "\x1b[2J\n;", File: `/u/"><g onload='x'>.py`, Line: 9},
	}}}
	n := Node{Node: "a"}
	for rank := range 8 {
		s := wait
		if rank == 3 || rank == 4 {
			s = odd
		}
		n.Ranks = append(n.Ranks, Rank{Rank: rank, Processes: []Process{{PID: 10 + rank, State: "S", Name: "python", Stacks: s}}})
	}
	n.Ranks = append(n.Ranks, Rank{Rank: 8, Processes: []Process{{PID: 20, State: "D", Name: "cat", Threads: []Thread{
		{TID: 20, State: "D", Syscall: "read", Kernel: []string{"folio_wait", "read_file"}},
	}}}})
	return []Node{n}
}

// Equal stacks are one, and those of the fewest ranks come first.
func TestMerge(t *testing.T) {
	groups := Merge(seen(), false)
	if len(groups) != 3 || Fold(groups[0].Ranks) != "3-4" || Fold(groups[1].Ranks) != "0-2/5-7" || groups[2].Thread != "process cat" {
		t.Fatalf("%+v", groups)
	}
	var text bytes.Buffer
	if err := WriteText(&text, groups); err != nil {
		t.Fatal(err)
	}
	if s := text.String(); strings.ContainsRune(s, '\x1b') ||
		!strings.Contains(s, "ranks 0-2/5-7, main thread:\n    all_reduce (/x/torch/d.py:8)\n    main (/u/t.py:3)\n") ||
		!strings.Contains(s, "    folio_wait\n    read_file\n    read\n    state D\n") {
		t.Errorf("%s", s)
	}
}

// Folded stacks have the ranks that are in a frame, and those that are not.
func TestFolded(t *testing.T) {
	var text bytes.Buffer
	if err := WriteFolded(&text, Merge(seen(), false)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != 3 || lines[1] != "main_thread@0-7|8;main@/u/t.py:3@0-7|8;all_reduce@/x/torch/d.py:8@0-2/5-7|3-4/8 6" {
		t.Errorf("%q", lines)
	}
}

// A picture is well-formed whatever functions and files are called, and has nothing in it that runs.
func TestSVG(t *testing.T) {
	var text bytes.Buffer
	if err := WriteSVG(&text, `job </text><script>1</script>`, Merge(seen(), true)); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for d := xml.NewDecoder(&text); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e, is := token.(xml.StartElement); is {
			names[e.Name.Local]++
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("%s has %s", e.Name.Local, a.Name.Local)
				}
			}
		}
	}
	if names["svg"] != 1 || names["g"] < 8 || names["title"] != names["g"] || len(names) != 5 {
		t.Errorf("%v", names)
	}
}

// The odd one of a thousand ranks can be seen and read, and a long title is in lines.
func TestSVGOfManyRanks(t *testing.T) {
	n := Node{Node: "a"}
	for rank := range 1000 {
		frames := []Frame{{Func: "main", File: "/u/t.py", Line: 3}, {Func: "all_reduce", File: "/x/torch/d.py", Line: 8}}
		if rank == 613 {
			frames[1] = Frame{Func: "load_from_shared_files", File: "/u/data.py", Line: 17}
			frames = append(frames, Frame{Func: "get", File: "/u/q.py", Line: 1})
		}
		stacks := []Stack{{Frames: frames}}
		for i := range 20 { // that make the picture wide
			stacks = append(stacks, Stack{Thread: strconv.Itoa(i), Frames: []Frame{{Func: "poll", File: "/u/t.py", Line: 20 + i}}})
		}
		n.Ranks = append(n.Ranks, Rank{Rank: rank, Processes: []Process{{State: "S", Name: "python", Stacks: stacks}}})
	}
	var text bytes.Buffer
	if err := WriteSVG(&text, strings.Repeat("all ranks wait for rank 613 ", 20), Merge([]Node{n}, false)); err != nil {
		t.Fatal(err)
	}
	widths := regexp.MustCompile(`<title>(?:load_|get@)[^<]*</title><rect x="([0-9.]+)" y="[0-9]+" width="([0-9.]+)"`)
	if w := widths.FindAllStringSubmatch(text.String(), -1); len(w) != 2 || !slices.Equal(w[0][1:], w[1][1:]) {
		t.Errorf("what all ranks of a frame do is not as wide as it: %q", w)
	}
	if svg := text.String(); strings.Count(svg, `font-size="15"`) != 4 ||
		!strings.Contains(svg, ">load_from_shared_files data.py:17 [613]</text>") ||
		!strings.Contains(svg, "<title>load_from_shared_files@/u/data.py:17@613|0-612/614-999</title>") ||
		!strings.Contains(svg, ">main thread [0-999]<") {
		t.Error(svg)
	}
}

// Frames below one that are too many to be drawn are counted.
func TestSVGOfManyStacks(t *testing.T) {
	n := Node{Node: "a"}
	for rank := range 150 {
		frames := []Frame{{Func: "main", File: "/u/t.py", Line: 3}, {Func: "load", File: "/u/data.py", Line: 100 + rank}}
		n.Ranks = append(n.Ranks, Rank{Rank: rank, Processes: []Process{{State: "S", Name: "python", Stacks: []Stack{{Frames: frames}}}}})
	}
	var text bytes.Buffer
	if err := WriteSVG(&text, "", Merge([]Node{n}, false)); err != nil {
		t.Fatal(err)
	}
	if svg := text.String(); strings.Count(svg, "<title>load@") != mostBeside || !strings.Contains(svg, ">50 more</text>") {
		t.Error(svg)
	}
}

// pprof reads what is written for it.
func TestPprof(t *testing.T) {
	testutil.Long(t)
	path := filepath.Join(t.TempDir(), "stacks.pb.gz")
	var b bytes.Buffer
	if err := writePprof(&b, time.Unix(1700000000, 0), Merge(seen(), false)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-raw", path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"ranks/count", "ranks:[0-2/5-7] thread:[main thread]", "all_reduce /x/torch/d.py:8", "2023-11-14"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// Lists of numbers are as short as they can be.
func TestFold(t *testing.T) {
	for want, list := range map[string][]int{"": nil, "3": {3}, "0-3": {3, 2, 1, 0, 0}, "0/2/4-5": {5, 4, 0, 2}} {
		if got := Fold(list); got != want {
			t.Errorf("%v: %q, want %q", list, got, want)
		}
	}
}

// TestFormOf: the end of a file's name says in which form it is, and no other name does.
func TestFormOf(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]bool{
		".txt": true, "a/b.svg": true, "x.pb.gz": true, "x.folded": true, "x.gz": false, "svg": false,
		"": false,
	} {
		form := FormOf(file)
		if (form != nil) != want {
			t.Errorf("%q: a form is %v, want %v", file, form != nil, want)
		}
		if form != nil {
			if err := form(io.Discard, "title", time.Unix(0, 0), Merge(seen(), false)); err != nil {
				t.Errorf("%q: %v", file, err)
			}
		}
	}
}
