package checkpointd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// leftover is what the segments of one agent hold, as far as it can be used.
type leftover struct {
	label label
	file  *labelFile // nil: only looked at
	sets  []*set     // as in the label
	// others are sets that cannot be used, since others have written to their directories, and what the trackers there
	// name.
	others map[*set]string
	// problems are why segments are not used.
	problems []error
	bytes    map[int]int64 // by set: of its files
}

// mapLeftover maps the segments beside a label that hold whole copies, all of it checked: nobody vouches for what is in
// them.
func mapLeftover(path string, l label) *leftover {
	lo := &leftover{label: l, others: map[*set]string{}, bytes: map[int]int64{}}
	for _, of := range l.Sets {
		st := newSet(of.Dir, of.Shards)
		st.id, st.keep, st.reshards = of.ID, of.Keep, of.Reshards
		st.diskState = diskState{of.Committed, of.Head, of.Next, of.NextAt}
		lo.sets = append(lo.sets, st)
	}
	for _, segment := range segmentFiles(path) {
		if err := lo.add(segment); err != nil {
			lo.problems = append(lo.problems, fmt.Errorf("cannot use %s: %w", segment, err))
		}
	}
	return lo
}

// openLeftover takes over the segments of a dead agent. It returns errKept where somebody looks after them.
func openLeftover(path string) (*leftover, error) {
	file, l, err := takeLabel(path)
	if err != nil {
		if file != nil {
			file.close()
		}
		return nil, err
	}
	lo := mapLeftover(path, l)
	lo.file = file
	return lo, nil
}

// openUsable takes over what a dead agent has left of sets in dir, of all for an empty one. It returns nil where that
// cannot be done. What cannot be used stays; sets in directories that others have written to are apart.
func (s *Service) openUsable(path, dir string) *leftover {
	lo, err := openLeftover(path)
	if err != nil {
		if !errors.Is(err, errKept) { // such as by another agent of the run on this machine
			s.cfg.Log.Warn().Err(err).Str("path", path).Msg("checkpoints in memory are not used")
		}
		return nil
	}
	for _, err := range lo.problems {
		s.cfg.Log.Warn().Err(err).Msg("a checkpoint in memory is not used")
	}
	if err := errForeignFiles(path); err != nil {
		s.cfg.Log.Warn().Err(err).Msg("somebody imitates checkpoints in memory")
	}
	lo.sets = slices.DeleteFunc(lo.sets, func(st *set) bool {
		if dir != "" && st.dir != dir {
			st.letGo()
			return true
		}
		if st.settle() != nil {
			st.letGo()
			lo.others[st] = headOf(st.dir)
			return true
		}
		return false
	})
	return lo
}

// tellOthers says that others have written to the directory of a set.
func (s *Service) tellOthers(st *set) {
	s.cfg.Log.Warn().Str("path", st.dir).Err(errOthers).Msg("checkpoints in memory are not used: muster ckpt ls")
}

// close gives back what openLeftover took.
func (lo *leftover) close() {
	lo.letGo()
	lo.file.close()
}

// add adds a segment.
func (lo *leftover) add(path string) error {
	ext := filepath.Ext(path)
	if ext == newSuffix { // a label that was not finished
		return nil
	}
	first, _, _ := strings.Cut(ext[1:], "-")
	id, err := strconv.Atoi(first)
	i := slices.IndexFunc(lo.sets, func(st *set) bool { return st.id == id })
	if err != nil || i < 0 {
		return errors.New("its label does not know it")
	}
	st := lo.sets[i]
	m, err := openSegment(path)
	if err != nil {
		return err
	}
	lo.bytes[id] += int64(len(m.bytes))
	h, err := m.header()
	used, l := int64(0), layout{}
	if err == nil && h.state == slotReady {
		if err = h.check(lo.label.RunID, st.shards); err == nil {
			l, used, err = m.layout(h.metaOff, h.metaLen)
		}
	}
	if err != nil || h.state != slotReady {
		m.letGo()
		return err
	}
	m.want = used
	s := st.slots.add(h.shard, int64(len(m.bytes))-headerSize)
	s.State, s.At = slotReady, h.at
	st.mem[s] = m
	st.copies[s] = &copied{layout: l, metaOff: h.metaOff, metaLen: h.metaLen, used: used, pid: h.pid, end: h.end}
	if h.pid == 0 {
		st.copies[s].digest = m.stated()
	}
	st.copies[s].compareAnew(m)
	return nil
}

