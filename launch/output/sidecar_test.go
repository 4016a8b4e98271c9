package output

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"muster/internal/testutil"
	"muster/launch/job"
)

func startSidecar(t *testing.T, l *Logs, argv ...string) (*Worker, *exec.Cmd) {
	t.Helper()
	w, err := l.Sidecar(1, "node.example")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = w.Files()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	w.Started()
	return w, cmd
}

// Each process of a sidecar has its lines shown once, behind a prefix, and appends to the files.
func TestSidecarOutput(t *testing.T) {
	for name, c := range map[string]struct {
		rules       job.LogRules
		out, err, f string
	}{
		"files": {
			job.LogRules{Dir: "DIR"},
			"[sidecar 1] one 1\n[sidecar 1] one 2\n", "[sidecar 1] two 1\n[sidecar 1] two 2\n",
			"one 1\none 2\n",
		},
		"pipes": {
			job.LogRules{Dir: os.DevNull, Prefix: "[${hostname} ${role_name}${local_rank} ${stream}] "},
			"[node sidecar1 stdout] one 1\n[node sidecar1 stdout] one 2\n", "[node sidecar1 stderr] two 1\n[node sidecar1 stderr] two 2\n",
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.rules.Dir == "DIR" {
				c.rules.Dir = t.TempDir()
			}
			r := newRig(t, c.rules)
			for _, n := range []string{"1", "2"} {
				w, cmd := startSidecar(t, r.Logs, "sh", "-c", "echo one "+n+"; echo two "+n+" >&2")
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
				w.Finish(t.Context())
				if diff := cmp.Diff([]string{"two " + n}, w.LastLines(1)); diff != "" {
					t.Errorf("last lines (-want +got):\n%s", diff)
				}
			}
			if c.f != "" {
				text, err := os.ReadFile(filepath.Join(r.RunDir(), "sidecar_1", stdoutFile))
				if diff := cmp.Diff(c.f, string(text)); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
			}
			out, err := r.close(t, true)
			if diff := cmp.Diff(c.out, out); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.err, err); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

// A console that nobody reads does not keep the output of a sidecar from its end.
func TestSidecarBehindAFullConsole(t *testing.T) {
	before := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, before)
	_, write := stalled(t)
	l, err := Open(Setup{
		Rules: job.LogRules{Dir: os.DevNull}, TempDir: t.TempDir(), Stdout: write, Stderr: io.Discard, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w, cmd := startSidecar(t, l, "sh", "-c", "while :; do echo much; done")
	testutil.Eventually(t, time.Minute, "the console is full", func() bool { return len(l.out.turn) == 1 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Finish(ctx)
		if err := l.Close(true); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the end of a sidecar waits for the console")
	}
}
