package probe

// Parse reads a probe's output.
var Parse = parse

// SetBlob makes b the embedded probe until restore is called.
func SetBlob(b string) (restore func()) {
	was := blob
	blob = b
	return func() { blob = was }
}

// ForgetAbandoned lets Run start probes again, and returns the pid of the one that was abandoned.
func ForgetAbandoned() int { return int(left.Swap(0)) }

// SetAbandoned pretends that a probe was abandoned.
func SetAbandoned(pid int) { left.Store(int64(pid)) }
