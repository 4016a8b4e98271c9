package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
)

const groupEnv = "Environment and Python of the workers"

// several stands between the words of a setting that counts each word given. No word can hold it.
const several = "\x00"

// envSettings are read by settleEnv, because some need files and the environment.
func envSettings(w *ownWords) []option {
	later := func(*Request, string) error { return nil }
	return []option{
		{
			name: "env", word: &w.Env, frequent: true, arg: "NAME[=VALUE]", separator: several, group: groupEnv, anywhere: true,
			use: always,
			help: "Set a variable for all workers on all nodes, byte for byte; without a value the one that muster has. May be given " +
				"again; in a variable, one on each line.",
			set: later,
		},
		{
			name: "env-file", word: &w.EnvFile, arg: "FILE", separator: several, group: groupEnv, anywhere: true, use: always,
			help: "Set the variables of FILE, NAME=VALUE on each line, with quotes as in dotenv files. May be given again; --env wins.",
			set:  later,
		},
		{
			name: "env-expand", word: &w.EnvExpand, kind: kindFlag, def: "false", group: groupEnv, anywhere: true, use: use{setsEnv},
			help: "Replace $NAME and ${NAME} in values of --env and --env-file on each node; $$ is a dollar sign, and what stands in " +
				"single quotes in a file stays.",
			set: checkSwitch,
		},
		{
			name: "env-unset", word: &w.EnvUnset, kind: kindList, separator: ",", arg: "NAMES", group: groupEnv, anywhere: true,
			use:  always,
			help: "Variables that workers do not get from anywhere, with commas between; * stands for any letters.",
			set: func(r *Request, text string) error {
				var err error
				r.Job.Env.Unset, err = patterns(text)
				if slices.Contains(r.Job.Env.Unset, "MUSTER_AGENT") {
					return errors.New("muster finds what workers leave behind by MUSTER_AGENT")
				}
				return err
			},
		},
		{
			name: "env-profile", word: &w.EnvProfile, arg: strings.Join(job.EnvProfiles(), "|"), group: groupEnv, anywhere: true,
			use: use{byAgents},
			help: "Tell workers of each other in the variables of another framework, too: PADDLE_TRAINER_ID, PADDLE_TRAINER_ENDPOINTS " +
				"and others (paddle), JAX_COORDINATOR_ADDRESS and what jax.distributed.initialize() looks for (jax), TF_CONFIG " +
				"(tensorflow). The nodes agree on the ports when a round starts.",
			set: func(r *Request, text string) error {
				r.Job.Env.Profile = job.EnvProfile(text)
				return oneOf(text, job.EnvProfiles()...)
			},
		},
		{
			name: "env-mode", word: &w.EnvMode, arg: "launcher|inherit|clean", def: string(job.EnvLauncher), group: groupEnv,
			anywhere: true,
			use:      use{travels},
			help: "What workers on other machines inherit: the machine's environment and over it muster's own, less what belongs to " +
				"this machine (launcher); the machine's alone (inherit); or no more than HOME, LANG, LOGNAME, PATH, SHELL, TERM, TZ and " +
				"USER, here too (clean).",
			set: func(r *Request, text string) error {
				r.Job.Env.Mode = job.EnvMode(text)
				return oneOf(text, string(job.EnvLauncher), string(job.EnvInherit), string(job.EnvClean))
			},
		},
		{
			name: "env-pass", word: &w.EnvPass, kind: kindList, separator: ",", arg: "NAMES", group: groupEnv, anywhere: true,
			use:  use{travels},
			help: "Variables of muster's own environment that workers get in every --env-mode, as in 'NCCL_*,MY_*'.",
			set: func(r *Request, text string) (err error) {
				r.Job.Env.Pass, err = patterns(text)
				return err
			},
		},
		{
			name: "env-deny", word: &w.EnvDeny, kind: kindList, separator: ",", arg: "NAMES", group: groupEnv, anywhere: true,
			use:  use{onHosts},
			help: "Variables of muster's own environment that do not go to other machines, beside those that describe this one.",
			set: func(r *Request, text string) (err error) {
				r.Job.Env.Deny, err = patterns(text)
				return err
			},
		},
		{
			name: "python", word: &w.Python, arg: "PATH", group: groupEnv, anywhere: true,
			use:  use{strongest("--venv or --conda", &w.Python, &w.Venv, &w.Conda)},
			help: "Interpreter that runs the script, or stands for python where the command begins with that.",
			set:  later,
		},
		{
			name: "venv", word: &w.Venv, arg: "DIR|auto", group: groupEnv, anywhere: true,
			use: use{strongest("--python or --conda", &w.Venv, &w.Python, &w.Conda)},
			help: "Virtual environment of the workers; no start-up file of a shell is read. auto: .venv, venv or env in the working " +
				"directory, or the one that is active.",
			set: later,
		},
		{
			name: "conda", word: &w.Conda, arg: "NAME|DIR", group: groupEnv, anywhere: true,
			use:  use{strongest("--python or --venv", &w.Conda, &w.Python, &w.Venv)},
			help: "Conda environment of the workers. Its variables are set; scripts in its activate.d are not run.",
			set:  later,
		},
		{
			name: "debug-mode", word: &w.DebugMode, frequent: true, arg: "[=COMMAND]", kind: kindOptional, group: groupEnv, anywhere: true,
			use: always,
			help: "Prepare everything as for the job, and let COMMAND, or sleep, run in the workers' place. Each worker's environment " +
				"lies beside its logs; muster exec --rank N -- COMMAND enters one.",
			set: func(r *Request, text string) error {
				on, err := parseSwitch(text)
				r.Job.Debug = job.DebugRules{On: on || err != nil}
				if err != nil {
					r.Job.Debug.Command = text
				}
				return nil
			},
		},
	}
}

