// Package devicecheck drives the program that tests devices: a Python process for each device of this node, run by the
// user's interpreter with the user's torch, so that what is tested is what will train. A process lives from check to
// check, since importing torch takes longer than most tests; one that hung, died or spoke nonsense is killed with all
// that it started, and the next command has a new one.
//
// A process may be a fork of an interpreter that has run modules of the user's, and inherits what they left there.
// Where such a one fails before it is ready or in a test of this node alone, the program gives up forks, and repeats
// the command once by processes that start as usual: only what those find is a fault.
//
// Each command ends within Config.Budget, whatever the processes do, and what went wrong is a DeviceError that names
// the device, the stage, the step of it and the cause. What the figures mean for a node is decided elsewhere.
package devicecheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/proc"
	script "muster/internal/python/netcheck"
)

// Config says what a program runs and on what.
type Config struct {
	// Tree starts and ends the processes.
	Tree *proc.Tree
	// Fork, when not nil, makes them in Tree another way: by a fork of an interpreter that has imported torch, which
	// runs the Program of the spec. It returns nil where there is none, for which it does not wait longer than ctx.
	// Several goroutines call it.
	Fork func(ctx context.Context, spec proc.Spec) *proc.Process
	// Python is the interpreter's path, as proc.LookPath found it, and options for it.
	Python []string
	// Env returns the environment of the process for a local rank: the worker's, with the tree's marker. For -1 it is
	// that of the process which tests the links between devices, and has to see all of them. LOCAL_RANK and the number
	// of threads are set by the devicecheck.
	Env func(local int) []string
	// Dir is the working directory of the processes. Empty: ours.
	Dir string
	// Scratch is where the program makes a directory for its program, and removes it. Empty: the system's temporary
	// directory.
	Scratch string
	// Devices is how many processes there are, one for each device. 0: the program can do no more than test links.
	Devices int
	// Device is a kind of device as torch calls it: "cuda", "npu", ..., "cpu". Empty: the first kind that torch finds,
	// else the CPU: on a node whose accelerators torch does not find, that is not what should be tested.
	Device string
	// Budget bounds each command, the start of missing processes included, as the deadline of its context does; one
	// that is repeated has it again. Default 120 s. Where it is shorter than importing torch takes, no test passes.
	// Killing what did not answer comes on top, which takes up to 5 s where the kernel holds it.
	Budget time.Duration
	// LinkLimit is how long Switchbox may take for a pair, within the budget. A healthy one takes seconds, most of
	// which are the first use of its devices. Default 30 s.
	LinkLimit time.Duration
	// Sample is about how long a sample of a link's bandwidth takes: shorter ones measure the start of copies. Default
	// 50 ms.
	Sample time.Duration
	// Fake, when not nil, describes links between devices that are not there, for Switchbox to measure.
	Fake *FakeLinks
	// NoTorch has the program find no torch, whatever the interpreter has: a rehearsal.
	NoTorch bool
	// Progress, when not nil, is told what a process does next, in the program's words; local is -1 for the one that
	// tests links. Several goroutines call it.
	Progress func(local int, step string)
	// Log gets a warning for a process that ended idle and for one that does not die. The zero value logs nothing.
	Log zerolog.Logger

	start func(proc.Spec) (*proc.Process, error) // Tree.Start, but in tests
}

// StepText is what Config.Progress is told, for people.
func StepText(local int, step string) string {
	if local < 0 {
		return step
	}
	return fmt.Sprintf("device %d: %s", local, step)
}

// The defaults of Config.
const (
	DefaultBudget    = 120 * time.Second
	DefaultLinkLimit = 30 * time.Second
	DefaultSample    = 50 * time.Millisecond
)

