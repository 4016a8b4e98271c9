package report

import (
	"path"
	"strings"

	"muster/internal/lazyregexp"
	"muster/internal/python"
)

// exception is one that Python has printed.
type exception struct {
	exception string // its name, without its module
	at        string // file:line of the innermost frame of the user's program, of any where there is none; may be empty
	thread    string // the thread that it ended, empty for the main one
	exits     bool   // it was raised by a handler of atexit
}

var (
	// tracebackFrame is where a line of the program stands in what Python says of an exception.
	tracebackFrame = lazyregexp.New(`^\s+File "([^"]+)", line (\d+)`)
	// exceptionLine is the line behind the frames.
	exceptionLine = lazyregexp.New(`^([A-Za-z_][\w.]*)(:|$)`)
	// looksRaised is a line that may be the last one of an exception.
	looksRaised = lazyregexp.New(`^(\[rank\d+\]: ?)?[A-Za-z_][\w.]*(Error|Exception|Warning|Interrupt)\b`)
	// rankPrefix is what PyTorch puts before each line of an exception once ranks have met.
	rankPrefix = lazyregexp.New(`^\[rank\d+\]: ?`)
)

const tracebackBegins = "Traceback (most recent call last):"

// raised finds the last exception that a worker has printed. What a first exception has led to comes last.
func raised(lines []string) (e exception, found bool) {
	inFrames := false
	before := ""
	for _, line := range lines {
		line = line[:min(len(line), maxSaid)]
		line = rankPrefix().ReplaceAllString(line, "")
		switch m := tracebackFrame().FindStringSubmatch(line); {
		case strings.HasPrefix(line, tracebackBegins):
			e, inFrames = exception{}, true
			if name, is := strings.CutPrefix(before, "Exception in thread "); is {
				e.thread = strings.TrimSuffix(name, ":")
			}
			e.exits = strings.Contains(before, "atexit")
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
				e.exception, found = name[len(name)-1], true
			}
			inFrames = false
		}
		before = line
	}
	return e, found
}

// RaisedAt is where the program raised the exception that ended the worker, as file:line; empty where that is not known.
func (f *Failure) RaisedAt() string {
	e, _ := raised(f.Words())
	return e.at
}
