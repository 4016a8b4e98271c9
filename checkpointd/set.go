package checkpointd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"muster/checkpointd/planner"
)

// set is the checkpoints that go to one directory, from so many shards: their memory, what is to be written, and what
// was. All its fields are guarded by Service.mu, but those of flush.
type set struct {
	dir    string
	shards int
	id     int // in the label
	wishes

	slots  *slotTable
	mem    map[*slot]*memory
	copies map[*slot]*copied

	inRound
	diskState
	view planner.SetView // what the leader shows
	writing
	trade
	told map[string]bool // what was said once already
}

// wishes are what workers want of a set.
type wishes struct {
	keep KeepRules
	// reshards says that another number of shards can restore what these have saved.
	reshards bool
	// replicas is on how many nodes its workers want a copy of each shard.
	replicas int
	// across says that ranks read what others have saved.
	across bool
}

// diskState is what is known of the directory of a set; the label has it, too.
type diskState struct {
	committed moment // the newest on disk that was saved in this job; Step is -1 for none
	// head is what the directory's trackers named last, next the attempt that writes nextAt: see labelSet.
	head, next string
	nextAt     moment
}

// inRound is what ends with a round.
type inRound struct {
	loads    map[int]int      // by rank: how often it has loaded
	shown    int              // how many of the leader's decisions the log has
	notes    map[int][]string // by decision: why a step in memory is not restored
	ours     map[int]bool     // shards that workers of this node save, or have saved
	verified []moment
	urgent   int // how often the newest step was wanted on disk at once
	why      string
	asked    uint64                // the report that said so
	wants    map[planner.Copy]bool // copies that are, or were to be, got here
}

func newRound() inRound {
	return inRound{loads: map[int]int{}, notes: map[int][]string{}, ours: map[int]bool{}, wants: map[planner.Copy]bool{}}
}

// writing is what this node has written of the step that nodes write together.
type writing struct {
	attempt string
	written []planner.Written
	begun   map[int]bool // shards of it that were begun here
	ordered uint64       // the round whose leader has ordered it
	cause   error        // why this node could not write, or use, a copy last
	// wrote is what this node has brought to disk last, or a part of it, and to which directory: it counts where that
	// was committed.
	wrote   moment
	wroteTo string
}

// trade is what is known of copies that come from other nodes, and of those that are compared.
type trade struct {
	verifying map[moment]bool
	fetching  map[planner.Copy]bool
	fetchErr  error
	bad       []planner.Bad // what came from others, and was not what had been stated
}

// copied is what is known of a whole copy besides its slot.
type copied struct {
	layout  layout
	metaOff int64
	metaLen int64
	used    int64 // bytes behind the header
	persist bool
	pid     int       // of the worker that made it; 0: it came from another node
	end     time.Time // when it was whole
	// sound compares its checksums, once since somebody could last have written to it. It takes time, and is called
	// without the lock.
	sound func() error
	// digest is known where another node has asked for it, or the copy came from one; digesting while it is computed.
	digest    *planner.Digest
	digesting bool
}

// made reports whether a worker of this node has made the copy.
func (c *copied) made() bool { return c.pid != 0 }

// compareAnew has the checksums of a copy in m compared by the next call of sound.
func (c *copied) compareAnew(m *memory) {
	c.sound = sync.OnceValue(func() error { return m.verify(c.used) })
}

// flush is a complete step on its way to disk.
type flush struct {
	at     moment
	shards []int // what follows is in their order
	slots  []*slot
	copies []*copied
	mem    []*memory
}

// decision is where all workers of a round restore from.
type decision struct {
	source string // memory, disk or none
	at     moment
	step   *Step // on disk
	notes  []string
	err    error
	from   []int // in memory, with other nodes: the group rank of one with a copy, by shard
}

// the sources of a decision, as workers are told them.
const (
	fromMemory = planner.FromMemory
	fromDisk   = planner.FromDisk
	fromNone   = planner.FromNone
)

