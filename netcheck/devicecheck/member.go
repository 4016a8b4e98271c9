package devicecheck

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"muster/internal/proc"
)

// member is one process of the program.
type member struct {
	program *Program
	local   int
	proc    *proc.Process
	// forked says that it is a fork of an interpreter that had imported torch.
	forked bool
	// commands is our end of its descriptor 3, spoken of its 4, printed of its 1 and 2.
	commands, spoken, printed *os.File

	answers chan answer   // nil once its end was seen
	quit    chan struct{} // nobody takes answers any more
	wg      sync.WaitGroup
	tail    tail
	wrong   error // why reading the answers ended; valid once answers is closed

	hello hello
	ready bool      // hello was heard
	last  int       // id of the last order
	step  string    // that it said it is at
	began time.Time // what its order limits
	ended bool
}

// start starts the process of a local rank, or for -1 the one that tests links.
func (c *Program) start(ctx context.Context, local int) (_ *member, err error) {
	m := &member{program: c, local: local, answers: make(chan answer), quit: make(chan struct{})}
	pipes, err := proc.NewPipes(proc.Out, proc.In, proc.Out)
	if err != nil {
		return nil, fmt.Errorf("cannot start the check of device %d: %w", local, err)
	}
	defer func() { pipes.Settle(err) }()
	m.printed, m.commands, m.spoken = pipes.Ours[0], pipes.Ours[1], pipes.Ours[2]
	program := []string{c.script, c.cfg.Device}
	spec := proc.Spec{
		Path: c.cfg.Python[0],
		Args: slices.Concat(c.cfg.Python, []string{"-u"}, program), Program: program,
		Env: c.environ(local), Dir: c.cfg.Dir, Label: m.label(),
		// What Python and the libraries print comes through one pipe, in order.
		Files: []*os.File{nil, pipes.Theirs[0], pipes.Theirs[0], pipes.Theirs[1], pipes.Theirs[2]},
	}
	if c.cfg.Fork != nil && !c.cold.Load() {
		m.proc = c.cfg.Fork(ctx, spec)
		m.forked = m.proc != nil
	}
	if m.proc == nil {
		if m.proc, err = c.cfg.start(spec); err != nil {
			return nil, err
		}
	}
	said := m.answers
	m.wg.Go(func() { m.listen(said) })
	m.wg.Go(func() { m.tail.read(m.printed) })
	return m, nil
}

func (m *member) label() string {
	if m.local < 0 {
		return "the check of links"
	}
	return fmt.Sprintf("the check of device %d", m.local)
}

// environ returns the environment of a process: the caller's, with what is the program's to say.
func (c *Program) environ(local int) []string {
	own := map[string]string{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} // as many processes as devices share the cores
	if local >= 0 {
		own["LOCAL_RANK"] = strconv.Itoa(local)
	}
	if local < 0 && c.cfg.Fake != nil {
		text, err := json.Marshal(c.cfg.Fake)
		if err != nil {
			panic("internal error: cannot encode links: " + err.Error())
		}
		own[fakeLinksEnv] = string(text)
	}
	var env []string
	for _, entry := range c.cfg.Env(local) {
		name, _, _ := strings.Cut(entry, "=")
		if _, ok := own[name]; !ok && name != "LOCAL_RANK" && name != fakeLinksEnv {
			env = append(env, entry)
		}
	}
	for name, value := range own {
		env = append(env, name+"="+value)
	}
	return env
}

// listen hands on what the process says, until its end or its first line that is no answer.
func (m *member) listen(answers chan<- answer) {
	defer close(answers)
	r := bufio.NewReader(m.spoken)
	for {
		a, err := readAnswer(r)
		if err != nil {
			m.wrong = err
			return
		}
		select {
		case answers <- a:
		case <-m.quit:
			return
		}
	}
}

