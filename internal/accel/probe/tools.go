package probe

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"muster/internal/proc"
)

// toolDirs are where vendors' tools lie when they are not on PATH: what container runtimes, WSL and the drivers'
// packages make of it. That of each vendor but NVIDIA is from documentation.
var toolDirs = map[string][]string{
	SMI:         {"/usr/bin", "/usr/local/nvidia/bin", "/run/nvidia/driver/usr/bin", "/usr/lib/wsl/lib"},
	"npu-smi":   {"/usr/local/bin", "/usr/local/sbin"},
	"hccn_tool": {"/usr/local/Ascend/driver/tools"},
	"hl-smi":    {"/usr/bin"},
	"mx-smi":    {"/usr/local/bin", "/opt/maca/bin", "/opt/mxdriver/bin"},
}

// findTool returns the path of a vendor's tool, "" where there is none. Nothing is taken from the working directory.
func (o Options) findTool(name string) string {
	dirs := slices.Concat(filepath.SplitList(o.env("PATH")), toolDirs[name])
	if o.ToolDirs != nil {
		dirs = o.ToolDirs
	}
	for _, dir := range dirs {
		if path := filepath.Join(dir, name); filepath.IsAbs(dir) {
			if _, err := onDisk(path); err == nil {
				return path
			}
		}
	}
	return ""
}

// maxAnswer bounds what a tool may write to stdout, in bytes. It is some times more than one says of 64 devices, and so
// little that to read it needs no deadline.
const maxAnswer = 256 << 10

// confineTool runs a vendor's tool, in English, and reads up to most bytes. One that cannot be killed is the last that
// this process runs.
func (o Options) confineTool(ctx context.Context, path string, args []string, deadline time.Duration, most int) (proc.Confined, error) {
	c, err := proc.Confine(ctx, proc.Confinement{
		Path: path, Args: args, Env: append(o.environment(), "LC_ALL=C"),
		Deadline: deadline, Grace: grace, MaxStdout: most, MaxStderr: maxStderr,
	})
	if err == nil && c.Abandoned != nil {
		left.Store(int64(c.PID))
	}
	return c, err
}

// Answer is what a vendor's tool says when it is asked.
type Answer struct {
	Text string // what it wrote to stdout, of any form, and no longer than maxAnswer; "" where Why is not
	Why  string // why there is nothing to read; "" where the tool ran to its end and found no fault with the question
}

// Tools asks the tools of vendors other than NVIDIA. Whatever a tool does, it is killed when it has taken the timeout,
// for all questions to it together; one that has hung, or that is not there, is not asked again. The same question is
// asked once.
type Tools struct {
	o     Options
	run   func(ctx context.Context, args []string, deadline time.Duration) (proc.Confined, error)
	spent map[string]time.Duration // by tool
	quiet map[string]string        // why a tool is not asked any more
	said  map[string]Answer        // by question
}

// NewTools returns Tools that asks this machine's. They are for one goroutine.
func NewTools(o Options) *Tools {
	return newTools(o, func(ctx context.Context, args []string, deadline time.Duration) (proc.Confined, error) {
		path := o.findTool(args[0])
		if path == "" {
			return proc.Confined{}, errors.New(o.notFound(args[0]))
		}
		return o.confineTool(ctx, path, args, deadline, maxAnswer)
	})
}

// ReplayTools returns Tools that reads what a fake says in the tools' place: the text and exit status of a question, or
// that there is no such tool.
func ReplayTools(o Options, say func(args []string) (text string, status int, ok bool)) *Tools {
	return newTools(o, func(_ context.Context, args []string, _ time.Duration) (proc.Confined, error) {
		text, status, ok := say(args)
		if !ok {
			return proc.Confined{}, fmt.Errorf("the fake has no %s", args[0])
		}
		return proc.Confined{Stdout: []byte(text), Exit: proc.Exit{Code: status}}, nil
	})
}

func newTools(o Options, run func(context.Context, []string, time.Duration) (proc.Confined, error)) *Tools {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout(o.GPUs)
	}
	return &Tools{o: o, run: run, spent: map[string]time.Duration{}, quiet: map[string]string{}, said: map[string]Answer{}}
}

// notFound says where a tool was looked for.
func (o Options) notFound(name string) string {
	if o.ToolDirs != nil {
		return fmt.Sprintf("there is no %s in %s", name, strings.Join(o.ToolDirs, ", "))
	}
	return fmt.Sprintf("there is no %s on PATH, nor in %s", name, strings.Join(toolDirs[name], ", "))
}

// Ask runs a tool with its arguments. Call it while no proc.Tree is open, as Run.
func (t *Tools) Ask(ctx context.Context, tool string, args ...string) Answer {
	args = slices.Concat([]string{tool}, args)
	question := strings.Join(args, " ")
	a, asked := t.said[question]
	if !asked {
		a = t.ask(ctx, args, question)
		t.said[question] = a
	}
	return a
}

func (t *Tools) ask(ctx context.Context, args []string, question string) Answer {
	tool := args[0]
	// Such a reason is of the tool and not of the question, and told of each in the same words.
	never := func(format string, values ...any) Answer {
		t.quiet[tool] = fmt.Sprintf(format, values...)
		return Answer{Why: t.quiet[tool]}
	}
	if why := t.quiet[tool]; why != "" {
		return Answer{Why: why}
	}
	rest := t.o.Timeout - t.spent[tool]
	switch pid := left.Load(); {
	case t.o.Exec == ExecNone:
		return never("%s was not asked: --probe-exec none", tool)
	case pid != 0:
		return never("%s was not asked: %v (pid %d)", tool, ErrAbandoned, pid)
	case rest <= 0:
		return never("%s was not asked any more: it has taken %v", tool, t.o.Timeout)
	}
	begin := time.Now()
	c, err := t.run(ctx, args, rest)
	t.spent[tool] += time.Since(begin)
	switch {
	case err != nil:
		return never("%s cannot be asked: %v", tool, err)
	case c.Canceled:
		return never("%s was stopped: %v", tool, context.Cause(ctx))
	case c.TimedOut && c.Abandoned != nil:
		return never("%s hung for %v; SIGKILL does not end it", tool, rest.Round(time.Millisecond))
	case c.TimedOut:
		return never("%s hung for %v and was killed", tool, rest.Round(time.Millisecond))
	case c.Flooded:
		return Answer{Why: fmt.Sprintf("%s wrote more than %d bytes and was killed", question, maxAnswer)}
	case !c.Lost && !c.Exit.Success():
		complaint := c.Stderr
		if strings.TrimSpace(string(complaint)) == "" {
			complaint = c.Stdout // where most of these tools complain
		}
		return Answer{Why: fmt.Sprintf("%s: %v%s", question, c.Exit, firstLine(complaint))}
	}
	return Answer{Text: string(c.Stdout)}
}
