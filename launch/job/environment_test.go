package job

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/hosts"
)

func TestJobLookup(t *testing.T) {
	job := Job{
		Env: EnvRules{
			Mode: EnvClean, Pass: []string{"P_*"}, Set: []Var{{Name: "S", Value: "$P_1 $HIDDEN", Expand: true}},
			Unset: []string{"U"},
		},
		NodeEnv: []Var{{Name: "N", Value: "n"}},
	}
	for _, name := range []string{"S", "N", "U", "P_1", "HIDDEN", "HOME", "CUDA_VISIBLE_DEVICES"} {
		job.Environ = append(job.Environ, name+"=own "+name)
	}
	find := job.Lookup()
	for name, want := range map[string]string{
		"S": "own P_1 own HIDDEN", "N": "n", "U": "", "P_1": "own P_1", "HIDDEN": "",
		"HOME": "own HOME", "CUDA_VISIBLE_DEVICES": "own CUDA_VISIBLE_DEVICES",
	} {
		if got, ok := find(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, ok, want)
		}
	}
}

func TestRemoteEnviron(t *testing.T) {
	machine := []string{
		"HOME=/home/there", "USER=there", "PATH=/usr/bin:/there/bin", "LD_LIBRARY_PATH=/there/lib", "HOSTNAME=there", "PWD=/home/there",
		"SHLVL=1", "_=/bin/x", "SSH_CONNECTION=a b",
		"TMPDIR=/there/tmp", "CUDA_VISIBLE_DEVICES=7", "ONLY_THERE=1", "LANG=C", "TERM=dumb",
	}
	launcher := []string{
		"HOME=/home/here", "USER=here", "LOGNAME=here", "SHELL=/bin/here", "PATH=/venv/bin:/usr/bin", "LD_LIBRARY_PATH=/here/lib",
		"HOSTNAME=here", "HOST=here", "PWD=/job", "OLDPWD=/", "SHLVL=3",
		"_=/bin/muster", "SSH_AUTH_SOCK=/x", "DISPLAY=:0", "XAUTHORITY=x", "XDG_RUNTIME_DIR=/run/user/0", "DBUS_SESSION_BUS_ADDRESS=x",
		"TMPDIR=/here/tmp", "CUDA_VISIBLE_DEVICES=0",
		"NVIDIA_VISIBLE_DEVICES=all", "SLURM_STEP_ID=0", "SLURM_PROCID=3", "SLURM_JOB_ID=44", "KUBERNETES_SERVICE_HOST=x",
		"BASH_FUNC_f%%=() { :; }", "TERM_PROGRAM=x", "LS_COLORS=x", "MUSTER_ENV=A=secret",
		"RANK=5", "MASTER_ADDR=here", "VIRTUAL_ENV=/venv", "CONDA_PREFIX=/conda", "NCCL_DEBUG=it's \"x\"\n$HOME \xff", "LANG=de",
		"TERM=xterm", "EMPTY=", "AWS_KEY=x", "MY_X=1", "no equals sign",
	}
	// What never crosses, whatever the mode.
	own := []string{"CUDA_VISIBLE_DEVICES=7", "HOME=/home/there", "HOSTNAME=there"}
	for name, c := range map[string]struct {
		rules EnvRules
		want  []string
	}{
		"launcher": {EnvRules{Deny: []string{"AWS_*"}}, slices.Concat(own, []string{
			"CONDA_PREFIX=/conda", "EMPTY=", "LANG=de", "LD_LIBRARY_PATH=/here/lib:/there/lib", "MY_X=1",
			"NCCL_DEBUG=it's \"x\"\n$HOME \xff", "ONLY_THERE=1", "PATH=/venv/bin:/usr/bin:/there/bin",
			"SLURM_JOB_ID=44", "SSH_CONNECTION=a b", "TERM=xterm", "TMPDIR=/there/tmp", "USER=there", "VIRTUAL_ENV=/venv",
		})},
		"launcher that passes more": {EnvRules{
			Mode: EnvLauncher, Pass: []string{"CUDA_*", "DISPLAY", "AWS_*", "MUSTER_*", "RANK"},
			Deny: []string{"AWS_*", "[L-Z]*"},
		}, []string{
			"CONDA_PREFIX=/conda", "CUDA_VISIBLE_DEVICES=0", "DISPLAY=:0", "EMPTY=", "HOME=/home/there", "HOSTNAME=there", "LANG=C",
			"LD_LIBRARY_PATH=/there/lib", "ONLY_THERE=1",
			"PATH=/usr/bin:/there/bin", "SSH_CONNECTION=a b", "TERM=dumb", "TMPDIR=/there/tmp", "USER=there",
		}},
		"inherit": {
			EnvRules{Mode: EnvInherit, Pass: []string{"NCCL_*", "MY_?", "PATH"}, Deny: []string{"NCCL_D*"}},
			slices.Concat(own, []string{
				"LANG=C", "LD_LIBRARY_PATH=/there/lib", "MY_X=1", "ONLY_THERE=1", "PATH=/venv/bin:/usr/bin:/there/bin",
				"SSH_CONNECTION=a b",
				"TERM=dumb", "TMPDIR=/there/tmp", "USER=there",
			}),
		},
		"clean": {EnvRules{Mode: EnvClean, Pass: []string{"MY_*"}}, []string{
			"CUDA_VISIBLE_DEVICES=7", "HOME=/home/there", "LANG=C", "MY_X=1", "PATH=/usr/bin:/there/bin", "TERM=dumb", "USER=there",
		}},
	} {
		slices.Sort(c.want)
		passed := Passed(c.rules, launcher)
		// What leaves the machine is all that the other one needs, and travels as JSON.
		text, err := json.Marshal(Strings(passed))
		if err != nil {
			t.Fatal(err)
		}
		var arrived Strings
		if err := json.Unmarshal(text, &arrived); err != nil {
			t.Fatal(err)
		}
		for _, sent := range [][]string{launcher, arrived} {
			if diff := cmp.Diff(c.want, RemoteEnviron(c.rules, machine, sent)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		for _, kv := range passed {
			if strings.HasPrefix(kv, "MUSTER_") || strings.HasPrefix(kv, "RANK=") || strings.HasPrefix(kv, "HOME=") {
				t.Errorf("%s: %s left the machine", name, kv)
			}
		}
	}
}

func TestJobAsJSON(t *testing.T) {
	codes, err := ParseExitCodes("3,128-255")
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	in := Job{
		Restart: RestartRules{Retryable: codes, Delay: time.Second}, Stop: StopRules{Handled: []syscall.Signal{syscall.SIGTERM}},
		Logs: LogRules{Tee: StreamMap{ByRank: map[int]Streams{3: Both}}}, Sources: Sources{"x": {FromFlag, "-x"}},
		Meeting:   Meeting{IsHost: &yes, StoreAllow: []netip.Prefix{netip.MustParsePrefix("::1/128")}},
		Hosts:     Hosts{Nodes: []Node{{Host: hosts.Host{Name: "n", Slots: 2}, WorkerEnv: [][]Var{{}, {{Name: "x"}}}}}},
		WorkerEnv: [][]Var{nil, {{Name: "y", Value: "\xfe"}}},
		Environ:   []string{"A=\xff\x00x", "B=ä\n\"", ""},
		Command:   Command{Kind: Module, Name: "m", Args: []string{"\xfe", "{"}, LocalRankFlag: "-r"}, RunID: "j", Nodes: Range{1, 2},
		Env: EnvRules{Set: []Var{
			{Name: "N", Value: "\xff", Source: Source{FromFlag, "--env"}, Expand: true},
			{Name: "M", Value: "plain", Own: true},
		}},
	}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Job
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out, cmp.AllowUnexported(ExitCodes{}, codeRange{}),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{`[1]`, `[{"bytes":"*"}]`, `{}`} {
		if err := json.Unmarshal([]byte(`{"Environ":`+bad+`}`), &out); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
