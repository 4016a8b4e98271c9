package place

import (
	"testing"

	"muster/internal/errhint"
)

// TestParseBind: an address has a host and a port, and what lacks one is an error of usage.
func TestParseBind(t *testing.T) {
	t.Parallel()
	for bind, want := range map[string]int{"127.0.0.1:0": 0, "localhost:29400": 29400, "[::1]:65535": 65535} {
		if host, port, err := ParseBind(bind); err != nil || port != want || host == "" {
			t.Errorf("%s: %q %d %v", bind, host, port, err)
		}
	}
	for _, bind := range []string{"", "host", ":29400", "host:", "host:65536", "host:-1", "host:x", "::1:5"} {
		if host, port, err := ParseBind(bind); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: %q %d %v", bind, host, port, err)
		}
	}
}