// patterns reads names of variables with commas between.
func patterns(text string) ([]string, error) {
	var list []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			list = append(list, item)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("give names of variables with commas between")
	}
	return list, job.CheckPatterns(list)
}

// settleEnv reads what the settings say of the workers' variables and their Python.
func settleEnv(r *Request, inv Invocation, words *ownWords, wrong *problems) {
	expand := words.EnvExpand.switched()
	for _, word := range words.EnvFile.pieces() {
		list, err := readEnvFile(word.text, inv.ReadFile, expand)
		if err != nil {
			wrong.add(err)
			continue
		}
		for _, v := range list {
			if err := r.ownVariable(v.Source.Name+": "+v.Name, v.Name); err != nil {
				wrong.add(err)
			}
		}
		r.Job.Env.Set = append(r.Job.Env.Set, list...)
	}
	env := newEnviron(inv.Environ)
	for _, word := range words.Env.pieces() {
		name, value, given := strings.Cut(word.text, "=")
		v := job.Var{Name: name, Value: value, Source: word.source, Expand: expand && given}
		shown := word.source.String() + " " + name
		switch _, known := env[name]; {
		case name == "" || strings.ContainsAny(name, " \t\n"):
			wrong.add(fmt.Errorf("cannot use %s: there is no name of a variable in front of the value", word.source))
			continue
		case r.ownVariable(shown, name) != nil:
			wrong.add(r.ownVariable(shown, name))
			continue
		case !given && !known:
			wrong.add(errhint.With(fmt.Errorf("cannot use %s: the variable is not set here", shown),
				"give its value, as in --env "+name+"=VALUE"))
			continue
		case !given:
			v.Value = env[name]
		}
		r.Job.Env.Set = append(r.Job.Env.Set, v)
	}
	if word := words.EnvExpand; expand && word.source.Kind == job.FromFlag && len(r.Job.Env.Set) == 0 {
		wrong.add(errors.New("cannot use --env-expand without --env or --env-file: there is nothing to expand"))
	}
	settlePython(r, words, wrong)
}

// ownVariable refuses a variable that muster itself tells each worker.
func (r *Request) ownVariable(what, name string) error {
	switch profile := r.Job.Env.Profile; {
	case job.TellsWorkers(name):
		return errhint.With(fmt.Errorf("cannot use %s: muster tells each worker its own", what), "leave "+name+" out")
	case profile.Tells(name):
		return errhint.With(fmt.Errorf("cannot use %s: with --env-profile %s muster tells each worker its own", what, profile),
			"leave "+name+" out, or --env-profile")
	}
	return nil
}

func readEnvFile(file string, readFile func(string) ([]byte, error), expand bool) ([]job.Var, error) {
	if readFile == nil {
		return nil, fmt.Errorf("cannot read %s: no files can be read here", file)
	}
	content, err := readFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the variables of --env-file: %w", err)
	}
	return ParseEnvFile(file, content, expand)
}

// settlePython takes of --python, --venv and --conda the one that was given in the strongest place.
func settlePython(r *Request, words *ownWords, wrong *problems) {
	rules, chosen := &r.Job.Python, value{}
	var to *string
	for _, way := range []struct {
		word value
		to   *string
	}{{words.Python, &rules.Path}, {words.Venv, &rules.Venv}, {words.Conda, &rules.Conda}} {
		switch word := way.word; {
		case !word.given:
		case !chosen.given || word.source.Kind > chosen.source.Kind:
			chosen, to = word, way.to
		case word.source.Kind == chosen.source.Kind:
			wrong.add(fmt.Errorf("cannot use %s and %s together: choose one Python", chosen.written(), word.written()))
			return
		}
	}
	if to != nil {
		*to = chosen.text
	}
}
