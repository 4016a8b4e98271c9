package report_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
	"muster/netcheck"
	"muster/netcheck/report"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", path, diff)
	}
}

func TestGolden(t *testing.T) {
	for name, r := range records() {
		t.Run(name, func(t *testing.T) {
			golden(t, name+".txt", report.Text(r))
			svg := report.SVG(r)
			wellFormed(t, svg)
			golden(t, name+".svg", string(svg))
			for range 3 {
				if again := report.SVG(r); string(again) != string(svg) {
					t.Fatal("the same record has another picture")
				}
			}
		})
	}
	text, err := report.JSON(faulty())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "faulty.json", string(text))
	golden(t, filepath.Join(docs, "network-check.svg"), string(report.SVG(faulty())))
}

// docs is where the example is shown to users.
var docs = filepath.Join("..", "..", "..", "docs")

func TestExampleInDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("testdata", docs, "network-check.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "```text\n" + report.Text(faulty()) + "```\n"; !strings.Contains(string(page), want) {
		t.Errorf("the section \"The report\" shows another text than\n%s", want)
	}
}

// wellFormed reads a picture to its end, and returns the names of its elements and all its text.
func wellFormed(t *testing.T, svg []byte) (elements map[string]int, text string) {
	t.Helper()
	elements = map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements, text
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			elements[token.Name.Local]++
		case xml.CharData:
			text += string(token)
		}
	}
}

func TestEveryPairHasACell(t *testing.T) {
	for _, n := range []int{2, 12, 13, 32, 33, 64} {
		r := many(n)
		svg := string(report.SVG(r))
		elements, _ := wellFormed(t, []byte(svg))
		const legend = 7 // and the ground
		tested := elements["rect"] - legend - 2 - 1
		cells := strings.SplitN(svg, `class="none" d="`, 2)
		untested := 0
		if len(cells) == 2 {
			untested = strings.Count(cells[1][:strings.Index(cells[1], `"`)], "M")
		}
		if tested != len(r.Links) || tested+untested != n*(n-1)/2 {
			t.Errorf("%d nodes: %d cells of tested links, %d of others; %d were tested", n, tested, untested, len(r.Links))
		}
	}
	elements, text := wellFormed(t, report.SVG(many(65)))
	if elements["path"] != 0 || !strings.Contains(text, "too many to be drawn") {
		t.Errorf("65 nodes are drawn:\n%s", text)
	}
}

func TestShades(t *testing.T) {
	for _, c := range []struct {
		speed float64
		want  string
	}{{1.4, "░"}, {1, "░"}, {0.9, "░"}, {0.896, "░"}, {0.894, "▒"}, {0.7, "▒"}, {0.694, "▓"}, {0.5, "▓"}, {0.494, "█"}, {0.001, "█"}} {
		for _, bandwidth := range []bool{true, false} {
			r := clean(6)
			r.Links = nil
			for b := range 6 {
				for a := range b {
					r.Links = append(r.Links, tested(a, b, 1))
				}
			}
			r.Links[14] = tested(4, 5, c.speed)
			if !bandwidth {
				for i := range r.Links {
					r.Links[i].Best.BusBW = 0
				}
			}
			line := regexp.MustCompile(`(?m)^n5  5 .*$`).FindString(report.Text(r))
			if !strings.HasSuffix(line, "░░ "+c.want+c.want) {
				t.Errorf("speed %v, by bandwidth %v: %q", c.speed, bandwidth, line)
			}
		}
	}
}

// hostile is what may come from the network.
var hostile = []string{
	"\x1b[2J\x1b]0;title\a", "a\r\nroot:x", "<script>alert('1')</script>", `"&amp;]]>`, "\xff\xfe\x00", "a\u202eb\u200bc\u0085",
	strings.Repeat("x", 1<<16), strings.Repeat("\U0010ffff", 5000), "", "\uffff\ufffe", "名前", "{{.}}%s%d%!",
}

func TestHostileText(t *testing.T) {
	for _, text := range hostile {
		r := faulty()
		r.Fake, r.PerfErr = text, text
		for i := range r.Nodes {
			n := &r.Nodes[i]
			n.Node, n.Reason, n.Status = text, text, netcheck.Status(text)
			if n.Fault != nil {
				n.Fault = &netcheck.Fault{Reason: text}
			}
		}
		for i := range r.Links {
			r.Links[i].Err, r.Links[i].Best.Device = text, text
		}
		for i := range r.Stragglers {
			r.Stragglers[i].Resource = text
		}
		r.Undecided = []string{text, text}
		r.Perf[0].Device = text
		svg := report.SVG(r)
		elements, inside := wellFormed(t, svg)
		for name := range elements {
			if !strings.Contains(" svg title style rect g path text tspan ", " "+name+" ") {
				t.Errorf("%.20q became an element %q", text, name)
			}
		}
		r.Nodes[1].Unable = text
		for _, shown := range []string{report.Text(r), inside, string(report.SVG(r))} {
			if !utf8.ValidString(shown) {
				t.Errorf("%.20q is shown as invalid UTF-8", text)
			}
			if i := strings.IndexFunc(shown, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
				t.Errorf("%.20q is shown with %.20q", text, shown[i:])
			}
			if len(shown) > 100_000 {
				t.Errorf("%.20q is shown in %d bytes", text, len(shown))
			}
		}
		if _, err := report.JSON(r); err != nil {
			t.Error(err)
		}
	}
}

