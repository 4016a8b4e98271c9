package plan

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch/job"
)

// findModules prints which of the modules that its arguments name cannot be imported. Its first argument is the
// directory where imports look first. Nothing of a module is run.
const findModules = `import importlib.util, sys
if sys.path and not sys.path[0]:
    sys.path[0] = sys.argv[1]
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        return name in sys.modules
print("absent", *[name for name in sys.argv[2:] if not there(name)])
`

// CheckWarm refuses modules of --warm that no worker could import and whose names are a slip of the pen from another
// word of --warm. It asks the workers' interpreter where there is such a name, and starts nothing else.
func (p *Plan) CheckWarm(ctx context.Context) error {
	doubted := p.Job.Warm.Doubted
	if len(doubted) == 0 || p.Job.Debug.On {
		return nil
	}
	names := slices.Sorted(maps.Keys(doubted))
	absent, err := p.absentModules(ctx, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		top, _, _ := strings.Cut(name, ".")
		if !slices.Contains(absent, top) {
			continue
		}
		source := p.source("warm")
		if source.Kind == job.FromDefault {
			source.Name = "--warm"
		}
		return errhint.Usagef("cannot use %q of %s: the workers could import no module of that name; did you mean %s?", name, source.Name,
			doubted[name])
	}
	return nil
}

// absentModules returns which of the names' packages cannot be imported here. An interpreter that does not answer
// knows none to be absent: the template will say what is wrong with it.
func (p *Plan) absentModules(ctx context.Context, names []string) ([]string, error) {
	c := proc.Confinement{Env: p.environ(), Deadline: pythonPatience, Grace: time.Second, MaxStdout: 64 << 10, MaxStderr: 64 << 10}
	dir := p.Dir
	if p.warm.Form == "script" {
		script := Within(p.Dir, p.warm.Name)
		if path, err := filepath.EvalSymlinks(script); err == nil {
			script = path
		}
		dir = filepath.Dir(script)
	}
	if len(p.warm.Probe) > 0 { // whether or not there can be a template
		c.Path, c.Args = Within(p.Dir, p.warm.ProbePath), slices.Clone(p.warm.Probe[:len(p.warm.Probe)-1])
	} else { // what is no Python may start one
		path := p.Python()
		if path == "" {
			return names, nil
		}
		c.Path, c.Args = Within(p.Dir, path), []string{filepath.Base(path), "-c"}
	}
	c.Args = append(c.Args, findModules, dir)
	for _, name := range names {
		top, _, _ := strings.Cut(name, ".")
		c.Args = append(c.Args, top)
	}
	done, err := proc.Confine(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s for modules: %w", c.Path, err)
	}
	if done.Canceled {
		return nil, context.Cause(ctx)
	}
	lines := bytes.Split(bytes.TrimSpace(done.Stdout), []byte("\n"))
	words := strings.Fields(string(lines[len(lines)-1]))
	if len(words) == 0 || words[0] != "absent" {
		return nil, nil
	}
	return words[1:], nil
}
