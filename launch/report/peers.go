package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"muster/internal/printable"
	"muster/launch/job"
	"muster/rendezvous"
)

// What an agent tells the others about the failures on its node is JSON of at most maxPeerReport bytes, with words of
// maxPeerFailures of them. A world may have thousands of nodes, each of which reads what all have said.
const (
	maxPeerReport   = 64 << 10
	maxPeerFailures = 8
	maxPeerRuns     = 256
	peerVersion     = 1
)

// peerReport is what one agent says; nothing at all where no worker of its node failed.
type peerReport struct {
	Version   int           `json:"version"`
	Host      string        `json:"host"`
	GroupRank int           `json:"groupRank"`
	Failures  []peerFailure `json:"failures"`
	// More are the failures beyond those.
	More []peerRun `json:"more,omitempty"`
}

type peerFailure struct {
	Rank      int `json:"rank"`
	LocalRank int `json:"localRank"`
	PID       int `json:"pid"`
	// One of Code and Signal is not 0.
	Code       int   `json:"code,omitempty"`
	Signal     int   `json:"signal,omitempty"`
	CoreDumped bool  `json:"coreDumped,omitempty"`
	After      int64 `json:"afterNs"` // since the node had its round: clocks differ
	// Cause, Hint and Evidence are as on that node, which has seen more than it says.
	Cause     string     `json:"cause,omitempty"`
	Hint      string     `json:"hint,omitempty"`
	Evidence  []string   `json:"evidence,omitempty"`
	Error     *peerError `json:"error,omitempty"`
	LastLines []string   `json:"lastLines,omitempty"`
	HeldUp    *HeldUp    `json:"heldUp,omitempty"`
}

