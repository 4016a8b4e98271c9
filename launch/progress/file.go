package progress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/printable"
)

// dirName is where the files lie in a run directory, by rank.
const dirName = "progress"

// File is where the program of one worker tells of itself. Its methods may be called from several goroutines. A nil
// File has nothing.
type File struct {
	mu      sync.Mutex
	file    *os.File // nil once it is closed
	created time.Time
	last    Reading
	told    bool
	buf     [size]byte
}

// Create makes the file of a worker that is about to start. highest is the greatest step that was done before, nil
// where none was. What the process before it still writes goes to the file that it has.
func Create(runDir string, rank int, highest *int64) (*File, error) {
	dir := filepath.Join(runDir, dirName)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot make a place for the progress of workers: %w", err)
	}
	path := filepath.Join(dir, strconv.Itoa(rank))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot make a place for the progress of rank %d: %w", rank, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make a place for the progress of rank %d: %w", rank, err)
	}
	p := &File{file: f, created: time.Now()}
	before := int64(noStep)
	if highest != nil {
		before = *highest
	}
	copy(p.buf[:], magic)
	binary.NativeEndian.PutUint64(p.buf[8*wordHighest:], uint64(before))
	if _, err := f.WriteAt(p.buf[:], 0); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a place for the progress of rank %d: %w", rank, err), f.Close())
	}
	return p, nil
}

// Close reads what the program has told last, which may have been killed while it did so, and gives the file up. Read
// returns that from now on.
func (p *File) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		return
	}
	if p.fill() {
		p.take()
	}
	_ = p.file.Close() // nothing was written
	p.file = nil
}

// tries is how often a file is read that is written to at the same moment. A program that died there stays so.
const tries = 4