// ask has the process of a local rank carry out an order, nil for none, and starts the process where there is none. A
// process that did not answer as it should is gone afterwards.
func (c *Program) ask(ctx context.Context, stage string, local int, deadline time.Time, orderFor func(local int, h hello) order) outcome {
	for {
		m := c.members[local].Load()
		old := m != nil && m.ready
		if m == nil {
			var err error
			starting, done := context.WithDeadline(ctx, deadline)
			m, err = c.start(starting, local)
			done()
			if err != nil {
				return outcome{err: &DeviceError{Local: local, Stage: stage, Cause: NotStarted, Text: err.Error()}}
			}
			c.members[local].Store(m)
		}
		m.step = ""
		var done answer
		err := m.greet(ctx, deadline)
		if err == nil && orderFor != nil {
			left := time.Until(deadline)
			o := orderFor(local, m.hello)
			o.LimitMS, o.WaitMS = (left * 9 / 10).Milliseconds(), (left * 8 / 10).Milliseconds()
			done, err = m.carryOut(ctx, deadline, o, nil)
		}
		if err == nil {
			return outcome{hello: m.hello, done: done}
		}
		if old && m.step == "" && errors.Is(err, errDied) { // before it began: what killed it was not this order
			c.cfg.Log.Warn().Int("local_rank", local).Stringer("exit", m.proc.Exit()).Msg("idle check process ended")
			c.drop(ctx, m)
			continue
		}
		return outcome{hello: m.hello, err: c.fault(ctx, m, stage, err), forked: m.forked}
	}
}

// fault turns an error of a member into that of its device, and ends the process where it cannot be used any more.
func (c *Program) fault(ctx context.Context, m *member, stage string, err error) *DeviceError {
	e := &DeviceError{Local: m.local, Stage: stage, Step: m.step, Text: err.Error()}
	var told *toldError
	switch {
	case errors.As(err, &told):
		e.Cause = told.cause
		e.told = m.ready
		if !told.spent {
			e.Output = m.tail.lines(maxOutput)
			return e
		}
	case errors.Is(err, errDied):
		e.Cause, e.Exit = Died, m.proc.Exit()
		e.Text = e.Exit.String()
	case errors.Is(err, errGarbled):
		e.Cause = Garbled
	default:
		e.Cause = Hung
	}
	c.drop(ctx, m)
	e.Output = m.tail.lines(maxOutput)
	return e
}

// drop ends a process that is not to be used any more.
func (c *Program) drop(ctx context.Context, m *member) {
	if m.local >= 0 {
		c.members[m.local].Store(nil)
	}
	if err := m.end(context.WithoutCancel(ctx)); err != nil {
		c.cfg.Log.Warn().Err(err).Int("local_rank", m.local).Msg("check process left")
	}
}

// Why a process gave no answer.
var errDied = errors.New("the process ended")

// toldError is a failure that the program told.
type toldError struct {
	cause Cause
	text  string
	spent bool
}

func (e *toldError) Error() string { return e.text }

// greet waits until the process has imported torch.
func (m *member) greet(ctx context.Context, deadline time.Time) error {
	if m.ready {
		return nil
	}
	a, err := m.await(ctx, deadline, nil, "hello")
	if err == nil {
		m.hello, m.ready = a.hello, true
	}
	return err
}

// carryOut gives an order and waits until it is done. heard, if not nil, gets what is told on the way but for steps,
// and returns the new deadline.
func (m *member) carryOut(ctx context.Context, deadline time.Time, o order, heard func(answer) time.Time) (answer, error) {
	m.last++
	o.ID = m.last
	m.began = time.Now()
	if err := m.write(o); errors.Is(err, os.ErrDeadlineExceeded) { // of other errors, how it ended tells more
		return answer{}, err
	}
	a, err := m.await(ctx, deadline, heard, "done")
	// So ends the program where it gave itself up, after it printed where it was.
	limit := time.Duration(o.LimitMS) * time.Millisecond
	if errors.Is(err, errDied) && m.proc.Exit().Code == 1 && time.Since(m.began) >= limit {
		return a, fmt.Errorf("no end within %v", limit.Round(100*time.Millisecond))
	}
	return a, err
}

// writeLimit is how long a process may leave its orders unread, when its pipe is full of them.
const writeLimit = time.Second

// write sends an order. Several goroutines may.
func (m *member) write(o order) error {
	line, err := json.Marshal(o)
	if err != nil {
		panic("internal error: cannot encode an order: " + err.Error())
	}
	_ = m.commands.SetWriteDeadline(time.Now().Add(writeLimit)) // where it is closed, so tells Write
	_, err = m.commands.Write(append(line, '\n'))
	return err
}

