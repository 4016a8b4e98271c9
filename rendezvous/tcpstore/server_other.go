//go:build !linux

package tcpstore

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

// Server is not there on this system: its event loops are made of Linux's epoll.
type Server struct{}

// Listen returns an error that wraps errors.ErrUnsupported.
func Listen(ServerConfig) (*Server, error) {
	return nil, fmt.Errorf("cannot serve a store on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// Addrs returns nothing.
func (s *Server) Addrs() []netip.AddrPort { return nil }

// Port returns 0.
func (s *Server) Port() int { return 0 }

// Operations returns 0.
func (s *Server) Operations() uint64 { return 0 }

// Reset does nothing.
func (s *Server) Reset() {}

// Forget does nothing.
func (s *Server) Forget(string) {}

// Close does nothing.
func (s *Server) Close() error { return nil }
