package proc_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/proc"
	"muster/internal/testutil"
)

// A process that others have started is seen to end, with its status where the kernel tells it.
func TestWatch(t *testing.T) {
	t.Parallel()
	told := testutil.KernelIs(t, 6, 15)
	for name, c := range map[string]struct {
		script string
		kill   os.Signal
		want   proc.Exit
	}{
		"status": {"read line; exit 7", nil, proc.Exit{Code: 7}},
		"zero":   {"read line; exit 0", nil, proc.Exit{}},
		"killed": {"sleep 86400", unix.SIGKILL, proc.Exit{Code: -1, Signal: unix.SIGKILL}},
		"exec":   {"read line; exec sh -c 'exit 9'", nil, proc.Exit{Code: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec 2>&-; "+c.script)
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			w, err := proc.Watch(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w.Close() }()
			short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if got, err := w.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("while it runs: %+v, %v", got, err)
			}
			w2, err := proc.Watch(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = w2.Close() }()
			if c.kill != nil {
				_ = cmd.Process.Signal(c.kill)
			}
			_ = in.Close()
			go func() { _ = cmd.Wait() }() // its parent takes its status at some time
			got, err := w2.Wait(t.Context())
			switch {
			case !told && errors.Is(err, proc.ErrStatusUnknown):
			case err != nil || got.Code != c.want.Code || got.Signal != c.want.Signal:
				t.Errorf("%+v, %v, want %+v", got, err, c.want)
			}
			if got.Ended.Before(got.Started) || got.Ended.IsZero() {
				t.Errorf("%v to %v", got.Started, got.Ended)
			}
			if _, err := proc.Watch(1 << 30); err == nil {
				t.Error("a process that cannot be is watched")
			}
		})
	}
}
