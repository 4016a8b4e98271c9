package gather

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/python"
)

// Who tells its marks is asked by its pipe alone, which nobody waits for, whatever lies at its descriptor later; without the other end it
// has ended.
func TestMarkedAsk(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	read, at := ends[0], ends[1]
	name := fmt.Sprintf("%s%d-%d", strings.TrimPrefix(python.MarksFile, "/memfd:"), os.Getpid(), at)
	memory, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(memory) }()
	m := FindMarked(os.Getpid(), false)
	if m == nil {
		t.Fatal("it is not found")
	}
	defer m.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := unix.Dup3(int(file.Fd()), at, unix.O_CLOEXEC); err != nil { // as another program may have it
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(at) }()
	var got [8]byte
	if !m.Ask() {
		t.Error("it is said to have ended")
	}
	if n, err := unix.Read(read, got[:]); n != 1 || got[0] != python.AskMarks {
		t.Errorf("%d %v %v", n, err, got)
	}
	if info, err := file.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("%v: it was written into a file: %+v", err, info)
	}
	if FindMarked(os.Getpid(), false) != nil {
		t.Error("a file is taken for a pipe")
	}
	asked := make(chan bool)
	go func() {
		ok := true
		for range 1 << 17 { // more than a pipe holds
			ok = m.Ask() && ok
		}
		asked <- ok
	}()
	select {
	case ok := <-asked:
		if !ok {
			t.Error("a full pipe is taken for the end")
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the process to read")
	}
	if err := unix.Close(read); err != nil {
		t.Fatal(err)
	}
	if m.Ask() {
		t.Error("one that has ended is taken for one that answers")
	}
}
