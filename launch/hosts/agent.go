package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/hostaddr"
	"muster/launch"
	"muster/launch/job"
	"muster/launch/node"
	"muster/launch/plan"
)

// AgentCommand is the command with which a launcher starts muster on the machines of a job.
const AgentCommand = "agent"

// lostGrace is how long an agent takes to end when its launcher is gone. Then it goes, and the guardian kills what is
// left.
const lostGrace = 2 * time.Second

// AgentConfig is what an agent is given by the program that it runs in.
type AgentConfig struct {
	// Stdin and Stdout lead to the launcher.
	Stdin  io.Reader
	Stdout io.Writer
	// Environ is the environment that the process was started in.
	Environ []string
	// Version is that of the program, Hostname what the machine calls itself.
	Version, Hostname string
	// Guardian is the command of the guardian process.
	Guardian []string
	// Here returns what the node needs of this machine, as its part of the job is to see it.
	Here func(Surroundings) node.Here
	// Exit ends the process at once.
	Exit func(status int)
}

// Surroundings are what a node's part of a job finds around it on a machine that its launcher has reached.
type Surroundings struct {
	// Environ is the job's environment there.
	Environ []string
	// Stdin is empty; what is written to Stdout and Stderr goes to the launcher.
	Stdin, Stdout, Stderr *os.File
	// Name is what the launcher calls the node.
	Name string
	// Token is the job's.
	Token []byte
	// LogFormat is the form of what is said when the launcher cannot be asked any more.
	LogFormat string
	// Events takes the node's events for the launcher's file, nil where that has none.
	Events func(line []byte)
	// WholeJob reports whether the launcher has told all agents to end.
	WholeJob func() bool
	// LogsGo says where the launcher takes the workers' log files, empty where they stay.
	LogsGo string
}

// RunAgent does what the launcher at the other end of standard input and output says.
func RunAgent(ctx context.Context, c AgentConfig) error {
	link := openLink(c.Stdin, c.Stdout)
	defer link.Close()
	done := make(chan struct{})
	defer close(done)
	go func() { // whatever waits for a launcher that is gone
		<-link.Lost()
		select {
		case <-done:
		case <-time.After(lostGrace + time.Second):
			c.Exit(errhint.TryAgain)
		}
	}()
	port, err := anyPort(ctx)
	if err != nil {
		return err
	}
	if err := link.Hello(Hello{
		Version: c.Version, Hostname: c.Hostname, Addr: serverAddr(variable(c.Environ, sshConnection)), Own: hostaddr.Outward(),
		Addrs: hostaddr.All(), Port: port, PID: os.Getpid(),
	}); err != nil {
		return fmt.Errorf("cannot speak to the launcher: %w", err)
	}
	order, err := link.Order(ctx)
	if errors.Is(err, errLauncherLost) {
		return nil // it has thought better of it
	}
	if err != nil {
		return err
	}
	result := carryOut(ctx, c, link, order)
	if err := link.Result(result); err != nil {
		return errhint.StatusError(errhint.TryAgain)
	}
	select {
	case <-link.Lost(): // it has all that there is
	case <-time.After(Patience):
	}
	return nil
}

// sshConnection is the variable by which sshd tells of a connection.
const sshConnection = "SSH_CONNECTION"

// serverAddr is the address by which an ssh client has reached this machine: the third word of SSH_CONNECTION.
func serverAddr(connection string) string {
	if words := strings.Fields(connection); len(words) == 4 {
		return words[2]
	}
	return ""
}

