package report

import (
	"path"
	"slices"
	"strings"
	"syscall"

	"muster/internal/lazyregexp"
	"muster/internal/python"
)

// exception is one that Python has printed.
type exception struct {
	exception string // its name, without its module
	at        string // file:line of the innermost frame of the user's program, of any where there is none; may be empty
	thread    string // the thread that it ended, empty for the main one
	exits     bool   // it was raised by a handler of atexit
	ignored   bool   // Python went on after it, as in a destructor
	line      int    // where its name and message stand
}

var (
	// tracebackFrame is where a line of the program stands in what Python says of an exception.
	tracebackFrame = lazyregexp.New(`^\s+File "([^"]+)", line (\d+)`)
	// exceptionLine is the line behind the frames.
	exceptionLine = lazyregexp.New(`^([A-Za-z_][\w.]*)(:|$)`)
	// looksRaised is a line that may be the last one of an exception.
	looksRaised = lazyregexp.New(`^(\[rank\d+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Warning|Interrupt)\b`)
	// wordlessAbort is what libraries say of an abort that has no reason of its own: a thread of C++ that nobody has joined
	// is left, or Python ends a thread in the midst of C++. PyTorch's warnings of what was not closed stand before it.
	wordlessAbort = lazyregexp.New(`^(terminate called (without an active exception|recursively)$|FATAL: exception not rethrown$|` +
		`(\[rank\d+\]: ?)?\[W\d|\s*$)`)
	// rankPrefix is what PyTorch puts before each line of an exception once ranks have met.
	rankPrefix = lazyregexp.New(`^\[rank\d+\]: ?`)
)

const tracebackBegins = "Traceback (most recent call last):"

// raised finds the last exception that a worker has printed. What a first exception has led to comes last.
func raised(lines []string) (e exception, found bool) {
	inFrames := false
	before := ""
	for i, line := range lines {
		line = line[:min(len(line), maxSaid)]
		line = rankPrefix().ReplaceAllString(line, "")
		switch m := tracebackFrame().FindStringSubmatch(line); {
		case strings.HasPrefix(line, tracebackBegins):
			e, inFrames = exception{}, true
			if name, is := strings.CutPrefix(before, "Exception in thread "); is {
				e.thread = strings.TrimSuffix(name, ":")
			}
			e.exits = strings.Contains(before, "atexit")
			e.ignored = strings.HasPrefix(before, "Exception ignored ") && !e.exits
			found = false
		case m != nil:
			if !python.IsLibrary(m[1]) || e.at == "" {
				e.at = path.Base(m[1]) + ":" + m[2]
			}
		case inFrames && strings.TrimLeft(line, " \t") != line || line == "":
			continue // the text of a source line
		case inFrames:
			if m := exceptionLine().FindStringSubmatch(line); m != nil {
				name := strings.Split(m[1], ".")
				e.exception, e.line, found = name[len(name)-1], i, true
			}
			inFrames = false
		}
		before = line
	}
	return e, found
}

// thenAborted finds the exception of the main thread behind which a worker has said of its abort what libraries say that
// have no reason: Python was ending the process because of it, and met threads or destructors that do not take that. An
// abort without a word has other reasons, and an exception in front of it may have been handled long ago.
func thenAborted(exit *Exit, lines []string) (e exception, found bool) {
	if exit.Signal != syscall.SIGABRT {
		return e, false
	}
	if e, found = raised(lines); !found || e.ignored || e.thread != "" {
		return e, false
	}
	said := false
	for _, line := range lines[e.line+1:] {
		if !wordlessAbort().MatchString(line[:min(len(line), maxSaid)]) {
			return e, false
		}
		said = said || strings.HasPrefix(line, "terminate called") || strings.HasPrefix(line, "FATAL")
	}
	return e, said
}

// RaisedAt is where the program raised the exception that ended the worker, as file:line; empty where that is not known.
func (f *Failure) RaisedAt() string {
	e, _ := raised(f.Words())
	return e.at
}

// LastWord is the line of what the worker has said that tells most of its end: its last one, or that of the exception
// behind which it has aborted. It is empty where the worker has said nothing.
func (f *Failure) LastWord() string {
	lines := f.Words()
	if e, found := thenAborted(&f.Exit, lines); found {
		return lines[e.line]
	}
	for _, line := range slices.Backward(lines) {
		if strings.TrimSpace(line) != "" {
			return line
		}
	}
	return ""
}
