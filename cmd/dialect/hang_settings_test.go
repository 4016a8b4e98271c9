package dialect_test

import (
	"strings"
	"testing"
	"time"

	"muster/launch/job"
)

// A crash loop is counted where restarts are.
func TestCrashLoopSettings(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"run --max-restarts 3 --crash-loop 3 prog":                                                    "",
		"--crash-loop 2 torchrun --max-restarts 3 t.py":                                               "",
		"run --max-restarts 1 --restart-window 1h --crash-loop 5 prog":                                "",
		"run --nnodes 2 --rdzv muster://n0 --run-id j --max-restarts 1 --crash-loop 2 prog":           "",
		"run --crash-loop 2 prog":                                                                     "while --max-restarts is 0",
		"run --max-restarts 1 --crash-loop 2 prog":                                                    "above --max-restarts",
		"run --max-restarts 1 --crash-loop -1 prog":                                                   "crash-loop",
		"--crash-loop 2 horovodrun -np 2 --min-np 1 --host-discovery-script ./d --reset-limit 3 prog": "elastic horovodrun",
	} {
		req, err := ask("", nil, strings.Fields(line)...)
		if says == "" && (err != nil || req.Job.Restart.CrashLoop == 0) || says != "" &&
			(err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %d, %v", line, req.Job.Restart.CrashLoop, err)
		}
	}
}

// What follows from a hang is read word by word, and refused by name where it cannot be.
func TestHangSettings(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]job.HangRules{
		"run prog":                    {},
		"run --hang-timeout 300 prog": {Timeout: 5 * time.Minute},
		"run --hang-timeout 90s --on-hang dump prog":                         {Timeout: 90 * time.Second, Action: job.HangDump},
		"run --hang-timeout 1m --on-hang dump,restart --max-restarts 1 prog": {Timeout: time.Minute, Action: job.HangRestart},
		"run --nnodes 1:2 --rdzv muster://n0 --run-id j --hang-timeout 9 --max-restarts 1 --on-hang dump,exclude,fail prog": {
			Timeout: 9 * time.Second, Exclude: true, Action: job.HangFail,
		},
		"--hang-timeout 1m --on-hang fail torchrun t.py":                     {Timeout: time.Minute, Action: job.HangFail},
		"run --nnodes 2 --rdzv muster://n0 --run-id j --hang-timeout 9 prog": {Timeout: 9 * time.Second},
		"run --stacks on prog": {Stacks: job.StacksOn},
	} {
		req, err := ask("", nil, strings.Fields(line)...)
		got := req.Job.Hang
		if want.Action == "" && got.Action == job.HangDump {
			got.Action = ""
		}
		if want.Stacks == "" && got.Stacks == job.StacksAuto {
			got.Stacks = ""
		}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", line, req.Job.Hang, err)
		}
		if answers := want.Timeout > 0 || want.Auto || want.Stacks == job.StacksOn; req.Job.Hang.Answers() != answers {
			t.Errorf("%s: answers %v", line, !answers)
		}
	}
	for line, says := range map[string]string{
		"run --hang-timeout x prog":                                                              "hang-timeout",
		"run --hang-timeout 9 --on-hang restart prog":                                            "while --max-restarts is 0",
		"run --on-hang fail prog":                                                                "without --hang-timeout",
		"run --hang-timeout 9 --on-hang kill prog":                                               "dump, exclude, restart, fail",
		"run --hang-timeout 9 --max-restarts 1 --on-hang exclude prog":                           "with exclude on one node",
		"run --nnodes 1:2 --rdzv muster://n0 --run-id j --hang-timeout 9 --on-hang exclude prog": "while --max-restarts is 0",
		"run --hang-timeout 9 --on-hang fail,dump prog":                                          "nothing can follow fail",
		"run --hang-timeout 9 --max-restarts 1 --on-hang restart,fail prog":                      "nothing can follow restart",
		"--hang-timeout 9 horovodrun -np 2 --min-np 1 --host-discovery-script ./d prog":          "elastic horovodrun",
		"run --stacks maybe prog":                                                                "auto, on, off",
	} {
		if _, err := ask("", nil, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A flag whose word is blank says nothing, and is refused.
func TestBlankSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--health-command", " "}, "name a command"},
		{[]string{"--hang-timeout", "9", "--hang-dir", ""}, "name a directory"},
	} {
		_, err := native(nil, "", append(c.args, "prog")...)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.args[len(c.args)-2]) {
			t.Errorf("%q: %v, want %q and the flag's name", c.args, err, c.want)
		}
	}
}