// Program is the processes of one node. Commands given at the same time wait for each other; Close ends the one that
// runs.
type Program struct {
	cfg    Config
	dir    string // of the program
	script string

	ending sync.Mutex
	closed bool
	cancel context.CancelCauseFunc // of the command that runs; nil: none does

	groups atomic.Uint64 // inside the node, so far
	cold   atomic.Bool   // forks were given up

	mu      sync.Mutex // held while a command runs, during which one goroutine for each member may replace it
	members []atomic.Pointer[member]
	// linker is the idle process that tested links, nil for none. It keeps memory of every device: other commands end
	// it.
	linker *member // guarded by mu
}

// ErrClosed is the cause of commands that Close ended.
var ErrClosed = errors.New("the program was closed")

// Open starts the processes and returns while they import torch; the first command waits for them. ctx bounds that
// alone. Close ends them.
func Open(ctx context.Context, cfg Config) (*Program, error) {
	switch {
	case cfg.Tree == nil || cfg.Env == nil || len(cfg.Python) == 0:
		return nil, errors.New("internal error: a program without tree, environment or interpreter")
	case cfg.Devices < 0:
		return nil, fmt.Errorf("cannot test %d devices", cfg.Devices)
	}
	if cfg.Budget <= 0 {
		cfg.Budget = DefaultBudget
	}
	if cfg.LinkLimit <= 0 {
		cfg.LinkLimit = DefaultLinkLimit
	}
	if cfg.Sample <= 0 {
		cfg.Sample = DefaultSample
	}
	if cfg.NoTorch {
		cfg.Fork = nil // torch may be imported there, and would be found
	}
	if cfg.start == nil {
		cfg.start = cfg.Tree.Start
	}
	cfg.Python = slices.Clone(cfg.Python)
	dir, err := os.MkdirTemp(cfg.Scratch, "muster-check-")
	if err != nil {
		return nil, fmt.Errorf("cannot write the check program: %w", err)
	}
	c := &Program{cfg: cfg, dir: dir, members: make([]atomic.Pointer[member], cfg.Devices)}
	if c.script, err = script.Write(dir); err == nil && cfg.NoTorch {
		err = script.HideTorch(dir)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close()) //nolint:contextcheck // whatever became of ctx
	}
	for local := range cfg.Devices {
		m, err := c.start(ctx, local)
		if err != nil {
			return nil, errors.Join(err, c.Close()) //nolint:contextcheck // whatever became of ctx
		}
		c.members[local].Store(m)
	}
	return c, nil
}

