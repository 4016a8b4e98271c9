package hosts

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"muster/internal/proc"
)

// childAgent is an agent on the launcher's own machine.
type childAgent struct {
	process *proc.Process
	stdin   *os.File
	stdout  *os.File
	said    tail
	reading sync.WaitGroup
	closing sync.Once
}

// agentsHere are the agents on the launcher's own machine. The zero value has none.
type agentsHere struct {
	mu  sync.Mutex
	all []*childAgent
}

func (a *agentsHere) add(agent *childAgent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, agent)
}

// end ends them and waits until their processes have ended.
func (a *agentsHere) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, agent := range a.all {
		_ = agent.Close()
	}
	for _, agent := range a.all {
		<-agent.process.Done()
	}
}

// startHere starts an agent on this machine, without ssh.
func (l *launcher) startHere(marker, name string) (agent *childAgent, err error) {
	pipes, err := proc.NewPipes(proc.In, proc.Out, proc.Out)
	if err != nil {
		return nil, fmt.Errorf("cannot talk to an agent: %w", err)
	}
	c := &childAgent{stdin: pipes.Ours[0], stdout: pipes.Ours[1]}
	env := slices.DeleteFunc(slices.Clone(l.config.Environ), func(kv string) bool { // of the session that the launcher is in
		return strings.HasPrefix(kv, sshConnection+"=")
	})
	c.process, err = l.tree.Start(proc.Spec{
		Path: "/proc/self/exe", Args: []string{"muster", AgentCommand}, Env: append(env, marker),
		Files: pipes.Theirs, Label: "the agent of " + name,
	})
	pipes.Settle(err)
	if err != nil {
		return nil, err
	}
	c.reading.Go(func() {
		_, _ = io.Copy(&c.said, pipes.Ours[2])
		_ = pipes.Ours[2].Close()
	})
	l.children.add(c)
	return c, nil
}

func (c *childAgent) Stdin() io.WriteCloser { return c.stdin }
func (c *childAgent) Stdout() io.Reader     { return c.stdout }
func (c *childAgent) Stderr() string        { return c.said.String() }

// Wait waits for the process.
func (c *childAgent) Wait() (int, error) {
	<-c.process.Done()
	c.reading.Wait()
	return c.process.Exit().Status(), nil
}

// closeWait is how long an agent may take to end by itself when its standard input has ended.
const closeWait = lostGrace + 2*time.Second

// Close ends the agent's standard input, and the agent where that is not enough: its guardian sees to the rest.
func (c *childAgent) Close() error {
	c.closing.Do(func() {
		_ = c.stdin.Close()
		go func() {
			select {
			case <-c.process.Done():
			case <-time.After(closeWait):
				_ = c.process.Signal(syscall.SIGKILL) // it may have ended
			}
			c.reading.Wait()
			_ = c.stdout.Close()
		}()
	})
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailKept is how much a tail keeps, in bytes.
const tailKept = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if extra := len(t.text) - tailKept; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
