package proc_test

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
)

// allowedCPUs returns the CPUs that this thread may run on, ascending.
func allowedCPUs(t *testing.T) []int {
	t.Helper()
	set := unix.NewCPUSet(8192)
	if err := unix.SchedGetaffinityDynamic(0, set); err != nil {
		t.Fatal(err)
	}
	var cpus []int
	for c := range 8192 {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus
}

// onCPUs starts a worker on cpus, and returns what its child sees as the CPUs that it may use.
func onCPUs(t *testing.T, tree *proc.Tree, cpus ...int) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	p, err := tree.Start(proc.Spec{
		Path: "/bin/sh", Args: []string{"sh", "-c", "sed -n s/^Cpus_allowed_list:.//p /proc/self/status; true"}, Env: os.Environ(),
		Files: []*os.File{nil, w, os.Stderr}, CPUs: cpus,
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	waitExit(t, p)
	return strings.TrimSpace(string(out))
}

func TestCPUs(t *testing.T) {
	tree := openTree(t, proc.Config{})
	all := onCPUs(t, tree)
	for _, c := range allowedCPUs(t) {
		if got := onCPUs(t, tree, c); got != strconv.Itoa(c) {
			t.Errorf("bound to CPU %d, it may use %q", c, got)
		}
		if got := onCPUs(t, tree); got != all {
			t.Errorf("after a worker bound to CPU %d another one may use %q, want %q", c, got, all)
		}
	}
}

func TestCPUsThatAreNotThere(t *testing.T) {
	tree := openTree(t, proc.Config{})
	all := onCPUs(t, tree)
	_, err := tree.Start(proc.Spec{Path: "/bin/true", Label: "rank 3", CPUs: []int{8000, 8001}})
	if want := "cannot start rank 3: cannot bind it to CPUs (2, from 8000 to 8001): invalid argument"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if got := onCPUs(t, tree); got != all {
		t.Errorf("another one may use %q, want %q", got, all)
	}
}
