package dialect_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"muster/cmd/dialect"
	"muster/launch/job"
)

// The variables of xpu_timer say what they say under dlrover-run, and muster's own flags go before them.
func TestTimerVariables(t *testing.T) {
	t.Parallel()
	env := []string{"XPU_TIMER_HANG_TIMEOUT=60", "XPU_TIMER_TIMELINE_PATH=/t", "XPU_TIMER_HANG_KILL=1"}
	for line, want := range map[string]job.HangRules{
		"dlrover-run --standalone t.py": {Timeout: time.Minute, Action: job.HangFail, Dir: "/t"},
		"--hang-timeout 9 --on-hang dump --hang-dir /d dlrover-run --standalone t.py": {
			Timeout: 9 * time.Second, Action: job.HangDump, Dir: "/d",
		},
		"torchrun --standalone t.py": {},
	} {
		req, err := ask("", env, strings.Fields(line)...)
		if err != nil || !reflect.DeepEqual(req.Job.Hang, want) {
			t.Errorf("%s: %+v, %v", line, req.Job.Hang, err)
		}
	}
	for _, text := range []string{"soon", "-1", "1.5"} {
		_, err := ask("", []string{"XPU_TIMER_HANG_TIMEOUT=" + text}, "dlrover-run", "--standalone", "t.py")
		if err == nil || !strings.Contains(err.Error(), "cannot use XPU_TIMER_HANG_TIMEOUT=\""+text+"\": give a number of seconds") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ask("", []string{"XPU_TIMER_TIMELINE_PATH=/t"}, "dlrover-run", "--standalone", "t.py"); err != nil {
		t.Error(err)
	}
}

// xpu_timer_launch looks for hangs in 300 s, unless it is told otherwise.
func TestTimerEnviron(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"A=1", "A=1 MUSTER_HANG_TIMEOUT=300s"},
		{"XPU_TIMER_HANG_TIMEOUT=7 XPU_TIMER_HANG_KILL=true", "MUSTER_HANG_TIMEOUT=7s MUSTER_ON_HANG=dump,fail"},
		{"MUSTER_HANG_TIMEOUT=auto XPU_TIMER_TIMELINE_PATH=/t", "MUSTER_HANG_DIR=/t"},
	} {
		got := dialect.TimerEnviron(strings.Fields(c[0]))
		if text := strings.Join(got, " "); !strings.HasSuffix(text, c[1]) || strings.Contains(c[0], "auto") &&
			strings.Contains(text, "300") {
			t.Errorf("%q: %q", c[0], text)
		}
	}
}
