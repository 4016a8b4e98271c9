package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/job"
)

// choosePython makes the workers' environment and command that of the Python that PythonRules name. Nothing of it is
// run, and no start-up file of a shell is read.
func (p *Plan) choosePython() error {
	switch rules := p.Job.Python; {
	case rules.Path != "":
		return p.useInterpreter(rules.Path)
	case rules.Venv != "":
		return p.useVenv(rules.Venv)
	case rules.Conda != "":
		return p.useConda(rules.Conda)
	}
	return nil
}

// useInterpreter runs the command with the interpreter at path: where muster starts Python, and where the command
// begins with one.
func (p *Plan) useInterpreter(path string) error {
	found, err := proc.LookPath(path, p.Dir, p.environ())
	if err != nil {
		return errhint.Code(fmt.Errorf("cannot use --python %s: %w", path, err), errhint.Usage)
	}
	c := &p.Job.Command
	switch {
	case c.Kind != job.Program:
		c.Interpreters = []string{found}
	case isPython(c.Name):
		c.Name = found
	default:
		return errhint.With(errhint.Usagef("cannot use --python %s: the command %q does not begin with Python", path, c.Name),
			"name a script or python as the command, or choose an environment by --venv or --conda, which sets PATH")
	}
	return nil
}

// set gives all workers of this node a variable, and remove takes some away, because of the choice of Python.
func (p *Plan) set(flag, name, value string) {
	source := p.source(flag)
	if source.Kind == job.FromDefault {
		source = job.Source{Kind: job.FromFlag, Name: "--" + flag}
	}
	p.base[name] = job.Var{Name: name, Value: value, Source: source}
}

func (p *Plan) remove(names ...string) {
	for _, name := range names {
		delete(p.base, name)
	}
}

func (p *Plan) prependPath(flag, dir string) {
	path := dir
	if old := p.base["PATH"].Value; old != "" {
		path += ":" + old
	} else {
		path += ":/usr/local/bin:/usr/bin:/bin" // an environment of its own rarely has sh
	}
	p.set(flag, "PATH", path)
}

// pinInterpreter makes Python that muster starts the one in the environment's directory.
func (p *Plan) pinInterpreter(dir string) {
	if c := &p.Job.Command; c.Kind != job.Program {
		c.Interpreters = []string{filepath.Join(dir, "bin/python")}
	}
}

// hasPython reports whether dir is an environment with an interpreter.
func hasPython(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "bin/python"))
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func (p *Plan) useVenv(word string) error {
	tried := []string{Within(p.Dir, word)}
	hint := "make one with python3 -m venv " + shellescape.Quote(word)
	if word == "auto" {
		tried = nil
		for _, name := range []string{".venv", "venv", "env"} {
			tried = append(tried, filepath.Join(p.Dir, name))
		}
		if active := p.base["VIRTUAL_ENV"].Value; filepath.IsAbs(active) {
			tried = append(tried, active)
		}
		hint = "name its directory with --venv DIR"
	}
	i := slices.IndexFunc(tried, hasPython)
	if i < 0 {
		return errhint.With(errhint.Usagef("cannot use --venv %s: there is no bin/python in %s", word, strings.Join(tried, ", ")), hint)
	}
	dir := filepath.Clean(tried[i])
	p.set("venv", "VIRTUAL_ENV", dir)
	p.prependPath("venv", filepath.Join(dir, "bin"))
	p.remove("PYTHONHOME", "VIRTUAL_ENV_PROMPT")
	p.pinInterpreter(dir)
	return nil
}

// condaRoots are where installations of conda and its relatives usually lie, below the home directory and elsewhere.
var (
	condaHomes = []string{"miniforge3", "miniconda3", "anaconda3", "mambaforge", "micromamba", ".local/share/mamba"}
	condaRoots = []string{
		"/opt/conda", "/opt/miniforge3", "/opt/miniconda3", "/opt/anaconda3", "/usr/local/miniforge3",
		"/usr/local/miniconda3", "/usr/local/anaconda3",
	}
)

