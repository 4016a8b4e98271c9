package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a page.
type block struct {
	line  int      // of the page, from 1
	lang  string   // the word behind the fence
	marks []string // the further words
	title string   // title="NAME": the block is that file
	text  string
}

func (b block) has(mark string) bool { return slices.Contains(b.marks, mark) }

// environment is the name of the Python environment that the block needs, if any: that of PyTorch, or a peer.
func (b block) environment() string {
	if i := slices.IndexFunc(b.marks, func(mark string) bool { return slices.Contains(environmentMarks, mark) }); i >= 0 {
		return b.marks[i]
	}
	return ""
}

var (
	titleMark  = regexp.MustCompile(` title="([A-Za-z][A-Za-z0-9._-]*)"`)
	notRunMark = regexp.MustCompile(`^<!-- not run: .{10,} -->$`)
	shellLangs = []string{"console", "bash", "sh", "shell"}

	environmentMarks = []string{"torch", "accelerate", "colossalai", "deepspeed", "horovod", "jax", "lightning", "spark"}
	blockMarks       = slices.Concat([]string{"run", "dry", "background", "retry"}, environmentMarks)
)

// pageBlocks finds the blocks of a page. A block of commands has to be run, or to say why it is not, and so there are
// no commands in blocks that are indented.
func pageBlocks(page string) ([]block, error) {
	var blocks []block
	var open *block
	before := "" // the last line that is not empty
	for i, line := range strings.Split(page, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case open != nil && fence:
			blocks = append(blocks, *open)
			open, before = nil, ""
		case open != nil:
			open.text += line + "\n"
		case fence:
			b := block{line: i + 1}
			if m := titleMark.FindStringSubmatch(info); m != nil {
				b.title, info = m[1], strings.Replace(info, m[0], "", 1)
			}
			words := append(strings.Fields(info), "")
			b.lang, b.marks = words[0], slices.DeleteFunc(words[1:], func(w string) bool { return w == "" })
			for _, mark := range b.marks {
				if !slices.Contains(blockMarks, mark) {
					return nil, fmt.Errorf("line %d: the mark %q is unknown", b.line, mark)
				}
			}
			if slices.Contains(shellLangs, b.lang) && b.title == "" && !b.has("run") && !b.has("dry") && !notRunMark.MatchString(before) {
				return nil, fmt.Errorf("line %d: commands that are not run, without a comment above them: <!-- not run: REASON -->", b.line)
			}
			open = &b
		case strings.HasPrefix(line, "    ") || strings.HasPrefix(strings.TrimSpace(line), "```"):
			return nil, fmt.Errorf("line %d: a block that is indented; fence it, and begin in the first column", i+1)
		case strings.TrimSpace(line) != "":
			before = line
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block has no end", open.line)
	}
	return blocks, nil
}

// blockCommand is a line behind a prompt with the lines that the page shows below it.
type blockCommand struct {
	line  string
	shows []string
}

// blockCommands splits a block at its prompts. A command goes on in the next line behind a backslash.
func blockCommands(text string) []blockCommand {
	var commands []blockCommand
	more := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if command, prompt := strings.CutPrefix(line, "$ "); prompt {
			commands = append(commands, blockCommand{line: command})
		} else if len(commands) == 0 {
			continue
		} else if last := &commands[len(commands)-1]; more {
			last.line += "\n" + line
		} else {
			last.shows = append(last.shows, line)
			continue
		}
		more = strings.HasSuffix(line, "\\")
	}
	return commands
}

// What differs between two runs is compared by its form.
var varies = []struct {
	form *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`\s+`), " "}, // columns are as wide as what stands in them
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ _T]\d\d:\d\d:\d\d(?:\.\d+)?Z?`), "DATE"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d`), "TIME"},
	{regexp.MustCompile(`\b(?:\d+m)?\d+(?:\.\d+)?(?:e-\d+)? ?(?:ns|µs|ms|s|m|min|h|B|KiB|MiB|GiB)\b`), "SIZE"},
	{regexp.MustCompile(`\b(pid:|process|laptop) \d+`), "$1 NUMBER"},
	{regexp.MustCompile(`SIZE \d+ (\S+)$`), "SIZE NUMBER $1"}, // a job's process in muster ps
	{regexp.MustCompile(`\b\d{4,}\b`), "NUMBER"},              // another process, a port
}

