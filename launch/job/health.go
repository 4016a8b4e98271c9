package job

import (
	"fmt"
	"strings"
)

// HealthRules say whom of the site muster asks whether a node is fit, before it takes part in a round. The zero value
// asks nobody.
type HealthRules struct {
	// Socket is the path of the Unix socket at which a service answers in the protocol of NVIDIA's resiliency extension.
	Socket string
	// Command is a command for the shell whose exit status says it.
	Command string
}

// Asks reports whether somebody is asked.
func (h HealthRules) Asks() bool { return h.Socket != "" || h.Command != "" }

// SocketPath is the path of the Unix socket in an endpoint such as unix:/run/health.sock.
func SocketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//")
	if path == endpoint && !strings.HasPrefix(endpoint, "/") && !strings.HasPrefix(endpoint, "./") || path == "" {
		return "", fmt.Errorf("%q is no Unix socket: write unix:PATH", endpoint)
	}
	return path, nil
}