// openSegment maps a segment. Its memory keeps its name: letGo ends that, and release would remove the file.
func openSegment(path string) (*memory, error) {
	file, info, err := openOwn(path, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	m := &memory{file: file, path: path}
	m.hold()
	size := info.Size()
	if size < headerSize || size > 1<<50 {
		err = fmt.Errorf("it has %d bytes", size)
	} else {
		err = m.mmap(size)
	}
	if err != nil {
		m.letGo()
		return nil, err
	}
	return m, nil
}

// letGo releases memory whose file stays.
func (m *memory) letGo() {
	m.path = ""
	m.release()
}

// headerOf is what a slot's header says.
type headerOf struct {
	state              slotState
	shard, shards, pid int
	at                 moment
	metaOff, metaLen   int64
	end                time.Time
	runID              string
}

// header reads the header of a slot.
func (m *memory) header() (h headerOf, err error) {
	err = guarded(func() error {
		if string(m.bytes[:len(headerMagic)]) != headerMagic {
			return errors.New("this muster knows no such header")
		}
		get32 := func(at int) int { return int(binary.LittleEndian.Uint32(m.bytes[at:])) }
		get64 := func(at int) int64 { return int64(binary.LittleEndian.Uint64(m.bytes[at:])) }
		h = headerOf{
			state: slotState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&m.bytes[headerState])))),
			shard: get32(headerShard), shards: get32(headerShards), pid: get32(headerPID),
			at:      moment{Era: uint64(get64(headerEra)), Step: get64(headerStep), Again: int64(get32(headerAgain))},
			metaOff: get64(headerMetaOff), metaLen: get64(headerMetaLen), end: time.Unix(0, get64(headerEnd)),
			runID: strings.TrimRight(string(m.bytes[headerRunID:headerRunID+64]), "\x00"),
		}
		return nil
	})
	return h, err
}

// check makes sure that a header belongs to a run and a number of shards.
func (h *headerOf) check(runID string, shards int) error {
	if want := strings.TrimRight(runID[:min(len(runID), 64)], "\x00"); h.runID != want {
		return fmt.Errorf("it is of run %q, and its label of %q", h.runID, want)
	}
	if h.shards != shards || h.shard >= shards || h.at.Step < 0 {
		return fmt.Errorf("it is shard %d of %d of step %d, and its label has %d shards", h.shard, h.shards, h.at.Step, shards)
	}
	return nil
}

// letGo ends the use of all segments. They stay.
func (lo *leftover) letGo() {
	for _, st := range lo.sets {
		st.letGo()
	}
}

func (st *set) letGo() {
	for _, m := range st.mem {
		m.letGo()
	}
	st.mem = map[*slot]*memory{}
}

// drop removes the segments of a set, and the label with the last one.
func (lo *leftover) drop(st *set) error {
	st.letGo()
	var errs []error
	for _, path := range lo.file.files() {
		if strings.HasPrefix(path, fmt.Sprintf("%s.%d-", lo.file.path, st.id)) {
			errs = append(errs, os.Remove(path))
		}
	}
	lo.label.Sets = slices.DeleteFunc(lo.label.Sets, func(of labelSet) bool { return of.ID == st.id })
	lo.sets = slices.DeleteFunc(lo.sets, func(o *set) bool { return o == st })
	if len(lo.label.Sets) == 0 {
		return errors.Join(append(errs, lo.file.remove())...)
	}
	return errors.Join(append(errs, lo.file.write(lo.label))...)
}

// dropAll drops what is used of it, and the label where nothing else is in it.
func (lo *leftover) dropAll() (err error) {
	for _, st := range slices.Clone(lo.sets) {
		err = errors.Join(err, lo.drop(st))
	}
	if len(lo.label.Sets) == 0 {
		err = errors.Join(err, lo.file.remove())
	}
	return err
}

// errOthers says that a directory has steps that came after those in memory, from somebody else.
var errOthers = errors.New("other steps have been written there since")

