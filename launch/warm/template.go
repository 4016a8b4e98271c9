package warm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"muster/internal/printable"
	"muster/internal/proc"
)

// Template is one template process, from its start until it can fork workers.
type Template struct {
	tree    *proc.Tree
	proc    *proc.Template
	end     []byte // what it prints last
	out     printed
	until   string   // the line of the script that ends its imports
	modules int      // that were imported
	learned int      // imports that workers made late, and that it has made
	output  []string // what each worker is let go with: it prints it again
	reads   []*os.File
	wg      sync.WaitGroup // readers of them

	mu     sync.Mutex // held while the process is asked for something, once it is ready
	spares []*proc.Spare
}

// refusal is why a template cannot be used.
type refusal struct {
	Reason, Hint string
	// Step is the import that is to blame, counted from 0; -1: none. Module is its index among the modules that were
	// named; -1: the script's.
	Step, Module int
	// Label is that import in words.
	Label string
	// Learned is the file of what workers imported late, where that is to blame; Step and Module are -1 then.
	Learned string
}

func (r *refusal) Error() string {
	if r.Label != "" {
		return fmt.Sprintf("%q %s", r.Label, r.Reason)
	}
	return r.Reason
}

// startTemplate starts the process and hears its greeting. order is what it is to do.
func startTemplate(ctx context.Context, tree *proc.Tree, spec proc.Spec, order []string) (t *Template, err error) {
	t = &Template{tree: tree, end: []byte("muster-" + rand.Text())}
	var theirs []*os.File
	for i := range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			for _, w := range theirs {
				_ = w.Close()
			}
			t.drain()
			return nil, fmt.Errorf("cannot read what a template prints: %w", err)
		}
		theirs, t.reads = append(theirs, w), append(t.reads, r)
		t.wg.Go(func() { t.out.read(r, strconv.Itoa(i+1), t.end) })
	}
	spec.Files = append(slices.Clone(spec.Files), theirs...)
	t.proc, err = tree.StartTemplate(spec)
	for _, w := range theirs {
		_ = w.Close()
	}
	if err != nil {
		t.drain()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = t.proc.Kill() })
	defer stop()
	if err = t.greet(order); err != nil {
		err = errors.Join(err, t.Close())
	}
	return t, err
}

// helloLimit is how long an interpreter may take to its first word. One that is found on a sleeping file server takes
// long; one that does not know us says nothing at all.
const helloLimit = 30 * time.Second

// greet makes sure that the process is an interpreter that will not run the script, and gives it its order.
func (t *Template) greet(order []string) error {
	hello, err := t.proc.Receive(time.Now().Add(helloLimit))
	switch {
	case errors.Is(err, io.EOF):
		<-t.proc.Done()
		return &refusal{
			Reason: fmt.Sprintf("the interpreter %s%s", t.proc.Exit(), t.lastWords()), Step: -1, Module: -1,
			Hint: "it must read PYTHONPATH and import site: options -E, -I and -S prevent a warm start",
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{Reason: fmt.Sprintf("the interpreter said nothing for %v", helloLimit), Step: -1, Module: -1}
	case err != nil:
		return err
	case len(hello) != 4 || hello[0] != "hello":
		return &refusal{Reason: fmt.Sprintf("the interpreter said %q", hello), Step: -1, Module: -1}
	case hello[1] != strconv.Itoa(t.proc.PID()):
		return &refusal{
			Reason: "the command starts Python in another process than its own: a wrapper that does not end with exec",
			Step:   -1, Module: -1,
		}
	case hello[2] != "cpython" || !since39(hello[3]):
		return &refusal{
			Reason: fmt.Sprintf("the interpreter is %s %s; warm starts need CPython 3.9", hello[2], hello[3]),
			Step:   -1, Module: -1,
		}
	}
	return t.proc.Send(append(slices.Clip(order), "end", string(t.end))...)
}

func since39(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && (major > 3 || major == 3 && minor >= 9)
}

// await hears the template's progress until it is ready. A *refusal says why it cannot be used.
func (t *Template) await(step func(label string)) (imports int, err error) {
	at := refusal{Step: -1, Module: -1}
	for {
		word, err := t.proc.Receive(time.Time{})
		switch {
		case errors.Is(err, io.EOF):
			<-t.proc.Done()
			at.Reason = fmt.Sprintf("ended the process: it %s%s", t.proc.Exit(), t.lastWords())
			if at.Step < 0 {
				at.Reason = fmt.Sprintf("the template %s%s", t.proc.Exit(), t.lastWords())
			}
			return 0, &at
		case err != nil:
			return 0, err
		case len(word) == 3 && word[0] == "importing":
			at.Step++
			at.Label = word[1]
			at.Learned = ""
			if path, late := strings.CutPrefix(word[2], "learned "); late {
				at.Module, at.Learned = -1, path
			} else if at.Module, err = strconv.Atoi(word[2]); err != nil {
				return 0, err
			}
			step(at.Label)
		case len(word) == 4 && word[0] == "refused":
			at.Reason, at.Hint = word[1], word[2]
			if n, err := strconv.Atoi(word[3]); err != nil || n != at.Step {
				at.Step, at.Module, at.Label, at.Learned = -1, -1, "", ""
			}
			return 0, &at
		case len(word) == 5 && word[0] == "ready":
			t.until = word[3]
			if imports, err = strconv.Atoi(word[1]); err != nil {
				return 0, err
			}
			if t.modules, err = strconv.Atoi(word[2]); err != nil {
				return 0, err
			}
			if t.learned, err = strconv.Atoi(word[4]); err != nil {
				return 0, err
			}
			pieces, err := t.out.await(t.proc.Done())
			if err != nil {
				return 0, err
			}
			for _, p := range pieces {
				t.output = append(t.output, "output", p)
			}
			return imports, nil
		default:
			return 0, fmt.Errorf("template: unexpected message %q", word)
		}
	}
}

const (
	// answerLimit is how long a template may take to answer. It takes milliseconds where the files are near and
	// processors are free; where they are not, an ordinary start needs them for longer than the answer does.
	answerLimit = 30 * time.Second
	// stoppedLimit is how long one is waited for that a signal has stopped.
	stoppedLimit = 5 * time.Second
	// CheckLimit is how long a start waits for a template's answer beside workers that run: it starts as usual then.
	CheckLimit = 5 * time.Second
	// printedLimit is how long what a template has printed may be on its way: it is in a pipe, and we read it.
	printedLimit = 30 * time.Second
)

// ask returns the template's answer. The waiting ends with the process, and where that was stopped; a template that has
// given no answer is not to be used again. The caller holds t.mu.
func (t *Template) ask(message ...string) ([]string, error) {
	asked := time.Now()
	if err := t.proc.Send(message...); err != nil {
		return nil, err
	}
	answered := make(chan struct{})
	var hopeless error
	var wg sync.WaitGroup
	wg.Go(func() {
		look := time.NewTicker(time.Second)
		defer look.Stop()
		for hopeless == nil {
			select {
			case <-answered:
				return
			case <-t.proc.Done(): // its forks may hold the connection open
				hopeless = errors.New("its process has ended")
			case <-look.C:
				if time.Since(asked) >= stoppedLimit && t.proc.Stopped() {
					hopeless = fmt.Errorf("its process was stopped, and has not gone on for %v", stoppedLimit)
				}
			}
		}
		t.proc.GiveUp()
	})
	word, err := t.proc.Receive(asked.Add(answerLimit))
	close(answered)
	wg.Wait()
	switch {
	case err == nil:
	case hopeless != nil:
		err = hopeless
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("it has not answered for %v", answerLimit)
	case errors.Is(err, io.EOF):
		err = errors.New("its process has ended")
	}
	return word, err
}

// changed asks whether what was imported still is what a worker would import, and returns what is not; "" for nothing.
func (t *Template) changed() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	word, err := t.ask("check", "")
	if err != nil {
		return "", err
	}
	if len(word) != 2 || word[0] != "checked" {
		return "", fmt.Errorf("template: unexpected message %q", word)
	}
	return word[1], nil
}

