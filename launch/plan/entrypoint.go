package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/internal/python"
	"muster/launch/job"
)

// entrypoint is the command with everything looked up: Path is executed with argv Prefix, then per-rank arguments.
type entrypoint struct {
	path   string
	prefix []string
	// name is what a failure summary calls the command: the script or program as the user wrote it, and no secret.
	name string
}

// resolveCommand finds the program to execute, and refuses now what every worker would fail on.
// vars are those whose values are not to be in its name where they come from Secrets.
func resolveCommand(c job.Command, vars []job.Var, dir string, environ []string) (entrypoint, error) {
	if c.Kind == job.Program {
		path, err := proc.LookPath(c.Name, dir, environ)
		if err != nil && isJobFile(c.Name, dir) {
			return entrypoint{}, errhint.Code(errhint.With(errors.New(err.Error()), jobFileHint+shellescape.Quote(c.Name)),
				errhint.CodeOf(err))
		}
		if err != nil {
			return entrypoint{}, err
		}
		if script := scriptOf(c, path); script != "" {
			if err := checkScript(script, dir); err != nil {
				return entrypoint{}, err
			}
		}
		return entrypoint{path: path, prefix: []string{c.Name}, name: c.ShownTitle(vars)}, nil
	}
	interpreter, path, err := findInterpreter(c.Interpreters, dir, environ)
	if err != nil {
		return entrypoint{}, err
	}
	if c.Kind != job.Module {
		if err := checkScript(c.Name, dir); err != nil {
			return entrypoint{}, err
		}
	}
	e := entrypoint{path: path, prefix: []string{interpreter, "-u"}, name: c.ShownTitle(vars)}
	switch c.Kind {
	case job.Module:
		e.prefix = append(e.prefix, "-m", c.Name)
	case job.RunPath:
		e.prefix = append(e.prefix, "-c", python.RunPath, c.StartMethod, c.Name)
	default:
		e.prefix = append(e.prefix, c.Name)
	}
	return e, nil
}

// plainOptions are those of Python that take no word and change nothing of where its script is.
var plainOptions = []string{"-u", "-B", "-E", "-I", "-O", "-OO", "-s", "-S", "-v", "-b", "-q"}

// scriptOf is the script that a command "python train.py" runs, where that can be told for sure; else empty.
func scriptOf(c job.Command, path string) string {
	if !isPython(path) && !isPython(c.Name) {
		return ""
	}
	for _, a := range c.Args {
		switch {
		case slices.Contains(plainOptions, a):
			continue
		case strings.HasSuffix(a, ".py") && !strings.HasPrefix(a, "-") && !strings.Contains(a, "${"):
			return a
		}
		break
	}
	return ""
}

// findInterpreter returns the first of candidates that can be executed, as it was named and as a path.
func findInterpreter(candidates []string, dir string, environ []string) (name, path string, err error) {
	for _, c := range candidates {
		p, lookErr := proc.LookPath(c, dir, environ)
		if lookErr == nil {
			return p, p, nil
		}
		err = lookErr
	}
	if len(candidates) == 1 {
		return "", "", fmt.Errorf("cannot use the Python interpreter %q: %w", candidates[0], err) // the user named it
	}
	return "", "", errhint.Code(errhint.With(fmt.Errorf("cannot find a Python interpreter: tried %s", strings.Join(candidates, ", ")),
		"activate the environment, or name an interpreter by PYTHON_EXEC or MUSTER_PYTHON"), errhint.NotFound)
}

// Within is where a path that counts from dir is.
func Within(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// checkScript reports a script that Python could not run: missing, unreadable, or a directory without __main__.py.
func checkScript(name, dir string) error {
	path := Within(dir, name)
	info, err := os.Stat(path)
	if err != nil {
		return errhint.Code(errhint.With(fmt.Errorf("cannot find the script %q: %w", name, err),
			"give its path relative to the working directory "+strconv.Quote(dir)), errhint.NotFound)
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(path, "__main__.py")); err != nil {
			return errhint.Code(fmt.Errorf("cannot run %q: it is a directory without __main__.py", name), errhint.NotExecuted)
		}
	}
	if err := unix.Access(path, unix.R_OK); err != nil {
		return errhint.Code(fmt.Errorf("cannot read the script %q: %w", name, err), errhint.NotExecuted)
	}
	if isJobFile(name, dir) {
		return errhint.Code(errhint.With(fmt.Errorf("cannot run %q: it is no Python script", name), jobFileHint+shellescape.Quote(name)),
			errhint.NotExecuted)
	}
	return nil
}

// jobFileHint is what to write where a job file stands in the place of a command, in front of its name.
const jobFileHint = "it looks like a job for Kubernetes: muster run -f "

// isJobFile reports whether a file that somebody gave as the command says what a job file says. No Python script does.
func isJobFile(name, dir string) bool {
	if !slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(name))) {
		return false
	}
	path := Within(dir, name)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	const enough = 64 << 10 // comments may stand in front
	head, err := io.ReadAll(io.LimitReader(f, enough))
	return err == nil && bytes.Contains(head, []byte("apiVersion")) && bytes.Contains(head, []byte("kind"))
}

// argv returns the argument vector of one worker.
func (e entrypoint) argv(c job.Command, localRank int) []string {
	argv := append([]string(nil), e.prefix...)
	if c.LocalRankFlag != "" {
		argv = append(argv, c.LocalRankFlag+"="+strconv.Itoa(localRank))
	}
	for _, a := range c.Args {
		if c.Substitute {
			a = python.Substitute(a, map[string]string{"local_rank": strconv.Itoa(localRank)})
		}
		argv = append(argv, a)
	}
	return argv
}

// asleep is what workers do in debug mode where no command was given. It dies of any signal.
const asleep = "while :; do sleep 3600; done"

// debugEntry is what runs in place of the job's command.
func debugEntry(command string, environ []string) (*entrypoint, error) {
	if command == "" {
		command = asleep
		if _, err := proc.LookPath("sleep", "/", environ); err != nil {
			return nil, fmt.Errorf("cannot use --debug-mode: %w", err)
		}
	}
	const shell = "/bin/sh"
	if _, err := proc.LookPath(shell, "/", environ); err != nil {
		return nil, fmt.Errorf("cannot use --debug-mode: %w", err)
	}
	return &entrypoint{path: shell, prefix: []string{"sh", "-c", command}, name: shell}, nil
}