func newSet(dir string, shards int) *set {
	return &set{
		dir: dir, shards: shards, slots: newSlotTable(shards), mem: map[*slot]*memory{}, copies: map[*slot]*copied{},
		inRound: newRound(), writing: writing{wrote: planner.Never}, diskState: diskState{committed: planner.Never},
		told:  map[string]bool{},
		trade: trade{verifying: map[moment]bool{}, fetching: map[planner.Copy]bool{}},
	}
}

// beginRound forgets what was of the round before. Checksums are compared anew, since its workers could write.
func (st *set) beginRound() {
	st.inRound = newRound()
	st.view = planner.SetView{Key: st.view.Key, Head: st.view.Head}
	delete(st.told, "replicas") // there may be memory now
	for slot, of := range st.copies {
		of.compareAnew(st.mem[slot])
	}
}

// openDir makes and locks a directory.
func openDir(d disk, dir string) (*dirLock, error) {
	if err := d.MkdirAll(spot{dir, ownDir}); err != nil {
		return nil, fmt.Errorf("cannot make a directory for checkpoints: %w", err)
	}
	lock, err := lockCheckpoints(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot save checkpoints to %s: %w", dir, err)
	}
	if err := sweep(d, dir); err != nil {
		lock.close()
		return nil, err
	}
	return lock, nil
}

// release frees the memory of slots that are not being written to disk.
func (st *set) release() {
	for shard, slots := range st.slots.shards {
		for _, s := range append([]*slot(nil), slots...) {
			if s.Pins == 0 {
				st.forget(shard, s)
			}
		}
	}
}

// tear gives up what a slot holds.
func (st *set) tear(s *slot) {
	s.State = slotTorn
	st.mem[s].setState(slotTorn)
	delete(st.copies, s)
	if s.Kept {
		s.Kept = false
		s.Pins--
	}
}

// giveUp has nobody restore what is in memory. A later release frees what is being written to disk.
func (st *set) giveUp() {
	st.repin(nil)
	st.release()
	for _, slots := range st.slots.shards {
		for _, s := range slots {
			st.tear(s)
		}
	}
}

// forget frees one slot.
func (st *set) forget(shard int, s *slot) {
	st.slots.drop(shard, s)
	st.mem[s].release()
	delete(st.mem, s)
	delete(st.copies, s)
}

// plan makes a flush of a complete moment, and pins its slots.
func (st *set) plan(at moment) *flush {
	f := &flush{at: at, slots: st.slots.pin(at)}
	for shard, s := range f.slots {
		f.shards = append(f.shards, shard)
		f.copies = append(f.copies, st.copies[s])
		f.mem = append(f.mem, st.mem[s])
	}
	return f
}

// add pins one slot.
func (f *flush) add(st *set, shard int, slot *slot) {
	slot.Pins++
	f.shards, f.slots, f.copies, f.mem = append(f.shards, shard), append(f.slots, slot), append(f.copies, st.copies[slot]),
		append(f.mem, st.mem[slot])
}

func (f *flush) unpin() {
	for _, s := range f.slots {
		s.Pins--
	}
}

func (f *flush) bytes() (n int64) {
	for _, c := range f.copies {
		n += c.used
	}
	return n
}

// writtenBefore reports whether a copy says what is on disk already: it was saved to memory again since it was written.
func (st *set) writtenBefore(slot *slot) bool {
	w := st.wrote
	return w != planner.Never && w == st.committed && slot.At.Era == w.Era && slot.At.Step == w.Step && slot.At.Again > w.Again &&
		st.copies[slot].stepDirOf(w.Step) == st.wroteTo
}

// failure is why the newest step could not be written, nil where nothing failed.
func (st *set) failure() error {
	if st.view.Failed == "" {
		return nil
	}
	return &failedError{st.view.Failed, st.cause}
}

// failedError is what the leader says of a step that was not written, and what this node knows of it.
type failedError struct {
	text  string
	cause error // nil: this node has met nothing
}

func (e *failedError) Error() string {
	if e.cause != nil && !strings.Contains(e.text, e.cause.Error()) {
		return e.text + ": " + e.cause.Error()
	}
	return e.text
}

