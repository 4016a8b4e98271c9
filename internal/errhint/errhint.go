// Package errhint lets an error carry what the reader needs beside its text: a hint (what to try) and the exit status
// muster ends with. Both travel with errors.Unwrap; the innermost value wins, because the place nearest to the cause
// knows it best. Every package may import it; cmd reads it once, when it prints the error.
package errhint

import (
	"errors"
	"fmt"
	"syscall"
)

// Exit statuses of muster itself. The only table is in docs/failures.md; a worker's own status passes through beside
// them.
const (
	OK          = 0   // the job succeeded
	Usage       = 2   // usage or configuration error; nothing was started
	TryAgain    = 75  // the world could not be assembled in time
	Faulty      = 80  // this node was judged faulty
	Straggler   = 81  // this node was excluded as a straggler
	Undecided   = 82  // a check failed or could not be run, and nobody can be blamed
	DoNotRetry  = 93  // do not restart this job
	Deadline    = 124 // deadline reached
	Internal    = 125 // internal error, or processes that could not be killed
	NotExecuted = 126 // command found but not executable
	NotFound    = 127 // command not found
)

// FromSignal returns the status 128+n of a process that signal n ended.
func FromSignal(n int) int { return 128 + n }

type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// With returns err carrying hint, a sentence that says what to try. A nil err stays nil.
func With(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &hinted{err, hint}
}

// Of returns the innermost hint of err, or "".
func Of(err error) string {
	hint := ""
	for err != nil {
		if h, ok := errors.AsType[*hinted](err); ok {
			hint, err = h.hint, h.error
			continue
		}
		break
	}
	return hint
}

type coded struct {
	error
	code int
}

func (c *coded) Unwrap() error { return c.error }

// Code returns err carrying the exit status code. A nil err stays nil.
func Code(err error, code int) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

// CodeOf returns the innermost exit status of err, 0 for nil and Internal where none was given.
func CodeOf(err error) int {
	if err == nil {
		return OK
	}
	code := Internal
	for err != nil {
		c, ok := errors.AsType[*coded](err)
		if !ok {
			break
		}
		code, err = c.code, c.error
	}
	return code
}

// StatusError ends the program with a status about which everything has been said already.
type StatusError int

func (e StatusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Full reports whether err is that a file system, or a quota of it, has no room left, be it for bytes or for files.
func Full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// MakeRoom is the hint for a file system at path that is Full, where flag names another place.
func MakeRoom(path, flag string) string {
	return "make room on the file system of " + path + " (df -h, df -i), or give another " + flag
}

// Usagef returns an error with status Usage: the user asked for something that cannot be, and nothing was started.
func Usagef(format string, args ...any) error {
	return Code(fmt.Errorf(format, args...), Usage)
}
