package dialect_test

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dialect"
	"muster/internal/errhint"
	"muster/launch/job"
)

// files reads a command line of a dialect with these files.
func files(files map[string]string, env []string, words ...string) (dialect.Request, error) {
	own, rest, err := dialect.ParseOwn(words)
	if err != nil {
		return dialect.Request{}, err
	}
	return dialect.Read(rest[0],
		dialect.Invocation{Argv0: "muster", Args: rest[1:], Environ: env, Own: own, ReadFile: func(name string) ([]byte, error) {
			if text, ok := files[name]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}})
}

func TestEnvSettings(t *testing.T) {
	env := []string{"HERE=it's \"here\"\n\xff", "MUSTER_ENV=A=variable\nV=v", "MUSTER_DEBUG_MODE=echo $RANK", "MUSTER_VENV=old"}
	conf := "env: [A=file, C=file]\nenv-file: [a.env]\nenv-pass: [NCCL_*, MY_*]\n"
	content := map[string]string{"conf.yaml": conf, "a.env": "FILE=$HOME\nA=a.env\nRAW='$HOME'\n", "b.env": "FILE2=b c\n"}
	own := []string{
		"--config", "conf.yaml", "--env", "A=1", "--env", "B=x=y\n z", "--env=HERE", "--env", "EMPTY=", "--env-file", "b.env",
		"--env-expand",
		"--env-unset", "U,W_*", "--env-mode", "clean", "--conda", "ml",
	}
	native, err := files(content, env, append(append([]string{"run"}, own...), "--", "prog")...)
	if err != nil {
		t.Fatal(err)
	}
	torchrun, err := files(content, env, append(own, "torchrun", "t.py")...)
	if err != nil {
		t.Fatal(err)
	}
	at := func(kind job.SourceKind, name string) job.Source { return job.Source{Kind: kind, Name: name} }
	want := job.EnvRules{
		Mode: job.EnvClean, Pass: []string{"NCCL_*", "MY_*"}, Unset: []string{"U", "W_*"},
		Set: []job.Var{
			{Name: "FILE", Value: "$HOME", Expand: true, Source: at(job.FromConfig, "a.env:1")},
			{Name: "A", Value: "a.env", Expand: true, Source: at(job.FromConfig, "a.env:2")},
			{Name: "RAW", Value: "$HOME", Source: at(job.FromConfig, "a.env:3")},
			{Name: "FILE2", Value: "b c", Expand: true, Source: at(job.FromConfig, "b.env:1")},
			{Name: "A", Value: "file", Expand: true, Source: at(job.FromConfig, "conf.yaml:1")},
			{Name: "C", Value: "file", Expand: true, Source: at(job.FromConfig, "conf.yaml:1")},
			{Name: "A", Value: "variable", Expand: true, Source: at(job.FromVariable, "MUSTER_ENV")},
			{Name: "V", Value: "v", Expand: true, Source: at(job.FromVariable, "MUSTER_ENV")},
			{Name: "A", Value: "1", Expand: true, Source: at(job.FromFlag, "--env")},
			{Name: "B", Value: "x=y\n z", Expand: true, Source: at(job.FromFlag, "--env")},
			{Name: "HERE", Value: "it's \"here\"\n\xff", Source: at(job.FromFlag, "--env")},
			{Name: "EMPTY", Expand: true, Source: at(job.FromFlag, "--env")},
		},
	}
	for _, req := range []dialect.Request{native, torchrun} {
		if diff := cmp.Diff(want, req.Job.Env); diff != "" {
			t.Errorf("%s (-want +got):\n%s", req.Job.Dialect, diff)
		}
		if got := req.Job.Python; got != (job.PythonRules{Conda: "ml"}) { // the command line wins over MUSTER_VENV
			t.Errorf("%s: %+v", req.Job.Dialect, got)
		}
		if got := req.Job.Debug; got != (job.DebugRules{On: true, Command: "echo $RANK"}) {
			t.Errorf("%s: %+v", req.Job.Dialect, got)
		}
	}
	for word, want := range map[string]job.DebugRules{
		"--debug-mode": {On: true}, "--debug-mode=false": {},
		"--debug-mode=nvidia-smi -l": {On: true, Command: "nvidia-smi -l"},
	} {
		for _, words := range [][]string{{"run", word, "prog"}, {word, "torchrun", "t.py"}} {
			if req, err := files(nil, nil, words...); err != nil || req.Job.Debug != want {
				t.Errorf("%q: %+v, %v", words, req.Job.Debug, err)
			}
		}
	}
}

