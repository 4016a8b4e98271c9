package dialect_test

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/cmd/dialect"
	"muster/internal/errhint"
)

// The pages say of every flag what becomes of it.
func TestLauncherPages(t *testing.T) {
	for name, options := range dialect.LauncherOptions() {
		page, err := os.ReadFile("../../docs/compat/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range options {
			found := o.Dest == "help"
			for _, spelling := range o.Spellings {
				found = found || bytes.Contains(page, []byte("`"+spelling+"`")) || bytes.Contains(page, []byte("`"+spelling+" "))
			}
			if !found {
				t.Errorf("%s: --%s is not on the page", name, o.Dest)
			}
		}
	}
}

// The pages of the other launchers name every option, in one of its spellings.
func TestPagesNameEveryOption(t *testing.T) {
	for name, file := range map[string]string{
		"torchrun": "torchrun", "torch.distributed.launch": "torchrun", "dlrover-run": "dlrover", "ft_launcher": "ft_launcher",
		"horovodrun": "horovodrun", "mpirun": "mpirun",
	} {
		page, err := os.ReadFile("../../docs/compat/" + file + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range dialect.DialectOptions()[name] {
			dashes, under := strings.TrimLeft(o.Spelling, "-"), strings.ReplaceAll(strings.TrimLeft(o.Spelling, "-"), "-", "_")
			if !regexp.MustCompile("`-{1,2}(" + regexp.QuoteMeta(dashes) + "|" + regexp.QuoteMeta(under) + ")[` ]").Match(page) {
				t.Errorf("docs/compat/%s.md: %s of %s is not on the page", file, o.Spelling, name)
			}
		}
	}
}

// Words as Python's shlex.split makes them.
func TestShellWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                     nil,
		"  a\tb \n":            {"a", "b"},
		`a"b c"d 'e "f'`:       {"ab cd", `e "f`},
		`"" ''`:                {"", ""},
		`\a "\a\"\\" '\a'`:     {"a", `\a"\`, `\a`},
		`a\ b`:                 {"a b"},
		`-l "user name" -f 32`: {"-l", "user name", "-f", "32"},
	} {
		got, err := dialect.ShellWords(text)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got)\n%s", text, err, diff)
		}
	}
	for _, text := range []string{`"a`, `'`, `a\`} {
		if got, err := dialect.ShellWords(text); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// What pdsh and the ssh below it were to be told is taken or refused, never passed over.
func TestDeepSpeedReach(t *testing.T) {
	read := func(env []string, args ...string) (dialect.Request, error) {
		return dialect.DeepSpeed(dialect.Invocation{
			Args: append(args, "t.py"), Environ: env, ReadFile: func(name string) ([]byte, error) {
				if name != "hosts" {
					return nil, os.ErrNotExist
				}
				return []byte("a slots=1\nb slots=1\n"), nil
			},
		})
	}
	for args, want := range map[string]string{
		"-w a":    "chooses hosts",
		"-x a":    "chooses hosts",
		"-u 5":    "bounds the time",
		"-f x":    "give a number above 0",
		"-f":      "lacks its value",
		"-R rsh":  "hosts are reached by ssh",
		"-o b":    "no meaning here",
		"other":   "no option that has a meaning",
		"--debug": "no option that has a meaning",
		"'":       "not closed",
		"-t 0":    "give seconds above 0",
	} {
		_, err := read(nil, "-H", "hosts", "--launcher_args="+args)
		wantRefused(t, err, want)
	}
	for args, want := range map[string]string{
		"-p x": "from 1 to 65535", "-o A": "Name=value", "-L 1:a:2": "no meaning here", "-p": "lacks its value",
	} {
		_, err := read([]string{"PDSH_SSH_ARGS=" + args}, "-H", "hosts")
		wantRefused(t, err, want, "PDSH_SSH_ARGS")
	}
	req, err := read([]string{"PDSH_SSH_ARGS=-q -p 1 -lme", `PDSH_SSH_ARGS_APPEND=-o "A b" -J jump -4Ai key`}, "-H", "hosts", "--ssh_port",
		"7", "--launcher_args", "-SN -f9 -R ssh")
	if err != nil {
		t.Fatal(err)
	}
	ssh := req.Job.Hosts.SSH
	if ssh.Port != 7 || ssh.User != "me" || ssh.Parallel != 9 || ssh.Identity != "key" ||
		!cmp.Equal(ssh.Options, []string{"A=b", "ProxyJump=jump", "AddressFamily=inet", "ForwardAgent=yes"}) {
		t.Errorf("%+v", ssh)
	}
	_, err = read(nil, "-H", "hosts", "--launcher=slurm", "--launcher_args", "-p gpu")
	wantRefused(t, err, "which muster does not run")
	_, err = read([]string{}, "-H", "hosts", "--ssh_port", "0")
	wantRefused(t, err, "--ssh-port 0")
}

// Words in front of the script and behind it, as click and muster read them.
func TestColossalAIWords(t *testing.T) {
	for line, want := range map[string]string{
		"run":                  "without a script",
		"run --nproc_per_node": "--nproc_per_node without a value",
		"run --nproc_per_node 1 t.py --num_nodes":                                      "--num_nodes without a value",
		"run --nproc_per_node x t.py":                                                  `nproc_per_node x: give a number, auto`,
		"run --nproc_per_node 1 --master_port a t.py":                                  "invalid integer",
		"run --nproc_per_node 1 --master_port 70000 t.py":                              "0 to 65535",
		"run --nproc_per_node 1 --host a:4,b t.py":                                     "have no numbers of workers",
		"run --nproc_per_node 1 --host a,a t.py":                                       "host a was there before",
		"run --nproc_per_node 1 --ssh-port 0 --host a,b t.py":                          "--ssh-port 0",
		"run --nproc_per_node 1 --extra_launch_args a,,b t.py":                         "one comma between",
		"run --nproc_per_node 1 --extra_launch_args rdzv_backend=etcd --host a,b t.py": "where etcd is",
		"run --nproc_per_node 1 --extra_launch_args rdzv_backend=zeus --host a,b t.py": "choose static, c10d",
		"walk":     `unknown command "walk"`,
		"":         "there is no command",
		"run -x":   "unknown flag -x",
		"--host a": `unknown command "--host"`,
	} {
		_, err := dialect.ColossalAI(dialect.Invocation{Args: strings.Fields(line)})
		wantRefused(t, err, want)
	}
	for _, flag := range []string{"--max_restarts", "--max-restarts=2"} {
		_, err := dialect.ColossalAI(dialect.Invocation{Args: []string{"run", flag, "t.py"}})
		if !strings.Contains(errhint.Of(err), "give --extra_launch_args max_restarts=") {
			t.Errorf("%s: %v (%s)", flag, err, errhint.Of(err))
		}
	}
	for line, want := range map[string][]string{
		"--nproc_per_node 1 t.py -momentum=0.9 -Hx --hostfil y": {"-momentum=0.9", "-Hx", "--hostfil", "y"},
		"--nproc-per-node=1 t.py --nproc-per-node 3 -- -H a":    {"--nproc-per-node", "3", "-H", "a"},
		"--nproc_per_node 3 t.py a --nproc_per_node=1 b":        {"a", "b"},
	} {
		req, err := dialect.ColossalRun(dialect.Invocation{Args: strings.Fields(line)})
		if err != nil || !slices.Equal(req.Job.Command.Args, want) || req.Job.Procs != "1" || req.Job.Command.Name != "t.py" {
			t.Errorf("%s: %v, %+v %s", line, err, req.Job.Command, req.Job.Procs)
		}
	}
	if text, ok := errorsAsHelp(func() error {
		_,
			err := dialect.ColossalAI(dialect.Invocation{Args: []string{"--help"}})
		return err
	}()); !ok || text != dialect.Help("colossalai") {
		t.Error("colossalai --help has no help")
	}
}
