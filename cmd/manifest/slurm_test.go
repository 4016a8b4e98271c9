package manifest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/cmd/manifest"
	"muster/internal/testutil"
)

// The programs of Slurm that a script calls. srun runs its command on this machine and writes its process's id; scancel
// signals it, as Slurm signals a job's steps. cmd/muster has the script run by a real Slurm.
var slurmPrograms = map[string]string{
	"srun": "#!/bin/bash\necho \"srun $*\" >>calls\nwhile [ \"${1#--}\" != \"$1\" ]; do shift; done\n" +
		"[ \"$1\" = touch ] || { echo $$ >step.new && mv step.new step; }\nexec \"$@\"\n",
	"scancel":  "#!/bin/bash\necho \"scancel $*\" >>calls\nkill -s \"${1#--signal=}\" \"$(cat step)\"\n",
	"scontrol": "#!/bin/bash\necho \"scontrol $*\" >>calls\n",
	// muster stands for the job: it saves when the file is there, and ends at SIGTERM with 143.
	"muster": "#!/bin/bash\necho \"muster $*\" >>calls\ntrap 'echo stopped >>calls; exit 143' TERM\n" +
		"for a; do case $a in --ckpt-on-file=*) file=${a#*=} ;; esac; done\ntouch ready\n" +
		"for i in $(seq 600); do [ -z \"$END\" ] || exit \"$END\"; [ -e \"$file\" ] && echo saved >>calls; sleep 0.1; done\n",
}

// batch is a script that runs.
type batch struct {
	dir  string
	cmd  *exec.Cmd
	done chan error
}

func startBatch(t *testing.T, s manifest.Spec, env ...string) batch {
	t.Helper()
	b := batch{dir: t.TempDir(), done: make(chan error, 1)}
	for name, text := range slurmPrograms {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(b.dir, "job.sbatch"), manifest.Write(s), 0o600); err != nil {
		t.Fatal(err)
	}
	b.cmd = exec.Command("bash", "job.sbatch")
	b.cmd.Dir = b.dir
	b.cmd.Env = append(os.Environ(), append(env, "PATH="+b.dir+":"+os.Getenv("PATH"), "SLURM_JOB_ID=4711")...)
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { b.done <- b.cmd.Wait() }()
	t.Cleanup(func() { _ = b.cmd.Process.Kill() })
	return b
}

// ended waits for the script's end, and returns its status and the calls.
func (b batch) ended(t *testing.T) (status int, calls string) {
	t.Helper()
	select {
	case <-b.done:
	case <-time.After(time.Minute):
		t.Fatal("the script does not end")
	}
	text, err := os.ReadFile(filepath.Join(b.dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return b.cmd.ProcessState.ExitCode(), string(text)
}

// At the notice the newest step is saved; then the workers are stopped, and the job is queued again.
func TestSlurmNotice(t *testing.T) {
	t.Parallel()
	s := full("slurm")
	s.Notice = time.Second
	b := startBatch(t, s)
	testutil.Eventually(t, 20*time.Second, "the job runs", func() bool {
		_, err := os.Stat(filepath.Join(b.dir, "ready"))
		return err == nil
	})
	if err := exec.CommandContext(t.Context(), "kill", "-USR1", strconv.Itoa(b.cmd.Process.Pid)).Run(); err != nil {
		t.Fatal(err)
	}
	status, calls := b.ended(t)
	at := 0
	for _, want := range []string{
		"--ntasks-per-node=1", "muster run --nproc-per-node=8", "/.muster-4711.notice", "srun --overlap", "touch", "saved",
		"scancel --signal=TERM 4711", "stopped", "scontrol requeue 4711",
	} {
		i := strings.Index(calls[at:], want)
		if i < 0 {
			t.Fatalf("no %q behind the others:\n%s", want, calls)
		}
		at += i
	}
	if status != 143 {
		t.Errorf("status %d", status)
	}
}

// Statuses about machines have the job queued again, so often; others end it.
func TestSlurmStatuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status, restarts string
		again            bool
	}{{"0", "0", false}, {"1", "0", false}, {"80", "0", true}, {"81", "9", true}, {"75", "10", false}, {"2", "1", false}} {
		b := startBatch(t, plain("slurm"), "END="+c.status, "SLURM_RESTART_COUNT="+c.restarts)
		status, calls := b.ended(t)
		if again := strings.Contains(calls, "scontrol requeue 4711"); again != c.again || strconv.Itoa(status) != c.status {
			t.Errorf("status %d, want %s; queued again: %v, want %v\n%s", status, c.status, again, c.again, calls)
		}
	}
}