func TestEnvRefused(t *testing.T) {
	content := map[string]string{
		"quote.env": "A=1\n\nB=\"hunter2\n", "rank.env": "A=1\nRANK=hunter2\n", "conf.yaml": "env: [1]\n", "line.env": "# x\nhunter2\n",
		"space.env": "A B=hunter2", "behind.env": "A='x'hunter2",
		"paddle.env": "PADDLE_TRAINER_ID=hunter2\n",
	}
	for _, c := range []struct{ line, want string }{
		{"--env =hunter2", "no name of a variable"},
		{"--env RANK=hunter2", "flag --env RANK: muster tells each worker its own"},
		{"--env NOT_HERE", "NOT_HERE: the variable is not set here"},
		{"--env-file none.env", "none.env: file does not exist"},
		{"--env-file quote.env", `quote.env:3: B: the closing " is missing`},
		{"--env-file rank.env", "rank.env:2: RANK: muster tells"},
		{"--env-file line.env", "line.env:2: the line is not NAME=VALUE"},
		{"--env-file space.env", "space.env:1: what stands in front"},
		{"--env-file behind.env", "behind.env:1: A: there is something behind the closing quote"},
		{"--env-unset MUSTER_AGENT", "leave behind"},
		{"--env-unset ,", "names of variables"},
		{"--env-pass [", `"["`},
		{"--env-profile mxnet", "choose one of paddle, jax, tensorflow"},
		{
			"--env-profile tensorflow --env TF_CONFIG=hunter2",
			"flag --env TF_CONFIG: with --env-profile tensorflow muster tells each worker its own",
		},
		{"--env-profile paddle --env-file paddle.env", "paddle.env:1: PADDLE_TRAINER_ID: with --env-profile paddle"},
		{"--env-mode all", "choose one of launcher, inherit, clean"},
		{"--env-expand", "nothing to expand"},
		{"--venv auto --conda x", "--venv auto and --conda x together"},
		{"--config conf.yaml", "item 1 of the list is no string"},
	} {
		for _, words := range [][]string{
			append(append([]string{"run"}, strings.Fields(c.line)...), "prog"),
			append(strings.Fields(c.line), "torchrun", "t.py"),
		} {
			_, err := files(content, nil, words...)
			if err == nil || errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v; want %q", words, err, c.want)
			} else if strings.Contains(err.Error()+errhint.Of(err), "hunter2") {
				t.Errorf("%q: a value was told: %v", words, err)
			}
		}
	}
}

