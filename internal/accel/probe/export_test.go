package probe

import (
	"compress/gzip"
	"strings"
)

// Parse reads a probe's output.
var Parse = parse

// SetBlob makes b the embedded probe until restore is called; nothing makes none.
func SetBlob(b string) (restore func()) {
	was := blob
	var packed strings.Builder
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(b)) // into memory
	_ = w.Close()
	blob = ""
	if b != "" {
		blob = packed.String()
	}
	return func() { blob = was }
}

// ForgetAbandoned lets Run start probes again, and returns the pid of the one that was abandoned.
func ForgetAbandoned() int { return int(left.Swap(0)) }

// SetAbandoned pretends that a probe was abandoned.
func SetAbandoned(pid int) { left.Store(int64(pid)) }

// ParseSMI reads what nvidia-smi says of GPUs, rows and processes.
func ParseSMI(gpus, rows, processes string) (*Report, error) {
	r := &Report{SMI: true}
	err := r.takeSMI(gpus)
	r.smiRows(rows)
	r.smiProcesses(processes)
	return r, err
}
