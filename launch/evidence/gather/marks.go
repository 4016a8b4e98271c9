package gather

import (
	"encoding/binary"
	"errors"
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
	PID int
	// pipe is what it is asked by. It is held: by its number later a file of another program might be found.
	pipe, marks *os.File
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
		to := l.openPipe(strings.TrimSuffix(pipe, " (deleted)"))
		if to == nil {
			return nil
		}
		f, err := os.Open(l.path("fd/" + name))
		if err != nil {
			_ = to.Close()
			return nil
		}
		return &Marked{PID: l.PID, pipe: to, marks: f}
	}
	return nil
}

// openPipe opens the pipe at a descriptor of the process for writing, nil where it is none.
func (l *look) openPipe(number string) *os.File {
	if _, err := strconv.Atoi(number); err != nil {
		return nil
	}
	if link, err := os.Readlink(l.path("fd/" + number)); err != nil || !strings.HasPrefix(link, "pipe:[") {
		return nil
	}
	pipe, err := os.OpenFile(l.path("fd/"+number), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return pipe
}

// put writes a byte into a pipe, or fails at once: File.Write waits for room, also where it may not block.
func put(pipe *os.File, what byte) error {
	c, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	var wrote error
	err = c.Write(func(fd uintptr) bool {
		_, wrote = unix.Write(int(fd), []byte{what})
		return true
	})
	return errors.Join(err, wrote)
}

// Ask has the process tell its marks, some time later. It waits for nothing, and reports false where the process has ended.
func (m *Marked) Ask() bool {
	return !errors.Is(put(m.pipe, python.AskMarks), unix.EPIPE) // a full pipe: it was asked often enough
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
func (m *Marked) Close() { _, _ = m.pipe.Close(), m.marks.Close() }
