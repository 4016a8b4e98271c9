package checkpointd

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"muster/internal/peertls"
)

// memfile is a file in memory of so many bytes.
func memfile(t testing.TB, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// connected is a connection over loopback, of agents that have proven themselves unless it is plain.
func connected(t testing.TB, d peertls.Domain, proven bool) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	if !proven {
		return here, there
	}
	id := peertls.NewIdentity(l.Addr().String())
	a := d.Acceptor(id)
	served := make(chan error, 1)
	var server *peertls.Conn
	go func() { server, err = a.Server(t.Context(), here); served <- err }()
	client, clientErr := d.Client(t.Context(), there, id)
	if err := errors.Join(clientErr, <-served); err != nil {
		t.Fatal(err)
	}
	return server, client
}