// condaCandidates are the directories where the environment called word may be, in the order in which conda's own
// settings, its list of environments and habits name them.
func (p *Plan) condaCandidates(word string) []string {
	if strings.Contains(word, "/") {
		return []string{Within(p.Dir, word)}
	}
	value := func(name string) string { return p.base[name].Value }
	var dirs []string
	root := func(dir string) {
		if !filepath.IsAbs(dir) {
			return
		}
		if word == "base" {
			dirs = append(dirs, dir)
		} else {
			dirs = append(dirs, filepath.Join(dir, "envs", word))
		}
	}
	if exe := value("CONDA_EXE"); filepath.IsAbs(exe) {
		root(filepath.Dir(filepath.Dir(exe)))
	}
	root(value("MAMBA_ROOT_PREFIX"))
	for _, name := range []string{"CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"} {
		for dir := range strings.SplitSeq(value(name), ":") {
			if filepath.IsAbs(dir) {
				dirs = append(dirs, filepath.Join(dir, word))
			}
		}
	}
	if home := value("HOME"); filepath.IsAbs(home) {
		dirs = append(dirs, filepath.Join(home, ".conda/envs", word))
		list, _ := os.ReadFile(filepath.Join(home, ".conda/environments.txt")) // most have none
		for line := range strings.Lines(string(list)) {
			if dir := strings.TrimSpace(line); filepath.IsAbs(dir) && filepath.Base(dir) == word {
				dirs = append(dirs, dir)
			}
		}
		for _, name := range condaHomes {
			root(filepath.Join(home, name))
		}
	}
	for _, dir := range condaRoots {
		root(dir)
	}
	return dirs
}

func (p *Plan) useConda(word string) error {
	tried := p.condaCandidates(word)
	i := slices.IndexFunc(tried, func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, "conda-meta"))
		return err == nil && info.IsDir()
	})
	if i < 0 {
		return errhint.With(errhint.Usagef("cannot use --conda %s: there is no conda-meta in %s", word, strings.Join(tried, ", ")),
			"conda env list shows where environments are; --conda takes a directory, too")
	}
	dir := filepath.Clean(tried[i])
	if p.Job.Command.Kind != job.Program && !hasPython(dir) {
		return errhint.With(errhint.Usagef("cannot use --conda %s: there is no bin/python in %s", word, dir), "install python there")
	}
	vars, err := condaVars(dir)
	if err != nil {
		return errhint.Code(fmt.Errorf("cannot use --conda %s: %w", word, err), errhint.Usage)
	}
	p.set("conda", "CONDA_PREFIX", dir)
	p.set("conda", "CONDA_DEFAULT_ENV", word)
	p.set("conda", "CONDA_SHLVL", "1")
	p.prependPath("conda", filepath.Join(dir, "bin"))
	p.remove("PYTHONHOME", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PROMPT_MODIFIER")
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if vars[name] == condaUnset {
			p.remove(name)
		} else {
			p.set("conda", name, vars[name])
		}
	}
	p.pinInterpreter(dir)
	if scripts, _ := filepath.Glob(filepath.Join(dir, "etc/conda/activate.d/*.sh")); len(scripts) > 0 {
		names := make([]string, len(scripts))
		for i, s := range scripts {
			names[i] = filepath.Base(s)
		}
		p.notes = append(p.notes,
			fmt.Sprintf("--conda %s: scripts in etc/conda/activate.d are not run (%s); set what they would with --env", word,
				strings.Join(names, ", ")))
	}
	return nil
}

// condaUnset is what conda env config vars unset leaves as the value of a variable.
const condaUnset = "***unset***"

// condaVars are the variables that conda sets when it activates an environment: those of its packages, and over them
// those of conda env config vars.
func condaVars(dir string) (map[string]string, error) {
	vars := map[string]string{}
	read := func(file string, to any) error {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = json.Unmarshal(content, to)
		}
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", file, err)
		}
		return nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "etc/conda/env_vars.d/*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files { // sorted
		if err := read(file, &vars); err != nil {
			return nil, err
		}
	}
	var state struct {
		Vars map[string]string `json:"env_vars"`
	}
	err = read(filepath.Join(dir, "conda-meta/state"), &state)
	maps.Copy(vars, state.Vars)
	return vars, err
}

// Python is the path of the interpreter that the workers run in, as far as that can be told.
func (p *Plan) Python() string {
	if p.Job.Command.Kind != job.Program || isPython(p.entry.path) {
		return p.entry.path
	}
	for _, name := range []string{"python3", "python"} {
		if path, err := proc.LookPath(name, p.Dir, p.environ()); err == nil {
			return path
		}
	}
	return ""
}
