// Command nvprobe asks NVIDIA's management library (NVML) what it knows of the GPUs, and writes it to standard output
// in the language of package nvline. It is a program of its own because the library can hang, crash, or end the process
// that loaded it: muster stays static and alive, and runs this under a deadline (internal/accel/probe).
//
// It takes no arguments. MUSTER_NVML_PATH names another library than libnvidia-ml.so.1. Its exit status is 0 when it
// could say all that there is to say, bad news included.
//
// Never link it with -z now or run it with LD_BIND_NOW: some 400 functions of NVML stay undefined until the library is
// loaded, and the loader would refuse to start it.
package main

import (
	"encoding/json"
	"io"
)

// writer writes lines, each at once and in one piece: what was said before a crash has been said.
type writer struct {
	to   io.Writer
	gone bool // nobody reads them any more
}

func (w *writer) put(line any) {
	b, err := json.Marshal(line)
	if err != nil {
		return // not possible: the lines have neither floats nor cycles
	}
	if _, err := w.to.Write(append(b, '\n')); err != nil {
		w.gone = true // there is nobody to tell
	}
}
