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
	return fold(slices.Compact(list))
}

// fold is Fold of numbers that are sorted, each of them once.
func fold(list []int) string {
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
// evidence of threads without Python stacks, and native stacks where there are some, are stacks, too.
func Merge(nodes []Node, native bool) []Group {
	return merge(nodes, func(m *merging, rank int, p *Process, whose string) {
		m.python(rank, p, whose)
		if len(p.Stacks) == 0 || native {
			m.add(rank, "process "+p.Name, kernelFrames(p))
		}
		if native {
			m.native(rank, p, whose)
		}
	})
}

// MergePython folds Python's stacks alone, MergeNative all else.
func MergePython(nodes []Node) []Group { return merge(nodes, (*merging).python) }

// MergeNative folds native stacks, and what the kernel tells.
func MergeNative(nodes []Node) []Group {
	return merge(nodes, func(m *merging, rank int, p *Process, whose string) {
		m.add(rank, "process "+p.Name, kernelFrames(p))
		m.native(rank, p, whose)
	})
}

// merging are groups by their threads and frames.
type merging struct {
	index  map[string]int
	groups []Group
	had    map[int]int // the last rank that is in a group
}

func (m *merging) add(rank int, thread string, frames []Frame) {
	key := make([]byte, 0, 64+48*len(frames))
	key = append(key, thread...)
	for _, f := range frames {
		key = append(append(append(append(key, 0), f.Func...), 0), f.File...)
		key = strconv.AppendInt(append(key, 0), int64(f.Line), 10)
	}
	i, known := m.index[string(key)]
	if !known {
		i = len(m.groups)
		m.index[string(key)] = i
		m.groups = append(m.groups, Group{Thread: thread, Frames: frames})
	}
	if last, has := m.had[i]; !has || last != rank { // all stacks of a rank come one after the other
		m.groups[i].Ranks = append(m.groups[i].Ranks, rank)
		m.had[i] = rank
	}
}

// python adds the Python stacks of a process.
func (m *merging) python(rank int, p *Process, whose string) {
	for i, s := range p.Stacks {
		thread := "main thread"
		if i > 0 {
			thread = "thread"
		}
		m.add(rank, thread+whose, s.Frames)
	}
}

// native adds the native stacks of a process, or what the kernel tells of its threads but the main one.
func (m *merging) native(rank int, p *Process, whose string) {
	for i, s := range p.Native {
		thread := "main thread with native frames"
		if i > 0 {
			thread = "thread with native frames"
		}
		m.add(rank, thread+whose, s.Frames)
	}
	for _, t := range p.Threads {
		if t.TID != p.PID {
			m.add(rank, "native thread "+t.Name+whose, threadFrames(t))
		}
	}
}

func merge(nodes []Node, of func(m *merging, rank int, p *Process, whose string)) []Group {
	m := &merging{index: map[string]int{}, had: map[int]int{}}
	for _, n := range nodes {
		for _, r := range n.Ranks {
			for i := range r.Processes {
				p := &r.Processes[i]
				whose := ""
				if i > 0 {
					whose = " of a process " + p.Name
				}
				of(m, r.Rank, p, whose)
			}
		}
	}
	for i := range m.groups {
		slices.Sort(m.groups[i].Ranks)
		m.groups[i].Ranks = slices.Compact(m.groups[i].Ranks)
	}
	slices.SortStableFunc(m.groups, func(a, b Group) int {
		main := func(g Group) int {
			if strings.HasPrefix(g.Thread, "main thread") && !strings.Contains(g.Thread, " of a process ") {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(main(a), main(b)), cmp.Compare(len(a.Ranks), len(b.Ranks)), cmp.Compare(a.Ranks[0], b.Ranks[0]))
	})
	return m.groups
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

// rootOf is a tree of the merged stacks of the groups, each node of which knows the ranks that pass through it.
func rootOf(groups []Group) *Branch {
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
		root.Ranks = append(root.Ranks, c.Ranks...)
	}
	root.settle()
	return root
}

// Branch is a frame below others.
type Branch struct {
	Name     string
	Ranks    []int
	Children []*Branch
	index    map[string]*Branch // the children by their names
}

func (b *Branch) child(name string, ranks []int) *Branch {
	c, known := b.index[name]
	if !known {
		if b.index == nil {
			b.index = map[string]*Branch{}
		}
		c = &Branch{Name: name}
		b.index[name] = c
		b.Children = append(b.Children, c)
	}
	c.Ranks = append(c.Ranks, ranks...)
	return c
}

// settle sorts the ranks of a branch and of all below it, each of them once.
func (b *Branch) settle() {
	for _, c := range b.Children {
		c.settle()
	}
	slices.Sort(b.Ranks)
	b.Ranks = slices.Compact(b.Ranks)
}

// label is a frame with the ranks that are in it, and those of all that are not: func@source@stuck|leak.
func (b *Branch) label(all []int) string {
	leak := make([]int, 0, len(all)-len(b.Ranks))
	here := b.Ranks
	for _, r := range all { // both are sorted
		if len(here) > 0 && here[0] == r {
			here = here[1:]
		} else {
			leak = append(leak, r)
		}
	}
	return b.Name + "@" + fold(b.Ranks) + "|" + fold(leak)
}

// WriteFolded writes merged stacks as other programs for flame graphs read them: a line for each stack.
func WriteFolded(w io.Writer, groups []Group) error {
	root := rootOf(groups)
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
