package checkpointd

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// errCut is why a slot's memory is not used that somebody made shorter: its file has a name, and so no seal.
var errCut = errors.New("its memory was cut short by another process")

// guarded calls f, which reads or writes a slot's memory, and returns errCut where that is not there any more. Without
// it the kernel's signal would end the agent.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			err = fmt.Errorf("%w (%w)", errCut, r)
		default:
			panic(r)
		}
	}()
	return f()
}
