package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"muster/internal/accel/nvline"
	"muster/internal/proc"
)

// smiEvery is the least time between two runs of nvidia-smi, which takes much longer than a probe that runs already.
const smiEvery = 20 * time.Second

// ErrHung is wrapped by Watch's error where NVML has not answered in time.
var ErrHung = errors.New("NVML does not answer")

// Watch runs the probe and has told called with what the GPUs are used for, every so often, until ctx ends or the probe
// does. Where no probe can be run, or it finds no library, nvidia-smi is run instead, again and again. A probe that says
// nothing for Options.Timeout is killed; of one that not even SIGKILL ends the error wraps ErrAbandoned, too. The error
// is nil where ctx has ended. While a proc.Tree is open it says less of how the probe ended.
func Watch(ctx context.Context, o Options, every time.Duration, told func([]nvline.Use)) error {
	if o.Exec == ExecNone {
		return unavailable("it is switched off")
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout(o.GPUs)
	}
	var attempts []string
	for _, c := range o.candidates() {
		if pid := left.Load(); pid != 0 {
			return fmt.Errorf("cannot watch the GPUs: %w (pid %d)", ErrAbandoned, pid)
		}
		p, err := c.get()
		if err == nil {
			err = o.watch(ctx, p, every, told)
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // nobody wants to know any more
		case p.path != "" && !errors.Is(err, errForeign) && !errors.Is(err, errNoLoader) && !errors.Is(err, errNoStart) &&
			!errors.Is(err, errNoLibrary):
			return err
		}
		attempts = append(attempts, fmt.Sprintf("%s: %v", c.via, err))
		if errors.Is(err, errNoLoader) || errors.Is(err, errNoLibrary) {
			break // another place would not change that
		}
	}
	return o.watchSMI(ctx, every, told, attempts)
}

// errNoStart says that a place was none from which a program can be executed, errNoLibrary that the probe has not found
// NVML's library.
var (
	errNoStart   = errors.New("it cannot be executed")
	errNoLibrary = errors.New("the probe finds no library of NVML")
)

// watch runs the probe at p until it ends.
func (o Options) watch(ctx context.Context, p place, every time.Duration, told func([]nvline.Use)) error {
	defer p.drop()
	var heard hearing
	env := append(o.environment(), fmt.Sprintf("%s=%d", nvline.WatchVariable, every.Milliseconds()))
	c, err := proc.Confine(ctx, proc.Confinement{
		Path: p.path, Args: []string{program}, Env: env, Deadline: o.Timeout + every, Grace: grace,
		MaxStdout: maxStdout, MaxStderr: maxStderr, Started: p.drop,
		Line: func(line []byte) {
			if use := heard.take(line); use != nil && ctx.Err() == nil {
				told(use)
			}
		},
	})
	if noLoader(p.path, err) {
		return errNoLoader
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoStart, err)
	}
	return o.watchEnded(&heard, c)
}

// watchEnded says why a probe has ended that was to go on.
func (o Options) watchEnded(heard *hearing, c proc.Confined) error {
	at := ""
	if heard.at != "" {
		at = " in " + heard.at
	}
	switch {
	case c.Abandoned != nil:
		left.Store(int64(c.PID))
		return fmt.Errorf("%w: the NVML probe hung for %v%s, and SIGKILL does not end it (%w)", ErrHung, o.Timeout, at, ErrAbandoned)
	case c.TimedOut:
		return fmt.Errorf("%w: the NVML probe hung for %v%s and was killed", ErrHung, o.Timeout, at)
	case heard.foreign != nil:
		return heard.foreign
	case heard.fatal != nil && (heard.fatal.RC == nvline.LibraryNotFound || heard.fatal.RC == 0):
		return fmt.Errorf("%w: %v", errNoLibrary, heard.fatal)
	case heard.fatal != nil:
		return errors.New(heard.fatal.String())
	case c.Lost:
		return errors.New("the NVML probe has ended" + at)
	}
	return fmt.Errorf("the NVML probe %v%s%s", c.Exit, at, firstLine(c.Stderr))
}

// hearing is what a probe that watches has said so far.
type hearing struct {
	greeted bool
	foreign error  // it is no probe of ours
	at      string // the last call that it has announced
	fatal   *Fatal
}

