package checkpointd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// set is the checkpoints that go to one directory, from so many shards: their memory, what is to be written, and what was.
// All its fields are guarded by Service.mu, but those of flush.
type set struct {
	dir    string
	shards int
	keep   KeepRules
	// reshards says that another number of shards can restore what these have saved.
	reshards bool
	lock     *dirLock

	book   *book
	mem    map[*slot]*memory
	copies map[*slot]*copied

	// decisions are where a round's workers restore from, by how often they have asked.
	decisions []*decision
	loads     map[int]int // by rank: how often it has loaded in this round

	pending   *flush // is to be written next
	running   *flush
	committed moment // the newest on disk that was saved in this job; Step is -1 for none
	failed    error  // why the last writing failed, nil where it did not
	told      map[string]bool
}

// copied is what is known of a whole copy besides its slot.
type copied struct {
	layout  layout
	metaOff int64
	metaLen int64
	used    int64 // bytes behind the header
	persist bool
	pid     int
}

// flush is a complete step on its way to disk.
type flush struct {
	at     moment
	why    string // why it is written, where no worker asked for it
	slots  []*slot
	copies []*copied
	mem    []*memory
}

// decision is where all workers of a round restore from. It is made by the first that asks, and done is closed then.
type decision struct {
	done   chan struct{}
	source string // memory, disk or none
	at     moment
	step   *Step // on disk
	note   string
	err    error
}

// the sources of a decision, as workers are told them.
const (
	fromMemory = "memory"
	fromDisk   = "disk"
	fromNone   = "none"
)

func newSet(dir string, shards int) *set {
	return &set{
		dir: dir, shards: shards, book: newBook(shards), mem: map[*slot]*memory{}, copies: map[*slot]*copied{},
		loads: map[int]int{}, committed: moment{Step: -1}, told: map[string]bool{},
	}
}

// openDir makes and locks the directory.
func (st *set) openDir(d disk) error {
	if err := d.MkdirAll(filepath.Join(st.dir, ownDir)); err != nil {
		return fmt.Errorf("cannot make a directory for checkpoints: %w", err)
	}
	lock, err := lockCheckpoints(st.dir)
	if err != nil {
		return fmt.Errorf("cannot save checkpoints to %s: %w", st.dir, err)
	}
	st.lock = lock
	return sweep(d, st.dir)
}

// release frees the memory of slots that are not being written to disk.
func (st *set) release() {
	for shard, slots := range st.book.shards {
		for _, s := range append([]*slot(nil), slots...) {
			if s.Pins == 0 {
				st.forget(shard, s)
			}
		}
	}
}

// forget frees one slot.
func (st *set) forget(shard int, s *slot) {
	st.book.drop(shard, s)
	st.mem[s].release()
	delete(st.mem, s)
	delete(st.copies, s)
}

// plan makes a flush of a complete moment, and pins its slots.
func (st *set) plan(at moment, why string) *flush {
	f := &flush{at: at, why: why, slots: st.book.pin(at)}
	for _, s := range f.slots {
		f.copies = append(f.copies, st.copies[s])
		f.mem = append(f.mem, st.mem[s])
	}
	return f
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

// want has a complete step written, after the one that is being written. One that waits for that is given up for it: the
// newest counts. It reports whether anything changed.
func (st *set) want(at moment, why string) bool {
	if st.committed.Step >= 0 && at.compare(st.committed) <= 0 || st.running != nil && st.running.at == at {
		return false
	}
	if st.pending != nil {
		if st.pending.at.compare(at) >= 0 {
			return false
		}
		st.pending.unpin()
	}
	st.pending = st.plan(at, why)
	return true
}

// shardWriter writes one file of one shard.
type shardWriter struct {
	shard int
	path  string
	*fileWriter
}

// writers are what writes the files of a flush.
func (f *flush) writers() (ws []shardWriter, err error) {
	for shard, c := range f.copies {
		for _, file := range c.layout.Files {
			w, err := newFileWriter(f.mem[shard].bytes, file.Parts)
			if err != nil {
				return nil, err
			}
			path := file.Path
			if path == "" {
				path = rankFile(shard)
			}
			ws = append(ws, shardWriter{shard, path, w})
		}
	}
	return ws, nil
}

// commit is a flush as a commitment.
func (f *flush) commit(st *set, d disk, runID string, writers []shardWriter) (*commitment, error) {
	c := &commitment{
		disk: d, dir: st.dir, step: f.at.Step, runID: runID, attempt: newAttempt(), shards: st.shards, now: time.Now,
	}
	names := map[string]string{}
	for shard, copied := range f.copies {
		dir := copied.layout.Dir
		if dir == "" {
			dir = strconv.FormatInt(f.at.Step, 10)
		}
		if c.stepDir != "" && c.stepDir != dir {
			return nil, fmt.Errorf("shard %d is to be saved to %s and shard 0 to %s: give all ranks the same path", shard, dir, c.stepDir)
		}
		c.stepDir = dir
		for _, t := range copied.layout.Trackers {
			if old, ok := names[t[0]]; ok && old != t[1] {
				return nil, fmt.Errorf("the ranks do not agree on what %s says", t[0])
			} else if !ok {
				c.trackers = append(c.trackers, t)
			}
			names[t[0]] = t[1]
		}
	}
	for _, w := range writers {
		c.files = append(c.files, fileSource{Shard: w.shard, Path: w.path, Write: w.write})
	}
	return c, nil
}

// chooseDisk returns the newest step on disk whose files of the shards are what was written, and a note about those that were
// passed over.
func chooseDisk(dir string) (*Step, string) {
	steps, err := List(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, ""
		}
		return nil, err.Error()
	}
	note := ""
	for i := range steps {
		err := steps[i].Verify()
		if err == nil {
			return &steps[i], note
		}
		note += "step " + strconv.FormatInt(steps[i].Step, 10) + " on disk is not used: " + err.Error() + "; "
	}
	return nil, note
}
