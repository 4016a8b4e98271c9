package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/sys/unix"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/launch/job"
	"muster/launch/output"
	"muster/launch/plan"
	"muster/launch/rundir"
)

// debugDir is where in a run directory the ranks of a debug job are described.
const debugDir = "debug"

// DebugRank is a rank of a debug job on this machine, as it can be entered.
type DebugRank struct {
	RunID string      `json:"run_id"`
	Dir   string      `json:"dir"` // the working directory
	Env   job.Strings `json:"env"`
}

// tellDebug writes what a person needs to enter a worker that is about to start: a file for shells among the logs, or
// in the run directory where there are none, and one for FindDebugRank.
func (a *Agent) tellDebug(logs *output.Attempt, w plan.Worker) error {
	if !a.Plan.Job.Debug.On {
		return nil
	}
	parent := logs.Path
	if _, err := durable.Ours(parent); parent == "" || err != nil { // a person has a shell read it: others must not replace it
		parent = a.Plan.RunDir
	}
	env, err := a.writeDebug(parent, w)
	if err != nil {
		return err
	}
	if !slices.Contains(a.debugDirs, env) { // told once for an attempt, and removed at the end: all secrets of the workers are in it
		a.debugDirs = append(a.debugDirs, env)
		if err := a.tree.RemoveOnDeath(env); err != nil {
			return err
		}
		ways := enter(a.Plan.RunDir, env, w, a.Plan.CommandOf(w.LocalRank))
		a.Log.Warn().Str("env", env).Str("run_dir", a.Plan.RunDir).Str("try", ways[0]).Str("or", ways[1]).
			Msg("debug mode: each rank can be entered")
	}
	return nil
}

// writeDebug writes what a person needs to enter a worker: a file for shells in the returned directory in parent, and
// one for FindDebugRank.
func (a *Agent) writeDebug(parent string, w plan.Worker) (string, error) {
	text, err := json.Marshal(DebugRank{RunID: a.Plan.RunID, Dir: w.Dir, Env: w.Env.Strings()})
	if err != nil {
		return "", err
	}
	env := filepath.Join(parent, "env")
	script := append(exportScript(w.Env), commandScript(a.Plan.CommandOf(w.LocalRank), w.Env)...)
	for _, f := range []struct {
		dir  string
		text []byte
	}{{env, script}, {filepath.Join(a.Plan.RunDir, debugDir), text}} {
		if err = os.MkdirAll(f.dir, 0o700); err == nil {
			err = durable.Replace(filepath.Join(f.dir, debugName(w.Rank)), f.text, 0o600)
		}
		if err != nil {
			return "", fmt.Errorf("cannot write the environment of rank %d for --debug-mode: %w", w.Rank, err)
		}
	}
	return env, nil
}

// debugName is the name of the files that describe a rank.
func debugName(rank int) string { return "rank" + strconv.Itoa(rank) }

// enter returns two commands that run argv, the own command of a worker, in its place, as they may be shown.
func enter(runDir, env string, w plan.Worker, argv []string) []string {
	script := shellescape.Quote(filepath.Join(env, debugName(w.Rank)))
	command := shellescape.QuoteCommand(argv)
	inExec := command
	if !pasted(argv, w.Env) {
		command = `"$@"`
		inExec = "sh -c " + shellescape.Quote(". "+script+" && "+command)
	}
	return []string{
		"(cd " + shellescape.Quote(w.Dir) + " && . " + script + " && " + command + ")",
		fmt.Sprintf("muster exec --rank %d --dir %s -- %s", w.Rank, shellescape.Quote(runDir), inExec),
	}
}

// maxPasted is the length in bytes up to which a command is shown in a log, which cuts what is too long.
const maxPasted = 2000

// pasted reports whether a command that a log shows is what was meant when it is pasted into a shell: a log shows line
// breaks and other control characters as something else, leaves out what may be secret, and cuts what is too long.
func pasted(argv []string, env plan.Env) bool {
	command := shellescape.QuoteCommand(argv)
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	return len(command) <= maxPasted && utf8.ValidString(command) && !strings.ContainsFunc(command, odd) &&
		slices.Equal(job.ShownArgsBut(argv, env), argv)
}