// noted asks what all of the workers with these process ids have imported since they were forked, in order, and which
// variables their script has set. Nothing where one of them was not forked here.
func (t *Template) noted(pids []int) (files, variables []string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	message := make([]string, 0, 2+2*len(pids))
	message = append(message, "noted", "")
	for _, pid := range pids {
		message = append(message, "pid", strconv.Itoa(pid))
	}
	word, err := t.ask(message...)
	if err != nil {
		return nil, nil, err
	}
	if len(word) < 2 || len(word)%2 != 0 || word[0] != "noted" {
		return nil, nil, fmt.Errorf("template: unexpected message %.100q", word)
	}
	for i := 2; i < len(word); i += 2 {
		switch word[i] {
		case "file":
			files = append(files, word[i+1])
		case "variable":
			variables = append(variables, word[i+1])
		}
	}
	return files, variables, nil
}

// prepare forks workers to be until there are n.
func (t *Template) prepare(n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.prepareLocked(n)
}

func (t *Template) prepareLocked(n int) error {
	for len(t.spares) < n {
		spares, err := t.proc.Fork(min(n-len(t.spares), proc.ForksLimit), "fork", "")
		t.spares = append(t.spares, spares...)
		if err != nil {
			return err
		}
	}
	return nil
}

// Start starts workers as Tree.Start would. Those that could not be started are nil.
func (t *Template) Start(specs []proc.Spec) ([]*proc.Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.prepareLocked(len(specs))
	n := min(len(t.spares), len(specs))
	spares := t.spares[:n]
	t.spares = t.spares[n:]
	procs, startErr := t.tree.StartSpares(spares, specs[:n], append([]string{"go", ""}, t.output...))
	return append(procs, make([]*proc.Process, len(specs)-n)...), errors.Join(err, startErr)
}

// Run starts a process that has a program of its own, from a fork that is no worker's to be.
func (t *Template) Run(spec proc.Spec) (*proc.Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	spares, err := t.proc.Fork(1, "fork", "")
	if err != nil {
		return nil, errors.Join(err, t.proc.Kill()) // it is not to be used again, and another one is made when it has ended
	}
	procs, err := t.tree.StartSpares(spares, []proc.Spec{spec}, []string{"go", ""})
	if err != nil {
		return nil, err
	}
	return procs[0], nil
}

// Close ends the process and its spares.
func (t *Template) Close() error {
	errs := []error{t.proc.Close()} // before the lock: whoever waits for an answer has it then
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.spares {
		errs = append(errs, s.Close())
	}
	t.spares = nil
	t.drain()
	return errors.Join(errs...)
}

// drain reads what was printed, and ends the readers. What the process left behind may hold the other end for ever.
func (t *Template) drain() {
	for _, r := range t.reads {
		_ = r.SetReadDeadline(time.Now().Add(drainLimit)) // one that is closed was read to its end
	}
	t.wg.Wait()
}

// drainLimit is how long reading what a dead process printed may take.
const drainLimit = 200 * time.Millisecond

// lastWords is the last line that the process printed, for a message.
func (t *Template) lastWords() string {
	t.drain()
	t.out.mu.Lock()
	defer t.out.mu.Unlock()
	var text strings.Builder
	for _, piece := range t.out.pieces {
		text.WriteString(piece[1:])
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return ": " + printable.Output(last)
	}
	return ""
}
