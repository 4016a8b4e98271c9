package checkpointd

import (
	"errors"
	"io"
	"net"
	"testing"
)

// BenchmarkCopy brings 256 MiB over loopback from memory to memory: as agents bring each other copies, and as plain bytes, which
// is what the network between two processes of this machine gives.
func BenchmarkCopy(b *testing.B) {
	const size = 256 << 20
	from, to := &memory{bytes: make([]byte, headerSize+size)}, &memory{bytes: make([]byte, headerSize+size)}
	for i := range from.bytes {
		from.bytes[i] = byte(i * 7)
		to.bytes[i] = 1 // its pages are there
	}
	of := &copied{used: size}
	for name, way := range map[string]struct{ send, receive func(net.Conn) error }{
		"copy": {
			func(c net.Conn) error { return sendCopy(c, from, of) },
			func(c net.Conn) error {
				var head copyHead
				if err := readFrame(c, peerLimit, &head); err != nil {
					return err
				}
				return receiveCopy(c, head, to)
			},
		},
		"plain": {
			func(c net.Conn) error { _, err := c.Write(from.bytes[headerSize:]); return err },
			func(c net.Conn) error { _, err := io.ReadFull(c, to.bytes[headerSize:]); return err },
		},
	} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			there, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer there.Close()
			here, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			defer here.Close()
			b.SetBytes(size)
			for b.Loop() {
				sent := make(chan error, 1)
				go func() { sent <- way.send(there) }()
				if err := errors.Join(way.receive(here), <-sent); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
