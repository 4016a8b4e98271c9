package gather

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/internal/python"
)

// Marks are what a Python process with a process group of PyTorch counts of itself. One that gets somewhere changes them, whatever its
// processors do: one that waits for a device, or for other ranks' devices, may keep a processor busy.
type Marks struct {
	// Answers is how often it has answered.
	Answers uint64
	// Device says that it uses a GPU or the like.
	Device bool
	// Allocations is how often it has taken memory there or replayed a graph, Collectives how many it has begun.
	Allocations, Collectives uint64
	// Place stands for where its main thread is.
	Place uint64
}

// Marked is a process that tells its marks when it is asked.
type Marked struct {
	PID   int
	pipe  string // the number of the descriptor by which it is asked
	marks *os.File
}

// FindMarked returns the process of a worker that tells its marks, nil for none: the worker itself or, with deep, a descendant of it.
func FindMarked(worker int, deep bool) *Marked {
	m := marked(&look{Seen: proc.Seen{PID: worker}})
	if m != nil || !deep {
		return m
	}
	trees, err := proc.TreesOf([]int{worker})
	if err != nil {
		return nil
	}
	tree := trees[worker]
	for _, p := range tree[:min(len(tree), mostOfRank)] {
		if m := marked(&look{Seen: p}); m != nil {
			return m
		}
	}
	return nil
}

func marked(l *look) *Marked {
	dir, err := os.Open(l.path("fd"))
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(mostFiles)
	own := python.MarksFile + l.ownPID() + "-"
	for _, name := range names {
		link, err := os.Readlink(l.path("fd/" + name))
		pipe, is := strings.CutPrefix(link, own)
		if err != nil || !is {
			continue
		}
		pipe = strings.TrimSuffix(pipe, " (deleted)")
		if _, err := strconv.Atoi(pipe); err != nil {
			return nil
		}
		f, err := os.Open(l.path("fd/" + name))
		if err != nil {
			return nil
		}
		return &Marked{PID: l.PID, pipe: pipe, marks: f}
	}
	return nil
}

// Ask has the process tell its marks, some time later. It waits for nothing.
func (m *Marked) Ask() {
	pipe, err := os.OpenFile("/proc/"+strconv.Itoa(m.PID)+"/fd/"+m.pipe, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return // it has ended
	}
	_, _ = pipe.Write([]byte{python.AskMarks}) // a full pipe: it was asked often enough
	_ = pipe.Close()
}

// Read returns what the process has told last; false for nothing yet.
func (m *Marked) Read() (Marks, bool) {
	var text [python.MarksSize]byte
	if n, _ := m.marks.ReadAt(text[:], 0); n != len(text) {
		return Marks{}, false
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(text[8*i:]) }
	return Marks{
		Answers: number(0), Device: number(1) == 1, Allocations: number(2), Collectives: number(3), Place: number(4),
	}, true
}

// Close lets go of the process.
func (m *Marked) Close() { _ = m.marks.Close() }
