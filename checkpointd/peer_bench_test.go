package checkpointd

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/peertls"
	"muster/internal/wire"
)

// BenchmarkCopy brings 256 MiB over loopback from memory to memory: as plain bytes, which is what the network between
// two processes of this machine gives; encrypted, over one connection; and as agents bring each other copies:
// encrypted, in parts, and summed.
func BenchmarkCopy(b *testing.B) {
	const size = 256 << 20
	from, to := &memory{bytes: make([]byte, headerSize+size)}, &memory{bytes: make([]byte, headerSize+size)}
	for i := range from.bytes {
		from.bytes[i] = byte(i * 7)
		to.bytes[i] = 1 // its pages are there
	}
	from.file, to.file = memfile(b, headerSize+size), memfile(b, headerSize+size)
	of := &copied{used: size, metaOff: headerSize}
	domain := peertls.Domain{Token: []byte("a token of this test"), Purpose: peerPurpose}
	for _, way := range []struct {
		name  string
		parts int
		sums  bool
	}{{"plain", 0, false}, {"encrypted", partsFor(size), false}, {"copy", partsFor(size), true}} {
		parts := way.parts
		b.Run(way.name, func(b *testing.B) {
			var here, there []net.Conn
			for range max(1, parts) {
				h, t := connected(b, domain, parts > 0)
				here, there = append(here, h), append(there, t)
			}
			b.SetBytes(size)
			began := cpuTime()
			for b.Loop() {
				sent := make(chan error, len(there))
				for part, conn := range there {
					go func() {
						if parts == 0 {
							_, err := conn.Write(from.bytes[headerSize:])
							sent <- err
							return
						}
						sent <- sendCopy(conn, from, of, part, parts)
					}()
				}
				var err error
				switch {
				case parts == 0:
					_, err = io.ReadFull(here[0], to.bytes[headerSize:])
				case !way.sums:
					got := make(chan error, parts)
					for part, conn := range here {
						go func() {
							var head copyHead
							err := wire.Read(conn, greetingLimit, &head)
							if from, end := partOf(size, part, parts); err == nil {
								_, err = io.ReadFull(conn, to.bytes[headerSize+from:headerSize+end])
							}
							got <- err
						}()
					}
					for range here {
						err = errors.Join(err, <-got)
					}
				default:
					var head copyHead
					if err = wire.Read(here[0], greetingLimit, &head); err == nil {
						_, err = receiveCopy(b.Context(), keep{here[0]}, &head, to,
							func(_ context.Context, part int) (net.Conn, error) { return keep{here[part]}, nil })
					}
				}
				for range there {
					err = errors.Join(err, <-sent)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime()-began).Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}

// cpuTime is what this process has used: of both ends.
func cpuTime() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// keep is a connection that is used again.
type keep struct{ net.Conn }

func (keep) Close() error { return nil }