type peerError struct {
	Path      string `json:"path,omitempty"`
	Message   string `json:"message,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	Problem   string `json:"problem,omitempty"`
}

// peerRun is workers with consecutive ranks that ended alike, the first of them After.
type peerRun struct {
	First  int    `json:"first"`
	Last   int    `json:"last"`
	Code   int    `json:"code,omitempty"`
	Signal int    `json:"signal,omitempty"`
	After  int64  `json:"afterNs"`
	Cause  string `json:"cause,omitempty"`
}

// EncodeFailures makes a report of the failures on this node, which had its round at began; nil for none.
func EncodeFailures(failures []Failure, began time.Time) []byte {
	if len(failures) == 0 {
		return nil
	}
	r := peerReport{Version: peerVersion, Host: failures[0].Host, GroupRank: failures[0].GroupRank}
	// The root cause is hardly one of those whose connection broke.
	failures = slices.Clone(failures)
	slices.SortStableFunc(failures, func(a, b Failure) int { return cmp.Compare(echo(&a), echo(&b)) })
	n := min(len(failures), maxPeerFailures)
	r.More = peerRuns(failures[n:], began)
	r.More = r.More[:min(len(r.More), maxPeerRuns)] // a node where no two ended alike has told enough
	// Words go first, from the longest to none, then the failures that nobody will miss.
	for words := 32 << 10; ; words /= 2 {
		r.Failures = nil
		for i, f := range failures[:n] {
			share := words / n
			if i > 0 && echo(&f) == 1 {
				share = 0 // the root cause says it better, and the first of them says it once
			}
			r.Failures = append(r.Failures, newPeerFailure(&f, began, share))
		}
		text, err := json.Marshal(&r)
		switch {
		case err != nil:
			panic(fmt.Sprintf("internal error: cannot encode a failure: %v", err)) // strings and numbers only
		case len(text) <= maxPeerReport:
			return text
		case words == 0 && len(r.More) > 0:
			r.More = r.More[:len(r.More)/2]
		case words == 0:
			r.Host = cut(r.Host, 255)
			n = max(n-1, 1)
		}
	}
}

// IsEcho reports whether a worker failed because its connection to another one broke, or because that did not come.
func (f *Failure) IsEcho() bool { return echo(f) == 1 }

// echo is 1 for a worker that failed because its connection to another one broke or that did not come, else 0. Who was
// killed or crashed did
// not fail of that, whatever it had printed and survived before; NCCL's watchdog aborts.
func echo(f *Failure) int {
	switch f.Signal {
	case syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE:
		return 0
	default:
	}
	if f.Cause == causeConnectionLost || f.Cause == causeTimeout {
		return 1
	}
	return 0
}

// newPeerFailure says what is known about a failure in about as many bytes of words.
func newPeerFailure(f *Failure, began time.Time, words int) peerFailure {
	p := peerFailure{
		Rank: f.Rank, LocalRank: f.LocalRank, PID: f.PID, Code: max(f.Code, 0), Signal: int(f.Signal), CoreDumped: f.CoreDumped,
		After: int64(max(f.At.Sub(began), 0)), Cause: f.Cause, Hint: cut(f.Hint, printable.MaxOutput),
	}
	for _, fact := range f.Evidence {
		p.Evidence = append(p.Evidence, cut(fact, printable.MaxOutput/2))
	}
	if h := f.HeldUp; h != nil {
		p.HeldUp = &HeldUp{max(h.Rank, 0), cut(h.Node, maxHeldName), cut(h.Sentence, printable.MaxOutput)}
	}
	left := words
	if f.Error != nil {
		p.Error = &peerError{
			Path: cut(f.Error.Path, printable.MaxOutput/2), Problem: cut(f.Error.Problem, printable.MaxOutput/2),
			Message: cut(f.Error.Message, words/4), Traceback: cutFront(f.Error.Traceback, words/2),
		}
		left -= len(p.Error.Message) + len(p.Error.Traceback)
	}
	for _, line := range slices.Backward(f.LastLines) {
		line = printable.Output(line)
		if left -= len(line) + 3; left < 0 || len(p.LastLines) == LastLinesKept {
			break
		}
		p.LastLines = append(p.LastLines, line)
	}
	slices.Reverse(p.LastLines)
	return p
}

// maxHeldName bounds the name of a node there, in bytes.
const maxHeldName = 255

// cut returns at most n bytes of a text, cutFront the last ones.
func cut(text string, n int) string { return strings.ToValidUTF8(text[:min(len(text), n)], "") }

func cutFront(text string, n int) string { return strings.ToValidUTF8(text[max(len(text)-n, 0):], "") }

func peerRuns(failures []Failure, began time.Time) []peerRun {
	failures = slices.Clone(failures)
	slices.SortFunc(failures, func(a, b Failure) int { return cmp.Compare(a.Rank, b.Rank) })
	var runs []peerRun
	for _, f := range failures {
		r := peerRun{
			First: f.Rank, Last: f.Rank, Code: max(f.Code, 0), Signal: int(f.Signal), After: int64(max(f.At.Sub(began), 0)),
			Cause: f.Cause,
		}
		if n := len(runs) - 1; n >= 0 && runs[n].Last+1 == r.First && runs[n].Code == r.Code && runs[n].Signal == r.Signal &&
			runs[n].Cause == r.Cause {
			runs[n].Last, runs[n].After = r.Last, min(runs[n].After, r.After)
			continue
		}
		runs = append(runs, r)
	}
	return runs
}

// DecodeFailures reads what another agent of the round says. It came over the network: it is bounded, what cannot be is
// an error, and its texts are made fit for a terminal. began is when this node had the round.
func DecodeFailures(text []byte, r *rendezvous.Round, began time.Time) (groupRank int, failures []Failure, err error) {
	if len(text) > maxPeerReport {
		return 0, nil, fmt.Errorf("a report of %d bytes exceeds the limit of %d", len(text), maxPeerReport)
	}
	var p peerReport
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return 0, nil, fmt.Errorf("cannot read a report: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return 0, nil, errors.New("cannot read a report: something follows it")
	}
	switch {
	case p.Version != peerVersion:
		return 0, nil, fmt.Errorf("cannot read a report of version %d", p.Version)
	case p.GroupRank < 0 || p.GroupRank >= r.GroupWorldSize:
		return 0, nil, fmt.Errorf("a report of group rank %d: the world has %d", p.GroupRank, r.GroupWorldSize)
	case len(p.Failures) > maxPeerFailures || len(p.More) > maxPeerRuns:
		return 0, nil, fmt.Errorf("a report of %d and %d failures", len(p.Failures), len(p.More))
	}
	for _, m := range p.More {
		if m.First < 0 || m.Last < m.First || m.Last-m.First >= job.MaxProcs || len(failures) > job.MaxProcs {
			return 0, nil, fmt.Errorf("a report of the ranks %d to %d", m.First, m.Last)
		}
		for rank := m.First; rank <= m.Last; rank++ {
			p.Failures = append(p.Failures, peerFailure{Rank: rank, Code: m.Code, Signal: m.Signal, After: m.After, Cause: m.Cause})
			if len(p.Failures) > maxPeerFailures+job.MaxProcs {
				return 0, nil, errors.New("a report of too many failures")
			}
		}
	}
	for i := range p.Failures {
		f, err := p.Failures[i].decode(r, began)
		if err != nil {
			return 0, nil, err
		}
		f.Host, f.GroupRank = printable.Output(p.Host), p.GroupRank
		failures = append(failures, f)
	}
	return p.GroupRank, failures, nil
}

func (p *peerFailure) decode(r *rendezvous.Round, began time.Time) (Failure, error) {
	f := Failure{Elsewhere: true}
	switch {
	case p.Rank < 0 || p.Rank >= r.WorldSize || p.LocalRank < 0 || p.LocalRank >= job.MaxProcs || p.PID < 0:
		return f, fmt.Errorf("a report of rank %d (local rank %d, pid %d): the world has %d", p.Rank, p.LocalRank, p.PID, r.WorldSize)
	case p.Code < 0 || p.Code > 255 || p.Signal < 0 || p.Signal > 127 || (p.Code == 0) == (p.Signal == 0):
		return f, fmt.Errorf("a report of an end with code %d and signal %d", p.Code, p.Signal)
	case p.After < 0 || p.After > math.MaxInt64/4:
		return f, fmt.Errorf("a report of an end after %d ns", p.After)
	case len(p.LastLines) > LastLinesKept || len(p.Evidence) > LastLinesKept:
		return f, fmt.Errorf("a report of %d lines and %d facts", len(p.LastLines), len(p.Evidence))
	}
	f.Exit = Exit{
		Rank: p.Rank, LocalRank: p.LocalRank, PID: p.PID, Code: p.Code, Signal: syscall.Signal(p.Signal), CoreDumped: p.CoreDumped,
		At: began.Add(time.Duration(p.After)), LastLines: printables(p.LastLines),
	}
	f.Cause, f.Hint, f.Evidence = printable.Output(p.Cause), printable.Output(p.Hint), printables(p.Evidence)
	if h := p.HeldUp; h != nil {
		if h.Rank < 0 || h.Rank >= r.WorldSize {
			return f, fmt.Errorf("a report of rank %d, which others have waited for: the world has %d", h.Rank, r.WorldSize)
		}
		f.HeldUp = &HeldUp{h.Rank, printable.Line(h.Node, maxHeldName), printable.Output(h.Sentence)}
	}
	if e := p.Error; e != nil {
		f.Error = &workerError{
			Path: printable.Output(e.Path), Problem: printable.Output(e.Problem), Message: printableText(e.Message),
			Traceback: printableText(e.Traceback),
		}
	}
	return f, nil
}

func printables(lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = printable.Output(line)
	}
	return out
}

// printableText is printable for a text of several lines.
func printableText(text string) string {
	return strings.Join(printables(strings.Split(text, "\n")), "\n")
}
