package dialect_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/launch/job"
)

func TestCheckpointNotices(t *testing.T) {
	for _, c := range []struct {
		args string
		env  []string
		want job.CheckpointRules
	}{
		{args: ""},
		{args: "--ckpt on", want: job.CheckpointRules{On: true, Salvage: time.Minute}},
		{args: "--ckpt on --ckpt-notices off", want: job.CheckpointRules{On: true, Salvage: time.Minute, Unasked: true}},
		{args: "--ckpt-signal USR1", want: job.CheckpointRules{On: true, Salvage: time.Minute, Signal: syscall.SIGUSR1}},
		{args: "--ckpt-signal sigusr2", want: job.CheckpointRules{On: true, Salvage: time.Minute, Signal: syscall.SIGUSR2}},
		{args: "--ckpt-signal 24", want: job.CheckpointRules{On: true, Salvage: time.Minute, Signal: syscall.SIGXCPU}},
		{
			args: "", env: []string{"MUSTER_CKPT_ON_FILE=/going"},
			want: job.CheckpointRules{On: true, Salvage: time.Minute, OnFile: "/going"},
		},
		{args: "", env: []string{"MUSTER_CKPT=off", "MUSTER_CKPT_SIGNAL=USR1"}},
	} {
		got := accepted(t, c.env, "", append(strings.Fields(c.args), "prog")...).Job.Checkpoint
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%q %q (-want +got):\n%s", c.args, c.env, diff)
		}
	}
}

func TestCheckpointNoticesRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--ckpt-signal", "KILL"}, "give USR1, USR2"},
		{[]string{"--ckpt-signal", "CHLD"}, "give USR1, USR2"},
		{[]string{"--ckpt-signal", "nothing"}, "give USR1, USR2"},
		{[]string{"--ckpt-signal", "0"}, "give USR1, USR2"},
		{[]string{"--ckpt-signal", "-1"}, "give USR1, USR2"},
		{[]string{"--ckpt-signal", "TERM"}, "that signal ends the job"},
		{[]string{"--ckpt-on-file", ""}, "name a file"},
		{[]string{"--ckpt-on-command", " "}, "name a command"},
		{[]string{"--ckpt-notices", "aws"}, "auto"},
		{[]string{"--ckpt-notices", "off"}, "where --ckpt is not on"},
		{[]string{"--ckpt-dir", "d", "--ckpt", "off"}, "where --ckpt is not on"},
	} {
		_, err := native(nil, "", append(c.args, "prog")...)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.args[0]) {
			t.Errorf("%q: %v, want %q and the flag's name", c.args, err, c.want)
		}
	}
	// A signal that torchrun was told to end the job with.
	inv := dialect.Invocation{
		Argv0: "torchrun", Args: []string{"--signals-to-handle", "SIGTERM,SIGUSR1", "train.py"},
		Environ: []string{"MUSTER_CKPT_SIGNAL=USR1"},
	}
	if _, err := dialect.Torchrun(inv); err == nil || !strings.Contains(err.Error(), "MUSTER_CKPT_SIGNAL=USR1") {
		t.Errorf("torchrun: %v", err)
	}
}