func (e *failedError) Unwrap() error { return e.cause }

// shardWriter writes one file of one shard.
type shardWriter struct {
	shard int
	path  string
	*fileWriter
}

// writers are what writes the files of a flush of shards.
func (f *flush) writers(pace *pace) (ws []shardWriter, err error) {
	for i, c := range f.copies {
		for _, file := range c.layout.Files {
			w, err := newFileWriter(f.mem[i].bytes, file.Parts)
			if err != nil {
				return nil, err
			}
			w.pace = pace
			path := file.Path
			if path == "" {
				path = rankFile(f.shards[i])
			}
			ws = append(ws, shardWriter{f.shards[i], path, w})
		}
	}
	return ws, nil
}

// trackers are files that name the newest step, as all shards want them.
type trackers struct {
	list  [][2]string
	texts map[string]string
}

func (t *trackers) add(more [][2]string) error {
	for _, m := range more {
		old, ok := t.texts[m[0]]
		switch {
		case ok && old != m[1]:
			return fmt.Errorf("the ranks do not agree on what %s says", m[0])
		case ok:
			continue
		case t.texts == nil:
			t.texts = map[string]string{}
		}
		t.texts[m[0]] = m[1]
		t.list = append(t.list, m)
	}
	return nil
}

// stepDirOf is the name of the directory that a copy of a step wants.
func (c *copied) stepDirOf(step int64) string {
	if c.layout.Dir != "" {
		return c.layout.Dir
	}
	return strconv.FormatInt(step, 10)
}

func errDirectories(shard int, dir string, other int, otherDir string) error {
	return fmt.Errorf("shard %d is to be saved to %s and shard %d to %s: give all ranks the same path", shard, dir, other, otherDir)
}

// commitment prepares the writing of shards of a step, their files still to be named by writers.
func (s *Service) commitment(st *set, f *flush, attempt string, writers []shardWriter) (*commitment, error) {
	c := &commitment{
		disk: s.cfg.disk, dir: st.dir, step: f.at.Step, runID: s.cfg.RunID, attempt: attempt, shards: st.shards, now: time.Now,
	}
	var names trackers
	for i, of := range f.copies {
		dir := of.stepDirOf(f.at.Step)
		if i > 0 && c.stepDir != dir {
			return nil, errDirectories(f.shards[i], dir, f.shards[0], c.stepDir)
		}
		c.stepDir, c.spare = dir, append(c.spare, of.layout.Spare...)
		if err := names.add(of.layout.Trackers); err != nil {
			return nil, err
		}
	}
	c.trackers = names.list
	for _, w := range writers {
		c.files = append(c.files, fileSource{Shard: w.shard, Path: w.path, Write: w.write})
	}
	return c, nil
}

// shardOf returns the shard on this node with a file of a moment.
func (st *set) shardOf(path string, at moment) (int, bool) {
	for shard := range st.shards {
		if slot := st.slots.at(shard, at); slot != nil && st.copies[slot].layout.has(path) {
			return shard, true
		}
	}
	return 0, false
}

// divides returns an error where a step on disk cannot be restored by so many shards.
func (s *Step) divides(shards int, reshards bool) error {
	if s.Shards == shards || s.Shards == 1 || reshards {
		return nil
	}
	return fmt.Errorf("cannot restore step %d: %d ranks saved it, and %d restore; shards are not divided anew", s.Step, s.Shards, shards)
}

// chooseDisk returns the newest step on disk whose files of the shards are what was written, and notes about those that
// were passed over.
func chooseDisk(ctx context.Context, dir string) (_ *Step, notes []string) {
	steps, err := listUntil(func() error { return context.Cause(ctx) }, dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, []string{err.Error()}
	}
	for i := range steps {
		err := steps[i].verify(ctx)
		if err == nil {
			return &steps[i], notes
		}
		notes = append(notes, fmt.Sprintf("%s on disk is not used: %v", steps[i].Name(), err))
	}
	return nil, notes
}
