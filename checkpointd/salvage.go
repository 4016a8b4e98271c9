package checkpointd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"muster/checkpointd/planner"
	"muster/internal/errhint"
	"muster/internal/wire"
)

// Salvage brings to disk what an agent that was killed has left in memory and not written: of each set the newest
// complete step. Then the memory is given up. label is what Service.Label was; where the agent has ended in order
// nothing is there, and nothing is done. to is another directory for the step than its own, empty for that. An error
// leaves in memory what was not written. What one of several nodes has left stays as it is, for the next agent: other
// nodes have the other shards, and may go on.
func Salvage(ctx context.Context, label, to string, log zerolog.Logger) error {
	if l, err := readLabel(label); err == nil && l.Lineage != 0 {
		tellParts(label, l, log)
		return nil
	}
	return salvage(ctx, label, to, log)
}

// tellParts says what one of several nodes has left.
func tellParts(label string, l label, log zerolog.Logger) {
	lo := mapLeftover(label, l)
	defer lo.letGo()
	for _, st := range lo.sets {
		if at, shards := st.newestHere(); len(shards) > 0 {
			log.Info().Int64("step", at.Step).Int("shards", len(shards)).Int("of", st.shards).Str("path", st.dir).Msg(HowToGoOn)
		}
	}
}

// newestHere is the newest moment of which a dead agent's set has copies, and the shards that they are of.
func (st *set) newestHere() (at moment, shards []int) {
	at = planner.Never
	for slot := range st.copies {
		if slot.At.Compare(at) > 0 {
			at = slot.At
		}
	}
	for shard := range st.shards {
		if st.slots.at(shard, at) != nil {
			shards = append(shards, shard)
		}
	}
	return at, shards
}

// errParts returns an error where a set of one of several nodes cannot be saved from here: other nodes may have the
// rest of its newest step. A step before that, which is whole here, goes to another directory at most.
func (st *set) errParts(to string) error {
	at, shards := st.newestHere()
	complete := st.slots.complete()
	if len(shards) == st.shards || at.Compare(st.committed) <= 0 || to != "" && len(complete) > 0 {
		return nil
	}
	var missing []string
	for shard := range st.shards {
		if !slices.Contains(shards, shard) {
			missing = append(missing, strconv.Itoa(shard))
		}
	}
	if more := len(missing) - 8; more > 0 {
		missing = append(missing[:8], fmt.Sprintf("%d more", more))
	}
	hint := "start the job again on all its nodes with the same run id (--run-id or --rdzv-id): it goes on from there"
	if len(complete) > 0 {
		hint += fmt.Sprintf("; --to DIR writes step %d, which is whole here, elsewhere", complete[0].Step)
	}
	return errhint.With(fmt.Errorf("cannot save step %d of %s: %d of its %d shards are here, and shards %s were on other nodes",
		at.Step, st.dir, len(shards), st.shards, strings.Join(missing, ", ")), hint)
}

// salvage is Salvage by somebody who knows which nodes there are.
func salvage(ctx context.Context, label, to string, log zerolog.Logger) error {
	lo, err := openLeftover(label)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot save the checkpoints that a killed muster has left in memory: %w", err)
	}
	defer lo.close()
	if to != "" {
		if err := lo.fits(to); err != nil {
			return err
		}
	}
	lo.label.Saving, lo.label.PID = true, os.Getpid()
	if err := lo.file.write(lo.label); err != nil { // others then do not wait for us
		log.Warn().Err(err).Msg("cannot note that checkpoints in memory are being saved")
	}
	for _, err := range lo.problems {
		log.Warn().Err(err).Msg("a checkpoint in memory is not used")
	}
	several := lo.label.Lineage != 0
	var errs []error
	for _, st := range append([]*set(nil), lo.sets...) {
		var err error
		if several {
			err = st.errParts(to)
		}
		if err == nil {
			err = salvageSet(ctx, st, lo.label.RunID, to, log)
		}
		if len(lo.problems) > 0 && len(st.slots.complete()) == 0 { // another version of muster may know what these are
			err = errors.Join(append([]error{err}, lo.problems...)...)
		}
		if err == nil && (!several || to == "") { // else the nodes may use it still
			err = lo.drop(st)
		}
		errs = append(errs, err)
	}
	if len(lo.label.Sets) == 0 {
		return errors.Join(append(errs, lo.file.remove())...)
	}
	lo.label.Saving = false
	return errors.Join(append(errs, lo.file.write(lo.label))...)
}

