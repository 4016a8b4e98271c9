//go:build !linux

package netprobe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
)

func isTooBig(error) bool { return false }

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

var errNoSizes = fmt.Errorf("sizes of datagrams are not tried on %s", runtime.GOOS)

func neverFragment(int, netip.Addr) error { return errNoSizes }

func control(c syscall.RawConn, f func(fd int) error) error {
	var inner error
	err := c.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}

func share(int) error { return errNoSizes }

func connect(*net.UDPConn, netip.AddrPort) error { return errNoSizes }

// sentOver says nothing here.
func sentOver(net.Conn) Sent { return Sent{} }

// speedOf says nothing here.
func speedOf(string) int { return 0 }