// Close kills the processes, with all that they started, and removes their program. It is an error if something does
// not die.
func (c *Program) Close() error {
	c.ending.Lock()
	c.closed = true
	if c.cancel != nil {
		c.cancel(ErrClosed)
	}
	c.ending.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	var members []*member
	for i := range c.members {
		if m := c.members[i].Swap(nil); m != nil {
			members = append(members, m)
			if m.ready {
				m.dismiss()
			}
		}
	}
	if m := c.linker; m != nil {
		c.linker, members = nil, append(members, m)
		m.dismiss()
	}
	// Those that are idle end by themselves. To kill them meanwhile would be to look for them again and again. Those
	// that still import torch hear nothing.
	late := time.NewTimer(leaveLimit)
	defer late.Stop()
	procs := make([]*proc.Process, len(members))
	for i, m := range members {
		procs[i] = m.proc
		if !m.ready {
			continue
		}
		select {
		case <-m.proc.Done():
		case <-late.C:
			late.Reset(0) // for the others, too
		}
	}
	var errs []error
	if len(procs) > 0 {
		errs = append(errs, c.cfg.Tree.Stop(context.Background(), proc.Ladder{}, procs...))
	}
	for _, m := range members {
		errs = append(errs, m.release())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// leaveLimit is how long processes that have nothing more to do may take to end by themselves.
const leaveLimit = time.Second

// PIDs returns the process of each local rank, 0 where there is none at the moment. It waits for a command that runs.
func (c *Program) PIDs() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := make([]int, len(c.members))
	for i := range pids {
		if m := c.members[i].Load(); m != nil {
			pids[i] = m.proc.PID()
		}
	}
	return pids
}

// outcome is what one process made of a command.
type outcome struct {
	hello  hello
	done   answer
	err    *DeviceError
	forked bool // the process was a fork
}

// repeated carries a command out, and again without forks where one of them failed.
func (c *Program) repeated(ctx context.Context, command func() ([]outcome, error)) ([]outcome, error) {
	out, err := command()
	failed := slices.IndexFunc(out, func(o outcome) bool { return o.forked && o.err != nil })
	if err != nil || failed < 0 || ctx.Err() != nil {
		return out, err
	}
	c.mu.Lock()
	c.giveUpForksLocked(ctx, out[failed].err)
	c.mu.Unlock()
	return command()
}

// giveUpForksLocked ends all forks, since what one of them inherited the others did, too, and has processes start as
// usual from now on.
func (c *Program) giveUpForksLocked(ctx context.Context, why error) {
	c.cold.Store(true)
	c.cfg.Log.Warn().Err(why).Msg(
		"the check's processes start as usual: one that was forked from the template has failed, which may be its inheritance")
	for i := range c.members {
		if m := c.members[i].Load(); m != nil && m.forked {
			c.drop(ctx, m)
		}
	}
	if m := c.linker; m != nil && m.forked {
		c.dropLinkerLocked(ctx)
	}
}

// dropLinkerLocked ends the idle process that tested links.
func (c *Program) dropLinkerLocked(ctx context.Context) {
	if m := c.linker; m != nil {
		c.linker = nil
		c.drop(ctx, m)
	}
}

// begin returns the context of a command, which Close ends; done is to be called when the command has ended.
func (c *Program) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	c.ending.Lock()
	defer c.ending.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c.cancel = cancel
	return ctx, func() {
		c.ending.Lock()
		defer c.ending.Unlock()
		c.cancel = nil
		cancel(nil)
	}, nil
}

// deadline is when a command has to be done: when the budget is used up, or so long before ctx ends that the program
// can say itself what it waited for.
func (c *Program) deadline(ctx context.Context) time.Time {
	deadline := time.Now().Add(c.cfg.Budget)
	if end, limited := ctx.Deadline(); limited {
		if end = end.Add(-time.Until(end) / 10); end.Before(deadline) {
			return end
		}
	}
	return deadline
}

// command gives the first members the same command and waits for all of them. The order of each is made when its device
// is known. g is the group in which they do it, nil for none: if one of them cannot say itself that it will not come,
// others say it.
func (c *Program) command(ctx context.Context, stage string, members int, g *Group,
	orderFor func(local int, h hello) order,
) ([]outcome, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.members) == 0 {
		return nil, errors.New("cannot test devices: the program has none")
	}
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	c.dropLinkerLocked(ctx)
	deadline := c.deadline(ctx)
	out := make([]outcome, members)
	var wg sync.WaitGroup
	for local := range members {
		wg.Go(func() {
			out[local] = c.ask(ctx, stage, local, deadline, orderFor)
			if e := out[local].err; e != nil && g != nil && ctx.Err() == nil && !e.told {
				c.Abandon(*g, fmt.Sprintf("rank %d: %s", g.FirstRank+local, e.Text))
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("cannot finish the %s test: %w", stage, context.Cause(ctx))
	}
	return out, nil
}

// Abandon tells the devices that wait in a group that it will not be complete, and why; their commands then end with
// the cause Peer. It may be called while a command runs, and is to be where all processes of another node's program are
// known to have failed: those cannot tell by themselves. A group that sums already is not disturbed.
func (c *Program) Abandon(g Group, why string) {
	o := order{Do: "abandon", Why: why, Group: &orderGroup{Name: g.Name, Store: g.Store}}
	for i := range c.members {
		if m := c.members[i].Load(); m != nil {
			_ = m.write(o) // one that is dead has nothing to be told
		}
	}
}
