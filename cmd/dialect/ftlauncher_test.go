package dialect_test

import (
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/launch/job"
)

// launchFT reads a command line of ft_launcher with a file cfg.yaml.
func launchFT(file, env, line string) (dialect.Request, error) {
	return dialect.FTLauncher(dialect.Invocation{
		Argv0: "ft_launcher", Args: strings.Fields(line), Environ: strings.Fields(env),
		ReadFile: func(name string) ([]byte, error) {
			if name != "cfg.yaml" {
				return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
			}
			return []byte(file), nil
		},
	})
}

// NVRx's time-outs mean in muster what they meant there, from flags, a file and a variable.
func TestFTTimeouts(t *testing.T) {
	otherwise := job.RankMonitor{Warmup: 5, Factor: 5, Signal: syscall.SIGKILL, Every: 5 * time.Second}
	with := func(change func(*job.RankMonitor)) *job.RankMonitor {
		m := otherwise
		change(&m)
		return &m
	}
	const nested = `
model: {name: a}
more:
- 1
- training: &ft
    fault_tolerance:
      initial_rank_heartbeat_timeout: 600
      rank_heartbeat_timeout: null
      rank_section_timeouts: {setup: 60, step: 1.5, free: null}
      rank_out_of_section_timeout: 1e2
      safety_factor: 4
      rank_termination_signal: SIGABRT
      skip_section_response: false
      install_exception_hook: true
      num_warmup_iterations: 9
      workload_check_interval: 2.5
`
	whole := func(m *job.RankMonitor) {
		*m = job.RankMonitor{
			First: 10 * time.Minute, Outside: 100 * time.Second, Warmup: 9, Factor: 4, Signal: syscall.SIGABRT,
			Every: 2500 * time.Millisecond, Answers: true, ExceptionHook: true,
			Sections: []job.SectionLimit{
				{Name: "setup", Limit: time.Minute}, {Name: "step", Limit: 1500 * time.Millisecond}, {Name: "free"},
			},
		}
	}
	for name, c := range map[string]struct {
		file, env, line string
		want            *job.RankMonitor
	}{
		"nothing": {line: "t.py", want: &otherwise},
		"flags": {
			line: "--ft-initial-rank_heartbeat_timeout 90 --ft-rank_heartbeat_timeout=30 --ft-rank-out-of-section-timeout none " +
				"--ft-rank-section-timeouts step:120,ck:null t.py --ft-rank-heartbeat-timeout 3",
			want: with(func(m *job.RankMonitor) {
				m.First, m.Heartbeat = 90*time.Second, 30*time.Second
				m.Sections = []job.SectionLimit{{Name: "step", Limit: 2 * time.Minute}, {Name: "ck"}}
			}),
		},
		"file":     {file: nested, line: "--ft-cfg-path cfg.yaml t.py", want: with(whole)},
		"variable": {file: nested, env: "PET_FT_CFG_PATH=cfg.yaml", line: "t.py", want: with(whole)},
		"flags over the file": {
			file: nested, line: "--ft-cfg-path cfg.yaml --ft-initial-rank-heartbeat-timeout none --ft-rank-termination-signal 15 t.py",
			want: with(func(m *job.RankMonitor) { whole(m); m.First, m.Signal = 0, syscall.SIGTERM }),
		},
		"no limit is one": {line: "--ft-rank-heartbeat-timeout inf t.py", want: &otherwise},
		"switched off":    {env: "NVRX_DISABLE_RANK_MONITORS=1", line: "--ft-rank-heartbeat-timeout 3 t.py"},
	} {
		req, err := launchFT(c.file, c.env, c.line)
		if diff := cmp.Diff(c.want, req.Job.Hang.Monitor); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

// The other flags and keys become settings of muster, or are told by name.
func TestFTMapped(t *testing.T) {
	file := "fault_tolerance: {max_no_progress_cycles: 4, enable_nic_monitor: true, enable_nic_healthcheck: false, " +
		"rank_heartbeat_time_out: 3}"
	req, err := launchFT(file, "", "--nnodes 2:3 --master-addr node0 --ft-cfg-path cfg.yaml --max-restarts 5 --workers-stop-timeout 4.5 "+
		"--ft-node-health-check-endpoint unix:///run/h.sock --ft-log-level DBG --ft-cycle-info-dir /tmp/x "+
		"--ft-restart-policy any-failed t.py")
	if err != nil {
		t.Fatal(err)
	}
	j := &req.Job
	if j.Nodes != (job.Range{Min: 2, Max: 2}) || j.Meeting.Spares != 1 || j.Meeting.Backend != "c10d" ||
		!slices.Equal(j.Meeting.Endpoints, []job.Endpoint{{Host: "node0", Port: 29500}}) {
		t.Errorf("%+v %+v", j.Nodes, j.Meeting)
	}
	if j.Restart.CrashLoop != 3 || j.Stop.Grace != 5*time.Second || j.Health.Socket != "/run/h.sock" || req.LogLevel != "debug" {
		t.Errorf("crash loop %d, grace %v, health %q, level %s", j.Restart.CrashLoop, j.Stop.Grace, j.Health.Socket, req.LogLevel)
	}
	said := strings.Join(j.Warnings, "\n")
	for _, want := range []string{
		"cfg.yaml:1 (enable_nic_monitor: True) has no effect", "--ft-cycle-info-dir /tmp/x has no effect",
		"rank_heartbeat_time_out is no setting of NVRx, and is ignored; did you mean rank_heartbeat_timeout?",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said:\n%s", want, said)
		}
	}
	if strings.Count(said, "\n") != 2 {
		t.Error(said)
	}
	if req, err = launchFT("a: 1", "", "--ft-cfg-path cfg.yaml t.py"); err != nil || len(req.Job.Warnings) != 1 ||
		!strings.Contains(req.Job.Warnings[0], "cfg.yaml has no map fault_tolerance") || !req.Job.Alone() {
		t.Errorf("%v %q", err, req.Job.Warnings)
	}
}

// What cannot be meant is refused before anything starts.
func TestFTWrong(t *testing.T) {
	for line, want := range map[string]string{
		"--ft-rank-heartbeat-timeout soon t.py":                  "--ft-rank-heartbeat-timeout soon: give seconds above 0, or none",
		"--ft-rank-heartbeat-timeout 0 t.py":                     "give seconds above 0, or none",
		"--ft-rank-section-timeouts step t.py":                   "write it as NAME:SECONDS",
		"--ft-rank-section-timeouts step:-1 t.py":                "section step: give seconds above 0",
		"--ft-rank-termination-signal KILL t.py":                 "give a signal, such as SIGKILL",
		"--ft-safety-factor nan t.py":                            "give a number above 0",
		"--ft-skip-section-response perhaps t.py":                "give true or false",
		"--ft-cfg-path none.yaml t.py":                           "cannot read the configuration of NVRx: open none.yaml",
		"--ft-cfg-path cfg.yaml t.py":                            "cfg.yaml:2",
		"--ft-node-health-check-endpoint tcp:1 t.py":             `"tcp:1" is no Unix socket`,
		"--ft-max-no-progress-cycles 1 t.py":                     "give --max-restarts 0",
		"--ft-rank-heartbeat-timeou 3 t.py":                      "did you mean --ft-rank-heartbeat-timeout?",
		"--nnodes 2 t.py":                                        "nothing says where the nodes meet",
		"--ft-rdzv-impl legacy t.py":                             "choose one of barrier",
		"--workers-stop-timeout -3 t.py":                         "--workers-stop-timeout",
		"--ft-rank-heartbeat-timeout 3 --ft-workload-check t.py": "--ft-workload-check",
	} {
		if _, err := launchFT("fault_tolerance:\n  rank_section_timeouts: [1, {a: 2}]", "", line); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
