package evidence

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"muster/internal/printable"
)

// Fold is a list of numbers as people write it: 0-3/5.
func Fold(numbers []int) string {
	list := slices.Clone(numbers)
	slices.Sort(list)
	list = slices.Compact(list)
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		part := strconv.Itoa(list[i])
		if j > i {
			part += "-" + strconv.Itoa(list[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, "/")
}

// Group is ranks with the same stack.
type Group struct {
	// Thread says whose stack it is: of the worker's main thread, of another thread, of a process that it has started.
	Thread string
	Ranks  []int
	Frames []Frame
}

// Merge folds equal stacks of all ranks. The smallest group is the first: it is the odd one. With native the kernel's
// evidence of threads without Python stacks is a stack, too.
func Merge(nodes []Node, native bool) []Group {
	index, groups := map[string]int{}, []Group(nil)
	add := func(rank int, thread string, frames []Frame) {
		var key strings.Builder
		key.WriteString(thread)
		for _, f := range frames {
			fmt.Fprintf(&key, "\x00%s\x00%s\x00%d", f.Func, f.File, f.Line)
		}
		i, known := index[key.String()]
		if !known {
			i = len(groups)
			index[key.String()] = i
			groups = append(groups, Group{Thread: thread, Frames: frames})
		}
		if g := &groups[i]; !slices.Contains(g.Ranks, rank) {
			g.Ranks = append(g.Ranks, rank)
		}
	}
	for _, n := range nodes {
		for _, r := range n.Ranks {
			for i := range r.Processes {
				p := &r.Processes[i]
				whose := ""
				if i > 0 {
					whose = " of a process " + p.Name
				}
				for j, s := range p.Stacks {
					thread := "main thread"
					if j > 0 {
						thread = "thread"
					}
					add(r.Rank, thread+whose, s.Frames)
				}
				if len(p.Stacks) == 0 || native {
					add(r.Rank, "process "+p.Name, kernelFrames(p))
				}
				for _, t := range p.Threads {
					if native && t.TID != p.PID {
						add(r.Rank, "native thread "+t.Name+whose, threadFrames(t))
					}
				}
			}
		}
	}
	for i := range groups {
		slices.Sort(groups[i].Ranks)
	}
	slices.SortStableFunc(groups, func(a, b Group) int {
		main := func(g Group) int {
			if g.Thread == "main thread" {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(main(a), main(b)), cmp.Compare(len(a.Ranks), len(b.Ranks)), cmp.Compare(a.Ranks[0], b.Ranks[0]))
	})
	return groups
}

// kernelFrames are what the kernel tells of the main thread of a process.
func kernelFrames(p *Process) []Frame {
	for _, t := range p.Threads {
		if t.TID == p.PID {
			return threadFrames(t)
		}
	}
	return []Frame{{Func: "state " + p.State, File: "kernel"}}
}

func threadFrames(t Thread) []Frame {
	frames := []Frame{{Func: "state " + t.State, File: "kernel"}}
	if t.Syscall != "" {
		frames = append(frames, Frame{Func: t.Syscall, File: "kernel"})
	}
	for _, name := range slices.Backward(t.Kernel) {
		frames = append(frames, Frame{Func: name, File: "kernel"})
	}
	if len(t.Kernel) == 0 && t.Wchan != "" {
		frames = append(frames, Frame{Func: t.Wchan, File: "kernel"})
	}
	return frames
}

// WriteText writes merged stacks for people.
func WriteText(w io.Writer, groups []Group) error {
	for i, g := range groups {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		word := "ranks"
		if len(g.Ranks) == 1 {
			word = "rank"
		}
		if _, err := fmt.Fprintf(w, "%s %s, %s:\n", word, Fold(g.Ranks), printable.Output(g.Thread)); err != nil {
			return err
		}
		for _, f := range slices.Backward(g.Frames) {
			if _, err := fmt.Fprintf(w, "    %s\n", printable.Output(f.String())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f Frame) String() string {
	text := f.Func
	if f.File != "kernel" {
		text += " (" + f.File
		if f.Line > 0 {
			text += ":" + strconv.Itoa(f.Line)
		}
		text += ")"
	}
	if f.Text != "" {
		text += ": " + f.Text
	}
	return text
}

// Root is a tree of the merged stacks of the groups, each node of which knows the ranks that pass through it.
func Root(groups []Group) *Branch {
	root := &Branch{Name: "all"}
	for _, g := range groups {
		at := root.child(g.Thread, g.Ranks)
		for _, f := range g.Frames {
			source := f.File
			if f.Line > 0 {
				source += ":" + strconv.Itoa(f.Line)
			}
			at = at.child(f.Func+"@"+source, g.Ranks)
		}
	}
	for _, c := range root.Children {
		root.take(c.Ranks)
	}
	return root
}

// Branch is a frame below others.
type Branch struct {
	Name     string
	Ranks    []int
	Children []*Branch
}

func (b *Branch) child(name string, ranks []int) *Branch {
	i := slices.IndexFunc(b.Children, func(c *Branch) bool { return c.Name == name })
	if i < 0 {
		i = len(b.Children)
		b.Children = append(b.Children, &Branch{Name: name})
	}
	b.Children[i].take(ranks)
	return b.Children[i]
}

func (b *Branch) take(ranks []int) {
	b.Ranks = append(b.Ranks, ranks...)
	slices.Sort(b.Ranks)
	b.Ranks = slices.Compact(b.Ranks)
}

// label is a frame with the ranks that are in it, and those of all that are not: func@source@stuck|leak.
func (b *Branch) label(all []int) string {
	var leak []int
	for _, r := range all {
		if !slices.Contains(b.Ranks, r) {
			leak = append(leak, r)
		}
	}
	return b.Name + "@" + Fold(b.Ranks) + "|" + Fold(leak)
}

// WriteFolded writes merged stacks as other programs for flame graphs read them: a line for each stack.
func WriteFolded(w io.Writer, groups []Group) error {
	root := Root(groups)
	var write func(b *Branch, above string) error
	write = func(b *Branch, above string) error {
		name := strings.NewReplacer(";", ",", " ", "_").Replace(printable.Output(b.label(root.Ranks)))
		if above != "" {
			name = above + ";" + name
		}
		if len(b.Children) == 0 {
			_, err := fmt.Fprintf(w, "%s %d\n", name, len(b.Ranks))
			return err
		}
		for _, c := range b.Children {
			if err := write(c, name); err != nil {
				return err
			}
		}
		return nil
	}
	for _, c := range root.Children {
		if err := write(c, ""); err != nil {
			return err
		}
	}
	return nil
}