// fits returns an error where what was left cannot go to a directory: what is written now would be taken for the newest
// that is there.
func (lo *leftover) fits(to string) error {
	steps, err := List(to)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(steps) > 0 {
		return errhint.With(fmt.Errorf("cannot save to %s: %s is there already", to, steps[0].Name()), "name an empty directory")
	}
	var dirs []string
	for _, st := range lo.sets {
		if len(st.slots.complete()) > 0 {
			dirs = append(dirs, st.dir)
		}
	}
	if len(dirs) > 1 {
		return errhint.With(fmt.Errorf("cannot save to %s: there are steps of several directories, %s", to, strings.Join(dirs, ", ")),
			"without --to each goes to its own")
	}
	return nil
}

// salvageSet writes the newest complete step of a set whose checksums hold, unless it is on disk.
func salvageSet(ctx context.Context, st *set, runID, to string, log zerolog.Logger) error {
	if _, unwritten := st.unwritten(); !unwritten && to == "" {
		return nil
	}
	if to != "" {
		st.dir, st.keep, st.committed = to, KeepRules{}, moment{Step: -1}
	}
	s := &Service{cfg: Config{RunID: runID, Log: log, disk: posix{}}, changed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.wg.Wait()
	defer s.cancel(nil)
	lock, err := openDir(s.cfg.disk, st.dir)
	if err != nil {
		return err
	}
	defer lock.close()
	if to == "" {
		if err := st.settle(); err != nil {
			return errhint.With(err, "muster ckpt save --to DIR writes it elsewhere, muster ckpt drop gives it up")
		}
	}
	var bad []error
	for _, at := range st.slots.complete() {
		if st.committed.Step >= 0 && at.Compare(st.committed) <= 0 {
			return nil
		}
		f := st.plan(at)
		err := f.verify()
		if err == nil {
			return s.write(st, f)
		}
		f.unpin()
		log.Warn().Err(err).Int64("step", at.Step).Msg("a checkpoint in memory was damaged, and is not saved")
		bad = append(bad, fmt.Errorf("step %d: %w", at.Step, err))
	}
	if len(bad) > 0 {
		return fmt.Errorf("no checkpoint in memory for %s can be used: %w", st.dir, errors.Join(bad...))
	}
	return nil
}

// verify compares all shards with their checksums.
func (f *flush) verify() error {
	for shard, c := range f.copies {
		if err := f.mem[shard].verify(c.used); err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	return nil
}

// Save writes the newest step that a MemoryStep's agent has in memory: a living one is asked to do it. to is another
// directory, for the steps of dead ones.
func (m *MemoryStep) Save(ctx context.Context, to string, log zerolog.Logger) error {
	if !m.Running {
		return salvage(ctx, m.label, to, log)
	}
	if to != "" {
		return fmt.Errorf("cannot save to %s: job %s runs, and saves to its own directory", to, m.RunID)
	}
	l, err := readLabel(m.label)
	if err != nil {
		return err
	}
	return askToSave(ctx, l.Socket)
}

// Drop gives up what a dead agent has left.
func (m *MemoryStep) Drop() error {
	file, _, err := takeLabel(m.label)
	if file == nil {
		return err
	}
	return file.remove() // whatever the label says
}

// Agent identifies the agent that has the step: others with the same are saved and dropped with it.
func (m *MemoryStep) Agent() string { return m.label }

// saveNow has the newest complete steps written, and waits for them.
func (s *Service) saveNow(gone <-chan struct{}) error {
	until := time.Now().Add(waitSave)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.sets {
		s.saveLocked(st, "somebody asks for it")
	}
	for _, st := range append([]*set(nil), s.sets...) {
		for st.view.Busy || s.participant.seen < st.asked {
			if !s.participant.led() || !s.awaitLocked(until, gone) {
				return errors.New("the step that is being written to disk does not come to an end")
			}
		}
		if err := st.failure(); err != nil {
			return err
		}
	}
	return nil
}

// askToSave is the other end of saveNow.
func askToSave(ctx context.Context, socket string) error {
	dir, err := os.Open(filepath.Dir(socket)) // see listen
	if err != nil {
		return fmt.Errorf("cannot ask the job to save: %w", err)
	}
	defer func() { _ = dir.Close() }()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(dir.Fd()))+"/"+filepath.Base(socket))
	if err != nil {
		return fmt.Errorf("cannot ask the job to save: %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := wire.Write(conn, request{Op: "save"}); err != nil {
		return fmt.Errorf("cannot ask the job to save: %w", err)
	}
	var rep reply
	err = wire.Read(conn, frameLimit, &rep)
	if err != nil {
		return fmt.Errorf("cannot hear whether the job has saved: %w", err)
	}
	if rep.Error != "" {
		return errors.New(rep.Error)
	}
	return nil
}