func TestLongNamesDiffer(t *testing.T) {
	r := clean(2)
	for i := range r.Nodes {
		r.Nodes[i].Node = fmt.Sprintf("job-%s-worker-%d", strings.Repeat("long", 30), i)
	}
	text := report.Text(r)
	for _, want := range []string{"job-longlong", "-worker-0 ", "-worker-1 "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

// A leader of another version, or one that was made up, may say anything that JSON can.
func TestSenselessRecords(t *testing.T) {
	odd := clean(3)
	for _, l := range [][2]int{{-1, 0}, {0, 3}, {1, 1}, {2, 0}, {0, 2}, {math.MaxInt, math.MinInt}} {
		odd.Links = append(odd.Links, netcheck.LinkRecord{
			A: l[0], B: l[1], Passed: math.MaxInt, Failed: -1,
			Best: netcheck.Timing{Took: math.MinInt64, Bytes: -5, BusBW: -1},
		})
	}
	odd.Links = append(odd.Links, netcheck.LinkRecord{A: 1, B: 2})
	odd.Stragglers = []netcheck.StragglerRecord{{Node: -1}, {Node: 3}, {Node: 1, Took: math.MaxInt64}}
	odd.Rounds, odd.Untested, odd.Took = -1, -7, math.MinInt64
	odd.Perf = []netcheck.Timing{{}, {Bytes: math.MaxInt64, Took: -1, AlgBW: math.MaxFloat64}}
	tiny := clean(3)
	for i := range tiny.Links {
		tiny.Links[i].Best.BusBW = 5e-324
	}
	for name, r := range map[string]*netcheck.Record{
		"empty": {}, "odd": odd, "tiny": tiny,
		"no links": {Nodes: make([]netcheck.NodeRecord, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			if text := report.Text(r); !strings.HasSuffix(text, "\n") {
				t.Errorf("the text is %q", text)
			}
			wellFormed(t, report.SVG(r))
			if _, err := report.JSON(r); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	r := faulty()
	text, err := report.JSON(r)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Version int
		netcheck.Record
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, back.Record); diff != "" || back.Version != report.Version {
		t.Errorf("version %d, record (-want +got):\n%s", back.Version, diff)
	}
	r.Links[0].Best.AlgBW = math.NaN()
	if _, err := report.JSON(r); err == nil || !strings.Contains(err.Error(), "cannot encode the network check") {
		t.Errorf("NaN: %v", err)
	}
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "reports")
	for range 2 { // the second time the files are replaced
		paths, err := report.Write(dir, 3, faulty())
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Join(dir, "network-check-3.")
		if diff := cmp.Diff([]string{base + "txt", base + "svg", base + "json"}, paths); diff != "" {
			t.Error(diff)
		}
	}
	strange := clean(1)
	strange.Nodes[0].Node = "../a node/é"
	aside := t.TempDir()
	if paths, err := report.WriteDoor(aside, 4, strange); err != nil || len(paths) != 3 ||
		paths[0] != filepath.Join(aside, "network-check-4-door-.._a_node__.txt") {
		t.Errorf("%q, %v", paths, err)
	}
	if _, err := report.Write(dir, 4, clean(1)); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 6 {
		t.Errorf("%d files, %v: %v", len(entries), err, entries)
	}
	for file, want := range map[string]string{"txt": report.Text(faulty()), "svg": string(report.SVG(faulty()))} {
		if got, err := os.ReadFile(filepath.Join(dir, "network-check-3."+file)); err != nil || string(got) != want {
			t.Errorf("%s: %v, or another text", file, err)
		}
	}
}

func TestWriteFails(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(root, "closed")
	if err := os.Mkdir(closed, 0o555); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(root, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "network-check-1.svg"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, names string
		paths      int
	}{
		{file, "network-check-1.txt", 0}, // a file where the directory should be
		{filepath.Join(file, "below"), "network-check-1.txt", 0},
		{closed, "network-check-1.txt", 0},
		{taken, "network-check-1.svg", 1}, // a directory where a file should be
	} {
		if c.dir == closed && os.Geteuid() == 0 {
			continue // root writes everywhere
		}
		paths, err := report.Write(c.dir, 1, clean(2))
		if err == nil || len(paths) != c.paths || !strings.Contains(err.Error(), filepath.Join(c.dir, c.names)) || errhint.Of(err) == "" {
			t.Errorf("%s: %v, hint %q, wrote %v", c.dir, err, errhint.Of(err), paths)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(taken, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	r := clean(2)
	r.Links[0].Best.BusBW = math.Inf(1)
	if paths, err := report.Write(root, 1, r); err == nil || len(paths) > 0 {
		t.Errorf("a record that has no JSON: %v, wrote %v", err, paths)
	}
}

// began is when all checks of these tests were.
var began = time.Date(2026, 8, 5, 12, 30, 0, 0, time.FixedZone("", 7200))