// settle compares a set with its directory: it learns of a step that was committed just before its agent died, and
// returns errOthers where what is in memory is not the newest any more.
func (st *set) settle() error {
	switch head := headOf(st.dir); {
	case head == st.head:
	case st.next != "" && head == st.next:
		st.head, st.committed = head, st.nextAt
	default:
		return fmt.Errorf("cannot use what is in memory for %s: %w", st.dir, errOthers)
	}
	return nil
}

// unwritten returns the newest complete moment, and whether it is not on disk.
func (st *set) unwritten() (moment, bool) {
	complete := st.slots.complete()
	if len(complete) == 0 {
		return moment{}, false
	}
	return complete[0], st.committed.Step < 0 || complete[0].Compare(st.committed) > 0
}

// MemoryStep is a step in the memory of an agent, dead or alive.
type MemoryStep struct {
	RunID string
	// Dir is the directory of checkpoints where it belongs.
	Dir string
	// Step is -1 for an agent, or a set, that has no whole copy of any.
	Step int64
	// Shards is how many the step has, Whole how many of these are in memory.
	Shards, Whole int
	// Bytes is what the copies take; for Step -1 all that is taken.
	Bytes int64
	// Saved is when the last copy was whole.
	Saved time.Time
	// Several says that its agent was one of several nodes: these have the shards that are not in memory here.
	Several bool
	// OnDisk says that it, or a newer one, was written.
	OnDisk bool
	// Running says that its agent lives, Saving that its agent is dead and somebody writes the newest step to disk.
	Running, Saving bool
	// Problem is why it cannot be used, as far as can be seen without reading it; nil where it can.
	Problem error

	label string
}

// Complete reports whether all shards of the step are in memory here.
func (m *MemoryStep) Complete() bool { return m.Step >= 0 && m.Whole == m.Shards }

// ListMemory returns the steps in the memory of this user's agents, in a directory such as DefaultMemory: by run, the
// newest first.
func ListMemory(memory string) ([]MemoryStep, error) {
	if _, err := os.Stat(memory); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot look for checkpoints in memory: %w", err)
	}
	var steps []MemoryStep
	for _, path := range labelPaths(memory) {
		l, err := readLabel(path)
		if errors.Is(err, os.ErrNotExist) { // its agent has just ended
			continue
		}
		common := MemoryStep{
			RunID: cmp.Or(l.RunID, labelRun(path)), Step: -1, Several: l.Lineage != 0, Running: isKept(path) && !l.Saving,
			Problem: err, label: path,
		}
		common.Saving = l.Saving && isKept(path)
		if err != nil {
			steps = append(steps, common)
			continue
		}
		lo := mapLeftover(path, l)
		for _, st := range lo.sets {
			steps = append(steps, lo.steps(st, common)...)
		}
		if len(lo.sets) == 0 && !common.Running {
			steps = append(steps, common)
		}
		if err := errForeignFiles(path); err != nil {
			common.Problem = err
			steps = append(steps, common)
		}
		lo.letGo()
	}
	return steps, nil
}

// steps describes what is in memory of a set.
func (lo *leftover) steps(st *set, common MemoryStep) []MemoryStep {
	common.Dir, common.Shards = st.dir, st.shards
	if !common.Running {
		common.Problem = errors.Join(append(slices.Clone(lo.problems), st.settle())...)
	}
	found := map[moment]*MemoryStep{}
	for shard, slots := range st.slots.shards {
		for _, s := range slots {
			if st.slots.at(shard, s.At) != s {
				continue
			}
			if found[s.At] == nil {
				entry := common
				entry.Step, entry.OnDisk = s.At.Step, st.committed.Step >= 0 && s.At.Compare(st.committed) <= 0
				found[s.At] = &entry
			}
			entry, c := found[s.At], st.copies[s]
			entry.Whole++
			entry.Bytes += c.used
			if c.end.After(entry.Saved) {
				entry.Saved = c.end
			}
		}
	}
	if len(found) == 0 {
		common.Bytes = lo.bytes[st.id]
		return []MemoryStep{common}
	}
	moments := make([]moment, 0, len(found))
	for at := range found {
		moments = append(moments, at)
	}
	slices.SortFunc(moments, func(a, b moment) int { return cmp.Or(b.Compare(a)) })
	steps := make([]MemoryStep, len(moments))
	for i, at := range moments {
		steps[i] = *found[at]
	}
	return steps
}