// take reads a line, and returns what the GPUs are used for where it says that.
func (h *hearing) take(line []byte) []nvline.Use {
	var tag struct {
		T string `json:"t"`
	}
	if h.foreign != nil || !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &tag) != nil {
		if !h.greeted && h.foreign == nil {
			h.foreign = fmt.Errorf("%w: it begins with %q", errForeign, clip(string(line)))
		}
		return nil
	}
	switch {
	case !h.greeted:
		var hello nvline.HelloLine
		if tag.T != nvline.Hello || json.Unmarshal(line, &hello) != nil || hello.V != nvline.Version {
			h.foreign = fmt.Errorf("%w: it begins with %q", errForeign, clip(string(line)))
		}
		h.greeted = true
	case tag.T == nvline.At:
		var l nvline.AtLine
		if json.Unmarshal(line, &l) == nil {
			h.at = Culprit{Call: clip(l.Call), GPU: l.GPU}.String()
		}
	case tag.T == nvline.Fatal:
		var l nvline.FatalLine
		if json.Unmarshal(line, &l) == nil {
			h.fatal = &Fatal{Call: clip(l.Call), RC: l.RC, Why: clip(l.Why)}
		}
	case tag.T == nvline.OfUse:
		var l nvline.UseLine
		if json.Unmarshal(line, &l) != nil || len(l.GPUs) > maxGPUs {
			return nil
		}
		for i := range l.GPUs {
			l.GPUs[i].UUID, l.GPUs[i].BDF = clip(l.GPUs[i].UUID), clip(l.GPUs[i].BDF)
		}
		return l.GPUs
	}
	return nil
}

// watchSMI asks nvidia-smi, which tells of no processes, again and again. attempts say why it is not the probe.
func (o Options) watchSMI(ctx context.Context, every time.Duration, told func([]nvline.Use), attempts []string) error {
	path := o.findTool(SMI)
	if path == "" {
		return unavailable(append(attempts, "there is no "+SMI)...)
	}
	for {
		began := time.Now()
		c, err := o.confineTool(ctx, path, []string{
			SMI, "--query-gpu=index,uuid,pci.bus_id,memory.total,memory.used,utilization.gpu", "--format=csv,noheader,nounits",
		}, o.Timeout, maxAnswer)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // nobody wants to know any more
		case err != nil:
			return fmt.Errorf("cannot run %s: %w", SMI, err)
		case c.Abandoned != nil:
			return fmt.Errorf("%w: %s hung for %v, and SIGKILL does not end it (%w)", ErrHung, SMI, o.Timeout, ErrAbandoned)
		case c.TimedOut:
			return fmt.Errorf("%w: %s hung for %v and was killed", ErrHung, SMI, o.Timeout)
		}
		use, err := smiUse(string(c.Stdout))
		if err != nil {
			return fmt.Errorf("%s: %w", SMI, err)
		}
		told(use)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(every, smiEvery, 100*time.Since(began))):
		}
	}
}

// smiUse reads a line for each GPU; lines of GPUs that do not answer say nothing of use.
func smiUse(text string) ([]nvline.Use, error) {
	var use []nvline.Use
	for line := range strings.Lines(text) {
		cells, err := smiLines(line, 6)
		if err != nil || len(cells) != 1 {
			continue
		}
		v := cells[0]
		index, err := strconv.Atoi(v[0])
		if err != nil || index < 0 || len(use) == maxGPUs {
			continue
		}
		u := nvline.Use{Index: index, UUID: clip(v[1]), BDF: clip(nvline.NormalBDF(v[2]))}
		if n, err := strconv.ParseUint(v[3], 10, 32); err == nil {
			u.MemTotal = new(n << 20)
		}
		if n, err := strconv.ParseUint(v[4], 10, 32); err == nil {
			u.MemUsed = new(n << 20)
		}
		if n, err := strconv.Atoi(v[5]); err == nil && n >= 0 && n <= 100 {
			u.Busy = &n
		}
		use = append(use, u)
	}
	if len(use) == 0 {
		return nil, fmt.Errorf("it tells of no GPU but %q", clip(text))
	}
	return use, nil
}

// ReplayWatch is Watch of what a fake says in the probe's place, which is called each time.
func ReplayWatch(ctx context.Context, said func() nvline.Script, o Options, every time.Duration, told func([]nvline.Use)) error {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout(o.GPUs)
	}
	for {
		s := said()
		var heard hearing
		for line := range bytes.Lines(s.Lines) {
			if use := heard.take(bytes.TrimSuffix(line, []byte("\n"))); use != nil {
				told(use)
			}
		}
		if s.End != nvline.EndWell || heard.fatal != nil {
			c, err := confined(s)
			if err != nil {
				return err
			}
			return o.watchEnded(&heard, c)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