// lookup returns what looks a variable up in an environment.
func lookup(environ []string) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		for _, kv := range environ {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

// variable returns the value of a variable in an environment, "" where there is none.
func variable(environ []string, name string) string {
	value, _ := lookup(environ)(name)
	return value
}

// anyPort finds a port that nobody has now.
func anyPort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":0")
	if err != nil {
		return 0, fmt.Errorf("cannot find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// carryOut runs the node's part of a job.
func carryOut(ctx context.Context, c AgentConfig, link *Link, order Order) Result {
	n := &remoteNode{config: c, link: link, order: order}
	err := n.run(ctx)
	r := Result{Report: n.report, Left: n.left, Over: n.over}
	status, told := errors.AsType[errhint.StatusError](err)
	switch {
	case told:
		r.Status = int(status)
	case err != nil:
		r.Status, r.Error, r.Hint = errhint.CodeOf(err), err.Error(), errhint.Of(err)
	}
	return r
}

// remoteNode is a node of a job on a machine that its launcher has reached.
type remoteNode struct {
	config AgentConfig
	link   *Link
	order  Order
	dir    string // of the files that came with the order
	report string
	left   bool // the job goes on without it
	over   bool // the job has ended for all nodes
	// wholeJob says that the launcher has told all agents to end.
	wholeJob atomic.Bool
}

// run is the node from its order to its end.
func (n *remoteNode) run(ctx context.Context) error {
	j := &n.order.Job
	if n.order.Dir != "" {
		if err := os.Chdir(n.order.Dir); err != nil {
			return errhint.With(errhint.Usagef("cannot change to the working directory: %w", err),
				"the machines of a job need the same files at the same places; --remote-dir names another directory")
		}
	}
	here, closeOutput, err := n.here(job.RemoteEnviron(j.Env, n.config.Environ, n.order.Environ))
	if err != nil {
		return err
	}
	defer closeOutput()
	level, err := zerolog.ParseLevel(n.order.LogLevel)
	if err != nil {
		return errhint.Usagef("--log-level %q: %w", n.order.LogLevel, err)
	}
	log := zerolog.New(n.link.Log()).Level(level).With().Timestamp().Str("agent", n.order.Name).Logger()
	ctx, in := launch.WatchSignals(ctx, j.Stop.Handled, j.Checkpoint.Signal)
	defer in.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	over := make(chan struct{})
	var listening sync.WaitGroup
	defer listening.Wait()
	defer close(over)
	listening.Go(func() {
		for {
			select {
			case s := <-n.link.Signals():
				if slices.Contains(j.Stop.Handled, s) {
					n.wholeJob.Store(true) // the launcher tells all
				}
				in.Deliver(s, over)
			case <-n.link.Lost():
				stop(fmt.Errorf("%w", n.link.Why()))
				select {
				case <-over:
				case <-time.After(lostGrace):
					n.config.Exit(errhint.TryAgain) // and the guardian, which lives as long as this process, kills the workers
				}
				return
			case <-over:
				return
			}
		}
	})
	defer func() { _ = os.RemoveAll(n.dir) }() // nothing while it has no name
	if err := n.unpack(); err != nil {
		return err
	}
	vars, err := ifaceOf(ctx, n.order.Addr, n.order.Interfaces)
	if err != nil {
		return err
	}
	j.NodeEnv = append(j.NodeEnv, vars...)
	if n.order.Processes {
		return n.processes(ctx, here, in, log)
	}
	return n.job(ctx, here, in, log)
}

// job runs an agent as it would run without a launcher, but that it waits for the launcher before workers start.
func (n *remoteNode) job(ctx context.Context, here node.Here, in *launch.Interrupts, log zerolog.Logger) error {
	plan, err := n.ready(ctx, here, log)
	if err != nil {
		return err
	}
	agent, err := node.Meet(ctx, plan, here, in, log)
	if err != nil {
		return node.Compat(&plan.Job, err, here.PrintError)
	}
	telling, told := context.WithCancel(context.WithoutCancel(ctx))
	var status sync.WaitGroup
	status.Go(func() { n.tellStatus(telling, agent.Steering) })
	status.Go(func() {
		for {
			select {
			case m := <-n.link.Asks():
				if n.link.Answer(answerTo(telling, agent.Steering, m)) != nil {
					return // the launcher is lost, which is met elsewhere
				}
			case <-telling.Done():
				return
			}
		}
	})
	n.link.Accept(agent.Steering.Tunnel)
	result, err := node.Run(ctx, agent, here)
	n.link.Accept(nil)
	told()
	status.Wait()
	n.report, n.left, n.over = result.Report, result.Left, result.Over
	if n.order.Collect {
		n.collect(result.LogDir, plan.Job.Logs.Dir == "", log)
	}
	return err
}

// answerTo does what somebody has asked the launcher for.
func answerTo(ctx context.Context, s *launch.Steering, m Ask) Answer {
	a := Answer{ID: m.ID}
	var err error
	if m.InRound {
		err = s.InRound()
	}
	switch {
	case err != nil:
	case m.Look:
		s.LookedAt(ctx)
	default:
		a.Message, err = s.Do(ctx, m.Request)
	}
	if err != nil {
		a.Error, a.Hint, a.Status = err.Error(), errhint.Of(err), errhint.CodeOf(err)
	}
	return a
}

// ready looks up what the job leaves open on this machine, tells the launcher, and waits until workers may be started.
func (n *remoteNode) ready(ctx context.Context, here node.Here, log zerolog.Logger) (*plan.Plan, error) {
	var p *plan.Plan
	var r Ready
	var err error
	if n.order.Preflight {
		p, r.Preflight, err = node.Preflight(ctx, n.order.Job, here, log)
	} else {
		p, err = node.Plan(ctx, n.order.Job, here, log)
	}
	if err != nil && r.Preflight == nil {
		return nil, err
	}
	if err := n.link.Ready(r); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, err // which the launcher has in the preflight
	}
	p.Scratch = n.dir
	return p, node.Stopped(n.link.Go(ctx))
}

// here is the machine as the node's part of the job sees it: its environment is that of the job, and what it prints
// goes to the launcher. The returned function waits until the launcher has it.
func (n *remoteNode) here(environ []string) (node.Here, func(), error) {
	n.order.Job.Environ = environ
	a := Surroundings{Environ: environ, LogFormat: n.order.LogFormat, Token: n.order.Token, Name: n.order.Name, WholeJob: n.wholeJob.Load}
	if n.order.Collect {
		a.LogsGo = "in the launcher's --collect-logs directory"
	}
	if n.order.Events {
		a.Events = func(line []byte) { _ = n.link.Event(line) } // a launcher that is lost is met elsewhere
	}
	var err error
	if a.Stdin, err = os.Open(os.DevNull); err != nil {
		return nil, nil, err
	}
	closers := []io.Closer{a.Stdin}
	var pumps sync.WaitGroup
	for _, s := range []struct {
		file **os.File
		to   io.Writer
	}{{&a.Stdout, n.link.Stdout()}, {&a.Stderr, n.link.Stderr()}} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		*s.file = w
		closers = append(closers, w)
		pumps.Go(func() {
			defer func() { _ = r.Close() }()
			if _, err := io.Copy(s.to, r); err != nil {
				_, _ = io.Copy(io.Discard, r) // the launcher is gone: nobody waits for what nobody reads
			}
		})
	}
	return n.config.Here(a), func() {
		for _, c := range closers {
			_ = c.Close()
		}
		pumps.Wait()
	}, nil
}