// No text about a job tells the value of what may be a secret, whichever launcher's way it was given in.
func TestSecretsAreNotShown(t *testing.T) {
	content := map[string]string{"e": "A_SECRET=hunter2\nFOO=hunter2", "h": "localhost slots=1\n"}
	env := []string{"MUSTER_ENV=API_KEY=hunter2", "HF_TOKEN=hunter2", "FOO=hunter2"}
	for line, want := range map[string]string{
		"run --env HF_TOKEN --env=WANDB_API_KEY=hunter2 --env-file=e " +
			"--env URL=https://me:hunter2@host/x --env=NCCL_DEBUG=INFO prog": "env=HF_TOKEN WANDB_API_KEY=(7 characters, not shown) " +
			"URL=(25 characters, not shown) NCCL_DEBUG=INFO\n",
		"run --env GH_PAT=hunter2 --env DB=user=x;password=hunter2 prog": "env=GH_PAT=(7 characters, not shown) " +
			"DB=(23 characters, not shown)\n",
		"--env=FOO=hunter2 torchrun t.py":                                        "env=FOO=(7 characters, not shown)\n",
		"torchrun --rdzv-conf password=hunter2,read_timeout=5 --standalone t.py": "",
		"mpirun -np 1 -x FOO=hunter2 -x NCCL_DEBUG=INFO -x BAR=hunter2 prog": "x=FOO=(7 characters, not shown)\nx=NCCL_DEBUG=INFO\n" +
			"x=BAR=(7 characters, not shown)\n",
		"deepspeed --num_gpus 1 --launcher_args=-x\u00a0FOO=hunter2 t.py": "",
		"--env=FOO=hunter2 horovodrun -np 1 prog":                         "env=FOO=(7 characters, not shown)\n",
		"--env=FOO=hunter2 accelerate launch t.py":                        "env=FOO=(7 characters, not shown)\n",
		"--env=FOO=hunter2 dlrover-run --standalone t.py":                 "env=FOO=(7 characters, not shown)\n",
		"--env=FOO=hunter2 colossalai run --nproc_per_node 1 t.py":        "env=FOO=(7 characters, not shown)\n",
	} {
		words := strings.Fields(line)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "\u00a0", " ")
		}
		req, err := files(content, env, words...)
		if err != nil {
			if strings.Contains(err.Error()+errhint.Of(err), "hunter2") {
				t.Errorf("%s: a value was told: %v", line, err)
			} else if want != "" {
				t.Errorf("%s: %v", line, err)
			}
			continue
		}
		shown, full := "", ""
		for _, s := range req.Settings {
			shown += s.Flag + "=" + s.Value + "\n"
			full += s.Flag + "=" + s.Full + "\n"
		}
		if strings.Contains(shown, "hunter2") || !strings.Contains(shown, want) {
			t.Errorf("%s:\n%s", line, shown)
		}
		if !strings.Contains(full, "hunter2") {
			t.Errorf("%s: --show-values has nothing to show:\n%s", line, full)
		}
	}
}

func TestParseEnvFile(t *testing.T) {
	text := "\ufeff# comment\n\n  export A = 1 \nB=a b # c\nC=a#b\r\nD=\"x\\ty\\\\ \\\"q\\\" \\$HOME \\a\" # behind\nE='it''\n"
	if _, err := dialect.ParseEnvFile("f", []byte(text), false); err == nil || !strings.Contains(err.Error(), "f:7: E") {
		t.Errorf("line 7: %v", err)
	}
	text = strings.Replace(text, "E='it''", "E='two\nlines \\n $X'\n_F.g-1=\nNCCL=LIST=a,b\nexport export=1\nMULTI=\"a\n b\"\nLAST=\xff", 1)
	for _, expand := range []bool{false, true} {
		vars, err := dialect.ParseEnvFile("f", []byte(text), expand)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, v := range vars {
			got[v.Name] = v.Value + "@" + v.Source.Name
			if v.Expand != (expand && v.Name != "E") {
				t.Errorf("%s: expanded %v", v.Name, v.Expand)
			}
		}
		dollar := "$"
		if expand {
			dollar = "$$"
		}
		want := map[string]string{
			"A": "1@f:3", "B": "a b@f:4", "C": "a#b@f:5", "D": "x\ty\\ \"q\" " + dollar + "HOME \\a@f:6", "E": "two\nlines \\n $X@f:7",
			"_F.g-1": "@f:9",
			"NCCL":   "LIST=a,b@f:10", "export": "1@f:11", "MULTI": "a\n b@f:12", "LAST": "\xff@f:14",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("expand %v (-want +got):\n%s", expand, diff)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	for _, seed := range []string{"A=1\n", "export A='x\ny' # z", "A=\"\\", "A='", "=\n", "export\n", "A=\"$X\\$\"\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		vars, err := dialect.ParseEnvFile("f", text, true)
		if err != nil {
			return
		}
		for _, v := range vars {
			if v.Name == "" || strings.ContainsAny(v.Name, "=\x00\n ") || strings.Contains(v.Value, "\x00") {
				t.Errorf("%q: %+v", text, v)
			}
		}
	})
}
