package nodehealth

import (
	"context"
	"net"
)

// dialer connects to a Unix socket, whatever address gRPC wants.
func dialer(path string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}