// commandScript makes the worker's own command the arguments of a shell that reads it, where the command cannot be pasted.
func commandScript(argv []string, env plan.Env) []byte {
	if pasted(argv, env) {
		return nil
	}
	return []byte("set -- " + shellescape.QuoteCommand(argv) + "\n")
}

// clearDebug forgets the ranks of the group before: the next one may have others.
func (a *Agent) clearDebug() error {
	if !a.Plan.Job.Debug.On {
		return nil
	}
	return os.RemoveAll(filepath.Join(a.Plan.RunDir, debugDir))
}

// forgetDebug removes what tellDebug wrote outside of the run directory.
func (a *Agent) forgetDebug() error {
	var errs []error
	for _, dir := range a.debugDirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// exportScript is the environment as a shell reads it with its command ".".
func exportScript(e plan.Env) []byte {
	var b strings.Builder
	for _, v := range e {
		if shellName(v.Name) {
			b.WriteString("export " + v.Name + "='" + strings.ReplaceAll(v.Value, "'", `'\''`) + "'\n")
		}
	}
	return []byte(b.String())
}

// shellName reports whether a shell can set a variable of this name. There are others, such as BASH_FUNC_x%%.
func shellName(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// debugFiles reads what the agent of a job that runs has written of its ranks, by the names of the files; none where it
// has ended. The directory has to be ours: what is read there is executed.
func debugFiles(dir string) (map[string][]byte, error) {
	d, err := durable.OpenOwn(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	if unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return nil, nil // its agent has ended
	}
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(d.Fd()))) // this directory, whatever the path leads to by now
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	list, err := fs.ReadDir(root.FS(), debugDir)
	if err != nil {
		return nil, nil // no debug job, or it has just ended
	}
	files := map[string][]byte{}
	for _, entry := range list {
		if !strings.HasPrefix(entry.Name(), "rank") || !entry.Type().IsRegular() {
			continue
		}
		if text, err := root.ReadFile(filepath.Join(debugDir, entry.Name())); err == nil { // else the job has just ended
			files[entry.Name()] = text
		}
	}
	return files, nil
}

// FindDebugRank finds a rank of a debug job that runs on this machine: of the job with that run directory or run id, or
// of the only one there is where both are empty.
func FindDebugRank(m plan.Machine, dir, runID string, rank int) (DebugRank, error) {
	dirs := []string{dir}
	if dir == "" {
		places := rundir.FindPlaces(m.RuntimeDir, m.TempDir)
		parents := places.Safe
		if len(parents) == 0 {
			parents = []string{places.Parent}
		}
		dirs = nil
		for _, parent := range parents {
			more, err := rundir.List(parent)
			if err != nil {
				return DebugRank{}, err
			}
			dirs = append(dirs, more...)
		}
	}
	var found []DebugRank
	var places, ranks []string
	for _, in := range dirs {
		files, err := debugFiles(in)
		if err != nil && dir != "" {
			return DebugRank{}, errhint.Code(fmt.Errorf("cannot use the run directory %s: %w", in, err), errhint.Usage)
		}
		for name, text := range files { // a directory that is not ours is nobody's job
			var r DebugRank
			if err := json.Unmarshal(text, &r); err != nil {
				return DebugRank{}, fmt.Errorf("cannot read %s of %s: %w", name, in, err)
			}
			dir := in
			switch number := strings.TrimPrefix(name, "rank"); {
			case runID != "" && r.RunID != runID:
			case number != strconv.Itoa(rank):
				ranks = append(ranks, number)
			default:
				found, places = append(found, r), append(places, dir+" ("+r.RunID+")")
			}
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return DebugRank{}, errhint.With(errhint.Usagef("there are %d debug jobs with a rank %d here: %s", len(found), rank,
			strings.Join(places, ", ")), "choose one with --dir")
	case len(ranks) > 0:
		slices.Sort(ranks)
		return DebugRank{},
			errhint.Usagef("there is no rank %d of a debug job on this machine, only %s", rank, strings.Join(slices.Compact(ranks), ", "))
	}
	where := rundir.FindPlaces(m.RuntimeDir, m.TempDir).Parent
	if dir != "" {
		where = dir
	}
	return DebugRank{}, errhint.With(errhint.Usagef("no debug job runs here: nothing was found in %s", where),
		"start one with muster --debug-mode, as the same user with the same XDG_RUNTIME_DIR and TMPDIR; its log names the directory "+
			"for --dir")
}