// await waits for an event that ends what the process is at. The error says why there is none.
func (m *member) await(ctx context.Context, deadline time.Time, heard func(answer) time.Time, event string) (answer, error) {
	begin := time.Now()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return answer{}, context.Cause(ctx)
		case <-timer.C:
			return answer{}, fmt.Errorf("no answer within %v", deadline.Sub(begin).Round(100*time.Millisecond))
		case <-m.proc.Done():
			// What it said last is still to be heard; a child that holds its pipe is not to be waited for.
			_ = m.spoken.SetReadDeadline(time.Now().Add(drainLimit))
			if a, err := m.rest(heard, event); err == nil || !errors.Is(err, io.EOF) {
				return a, err
			}
			return answer{}, errDied
		case a, ok := <-m.answers:
			if !ok {
				if errors.Is(m.wrong, errGarbled) {
					return answer{}, m.wrong
				}
				m.answers = nil // it closed its descriptor: wait for its end, or until the deadline
				continue
			}
			final, err := m.take(a, heard, event)
			if final || err != nil {
				return a, err
			}
			if heard != nil && a.Event != "step" {
				deadline, begin = heard(a), time.Now()
				m.began = begin
				timer.Reset(time.Until(deadline))
			}
		}
	}
}

// rest hears what a dead process had said. io.EOF: nothing that ends what it was at.
func (m *member) rest(heard func(answer) time.Time, event string) (answer, error) {
	if m.answers == nil {
		return answer{}, io.EOF
	}
	for a := range m.answers {
		final, err := m.take(a, heard, event)
		if final || err != nil {
			return a, err
		}
		if heard != nil && a.Event != "step" {
			heard(a)
		}
	}
	if errors.Is(m.wrong, errGarbled) {
		return answer{}, m.wrong
	}
	return answer{}, io.EOF
}

// take looks at an answer and returns whether it is the one that is waited for.
func (m *member) take(a answer, heard func(answer) time.Time, event string) (final bool, err error) {
	switch {
	case a.ID != m.last:
		return false, fmt.Errorf("%w: an answer to order %d, after order %d", errGarbled, a.ID, m.last)
	case a.Event == event:
		return true, nil
	case a.Event == "failed":
		told := &toldError{cause: known(a.Kind), text: said(a.Error), spent: a.Spent}
		told.spent = told.spent || told.cause == Garbled
		return false, told
	case a.Event == "step":
		m.step = said(a.Step)
		if report := m.program.cfg.Progress; report != nil {
			report(m.local, m.step)
		}
		return false, nil
	case heard != nil && (a.Event == "pair" || a.Event == "link"):
		return false, nil
	default:
		return false, fmt.Errorf("%w: event %q", errGarbled, a.Event)
	}
}

// dismiss tells the process that there is nothing more to do, upon which it ends.
func (m *member) dismiss() { _ = m.commands.Close() }

// drainLimit is how long the last words of a dead process may take.
const drainLimit = 200 * time.Millisecond

// end kills the process and all that it started, and waits for that. Later calls do nothing.
func (m *member) end(ctx context.Context) error {
	if m == nil || m.ended {
		return nil
	}
	m.ended = true
	return errors.Join(m.program.cfg.Tree.Stop(ctx, proc.Ladder{}, m.proc), m.release())
}

// release lets go of what connects us to a process that was ended.
func (m *member) release() error {
	m.dismiss()
	close(m.quit)
	// What did not die may hold the other ends for ever.
	for _, f := range []*os.File{m.spoken, m.printed} {
		_ = f.SetReadDeadline(time.Now().Add(drainLimit))
	}
	m.wg.Wait()
	return errors.Join(m.spoken.Close(), m.printed.Close())
}

// tail keeps the last of what a process printed.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailBytes is how much is kept: a traceback or two.
const tailBytes = 16 << 10

func (t *tail) read(r io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		t.mu.Lock()
		t.text = append(t.text, buf[:n]...)
		if len(t.text) > tailBytes {
			t.text = slices.Delete(t.text, 0, len(t.text)-tailBytes)
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// lines returns the last lines that are not empty.
func (t *tail) lines(most int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for line := range strings.Lines(string(t.text)) {
		if line = strings.TrimRight(line, " \r\n"); line != "" {
			lines = append(lines, said(line))
		}
	}
	return lines[max(0, len(lines)-most):]
}