// sameLines compares lines of a page with those that were shown, in any order: two streams flow into one. Three dots
// in a line of the page stand for any text, a line of three dots for any lines.
func sameLines(page, shown []string) error {
	plain := func(lines []string) []string {
		var out []string
		for _, line := range lines {
			for _, v := range varies {
				line = v.form.ReplaceAllString(line, v.as)
			}
			if line = strings.TrimSpace(line); line != "" {
				out = append(out, line)
			}
		}
		return out
	}
	want, left := plain(page), plain(shown)
	more := false
	var errs []error
	for _, exact := range []bool{true, false} { // a line with dots takes none that another one names
		for _, line := range want {
			if line == "..." {
				more = true
				continue
			}
			if exact == strings.Contains(line, "...") {
				continue
			}
			form := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, ".*") + "$")
			if i := slices.IndexFunc(left, form.MatchString); i >= 0 {
				left = slices.Delete(left, i, i+1)
			} else {
				errs = append(errs, fmt.Errorf("no line %q", line))
			}
		}
	}
	// A job that has lasted for a minute says where its time went. On a busy machine any job does.
	left = slices.DeleteFunc(left, func(line string) bool { return strings.HasPrefix(line, "TIME info the job has lasted SIZE: ") })
	if len(left) > 0 && !more {
		errs = append(errs, fmt.Errorf("lines that the page does not have: %q", left))
	}
	return errors.Join(errs...)
}

// The test of the pages finds what it is to find.
func TestPageBlocks(t *testing.T) {
	t.Parallel()
	page := "```python title=\"a.py\"\nx = 1\n```\n\n```console run\n$ echo a \\\n  b\na b\n$ false\n$ echo $?\n1\n```\n\n" +
		"<!-- not run: it needs a cluster -->\n\n```console\n$ srun muster\n```\n"
	blocks, err := pageBlocks(page)
	if err != nil || len(blocks) != 3 || blocks[0].title != "a.py" || blocks[0].text != "x = 1\n" || !blocks[1].has("run") {
		t.Fatalf("%+v, %v", blocks, err)
	}
	commands := blockCommands(blocks[1].text)
	if len(commands) != 3 || commands[0].line != "echo a \\\n  b" || !slices.Equal(commands[2].shows, []string{"1"}) {
		t.Errorf("%q", commands)
	}
	for name, bad := range map[string]string{
		"no mark":      "```console\n$ ls\n```\n",
		"unknown mark": "```console rum\n$ ls\n```\n",
		"indented":     "Text\n\n    muster run\n",
		"no end":       "```console run\n$ ls\n",
		"no reason":    "<!-- not run: x -->\n\n```bash\nls\n```\n",
	} {
		if _, err := pageBlocks(bad); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for _, c := range []struct {
		page, shown string
		same        bool
	}{
		{"a\nb", "b\na", true},
		{"a", "a\nb", false},
		{"a\n...", "a\nb\nc", true},
		{"a\nb", "a", false},
		{"a ... c", "a b c", true},
		{"a ... c\na b c", "a b c", false},
		{"after 7 ms", "after 1.2 s", true},
		{"12:00:00 x", "23:59:59 x", true},
		{"rank 0   12345", "rank 0 9999", true},
		{"wait  1  0  2s  20154  wait.py", "wait 1 0 2m59s 335 wait.py", true},
		{"0  laptop  12345  Running", "0 laptop 7 Running", true},
		{"exit status 137", "exit status 143", false},
		{"rank 0 12345", "rank 1 9999", false},
		{"a", "a\n19:21:59 info  the job has lasted 1m8s: 99.8% good", true},
		{"a", "a\n19:21:59 info  the job has begun", false},
	} {
		if err := sameLines(strings.Split(c.page, "\n"), strings.Split(c.shown, "\n")); (err == nil) != c.same {
			t.Errorf("%q and %q: %v", c.page, c.shown, err)
		}
	}
}