// Read returns what was told, false where nothing was. Where the program writes just now, or has left something that
// cannot be read, that is what was read before.
func (p *File) Read() (Reading, bool) {
	if p == nil {
		return Reading{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for range tries {
		if p.file == nil {
			break
		}
		// One read may take its bytes in any order: the sequence is read before them, and once more behind them.
		before, there := p.sequence()
		if !there || !p.fill() {
			break
		}
		if after, there := p.sequence(); there && before == after && before%2 == 0 {
			p.take()
			break
		}
	}
	r := p.last
	r.Values = slices.Clone(r.Values)
	return r, p.told
}

// fill reads the file into the buffer, and reports whether all of it was there. It does not map it: the worker may cut
// the file at any moment.
func (p *File) fill() bool {
	n, err := p.file.ReadAt(p.buf[:], 0)
	return n == size && (err == nil || errors.Is(err, io.EOF))
}

// sequence reads the number that tells whether the program writes, and false where the file has none.
func (p *File) sequence() (uint64, bool) {
	var b [8]byte
	n, _ := p.file.ReadAt(b[:], 8*wordSequence)
	return binary.NativeEndian.Uint64(b[:]), n == len(b)
}

// take makes what is in the buffer what was read last, where anything was told.
func (p *File) take() {
	if string(p.buf[:len(magic)]) == magic && (p.word(wordTime) != 0 || p.word(wordStalls) != 0) {
		p.last, p.told = p.decode(), true
	}
}

func (p *File) word(n int) uint64 { return binary.NativeEndian.Uint64(p.buf[8*n:]) }

func (p *File) integer(n int) int64 { return int64(p.word(n)) }

func (p *File) real(n int) float64 { return math.Float64frombits(p.word(n)) }

// clock turns CLOCK_MONOTONIC into times of day, within the life of a file.
type clock struct {
	now, created time.Time
	mono         int64
}

func newClock(created time.Time) clock {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // 0 where it fails: then all was now
	return clock{time.Now(), created, ts.Nano()}
}

func (c clock) time(ns int64) time.Time {
	switch age := c.mono - ns; {
	case ns == 0:
		return time.Time{}
	case ns > c.mono || ns < 0:
		return c.now
	case time.Duration(age) > c.now.Sub(c.created):
		return c.created
	default:
		return c.now.Add(-time.Duration(age))
	}
}

func (c clock) duration(ns int64) time.Duration {
	return max(0, min(time.Duration(ns), c.now.Sub(c.created)))
}

// decode reads the buffer. Whatever is in there becomes numbers within bounds.
func (p *File) decode() Reading {
	c := newClock(p.created)
	r := Reading{
		Words: p.word(wordSequence),
		Told:  c.time(p.integer(wordTime)), First: c.time(p.integer(wordFirst)), Passed: c.time(p.integer(wordPassed)),
		Stalls: max(0, p.integer(wordStalls)), Stalled: c.duration(p.integer(wordStalled)), Ends: p.word(wordEnds) != 0,
	}
	if r.Steps = !r.First.IsZero(); !r.Steps {
		r.Passed = time.Time{}
	} else {
		r.Step, r.Total, r.Most, r.Back = p.integer(wordStep), max(0, p.integer(wordTotal)), p.integer(wordMost), p.word(wordBack) != 0
		r.StalledFirst = min(c.duration(p.integer(wordStalledFirst)), r.Stalled)
		r.Collective, r.Loading = c.duration(p.integer(wordCollective)), c.duration(p.integer(wordLoading))
		p.decodeTimes(&r)
		p.decodeValues(&r)
	}
	if !r.Passed.IsZero() {
		if r.Passed.Before(r.First) {
			r.Passed = r.First
		}
		r.StalledPassed = max(r.StalledFirst, min(c.duration(p.integer(wordStalledPassed)), r.Stalled))
	}
	if r.SectionBegan = c.time(p.integer(wordSection)); !r.SectionBegan.IsZero() {
		if r.Section = p.name(mostValues); r.Section == "" {
			r.Section = "?"
		}
		if limit := p.real(wordTimeout); limit > 0 && limit < math.MaxInt64/float64(time.Second) {
			r.SectionTimeout = time.Duration(limit * float64(time.Second))
		}
	}
	return r
}

// decodeTimes reads how long steps took.
func (p *File) decodeTimes(r *Reading) {
	for i := range r.Buckets {
		r.Buckets[i] = min(p.word(wordBucket+i), math.MaxUint32<<16) // their sum is a number, too
	}
	if r.Sum = p.real(wordSum); !(r.Sum >= 0) || math.IsInf(r.Sum, 0) {
		r.Sum = 0
	}
	times := make([]time.Duration, 0, mostSeconds)
	for i := range min(p.word(wordTold), mostSeconds) {
		if s := p.real(wordSeconds + int(i)); s >= 0 && s < math.MaxInt64/float64(time.Second) {
			times = append(times, time.Duration(s*float64(time.Second)))
		}
	}
	r.Median, r.Spread = MedianOf(times)
}

// MedianOf returns the median of times, and the median of how far they are from it; 0 for none.
func MedianOf(times []time.Duration) (median, spread time.Duration) {
	if len(times) == 0 {
		return 0, 0
	}
	of := func(list []time.Duration) time.Duration {
		slices.Sort(list)
		a, b := list[(len(list)-1)/2], list[len(list)/2]
		return a + (b-a)/2
	}
	list := slices.Clone(times)
	median = of(list)
	for i, t := range list {
		list[i] = max(t-median, median-t)
	}
	return median, of(list)
}

// decodeValues reads the values of the last step. Of two with one name the last counts.
func (p *File) decodeValues(r *Reading) {
	for i := range min(p.word(wordValues), mostValues) {
		name := p.name(int(i))
		if name == "" {
			continue
		}
		v := Value{name, p.real(wordValue + int(i))}
		if at := slices.IndexFunc(r.Values, func(o Value) bool { return o.Name == name }); at >= 0 {
			r.Values[at] = v
		} else {
			r.Values = append(r.Values, v)
		}
	}
}

// name reads one of the names, as it can be shown.
func (p *File) name(i int) string {
	text := p.buf[namesAt+nameSize*i : namesAt+nameSize*(i+1)]
	name, _, _ := strings.Cut(string(text), "\x00")
	return printable.Output(name)
}
