package job

import "testing"

// An endpoint is a Unix socket.
func TestSocketPath(t *testing.T) {
	for endpoint, want := range map[string]string{
		"unix:/run/h.sock": "/run/h.sock", "unix:///run/h.sock": "/run/h.sock", "/run/h.sock": "/run/h.sock", "./h": "./h", "unix:h": "h",
		"host:80": "", "": "", "unix:": "",
	} {
		if path, err := SocketPath(endpoint); path != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", endpoint, path, err)
		}
	}
}
