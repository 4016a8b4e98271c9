package testutil

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel of the machines that build this has no netem, so frames that are to be late go through this process: a
// pump stands between the port of a host and the bridge, and passes each frame on when its time has come.

const (
	frameLimit = 1 << 17 // a header of 10 bytes, and a segment that is not cut yet: 64 KiB and its headers
	queueLimit = 1 << 13 // frames on their way in one direction; more are lost, as in any queue
)

// pump passes frames between the host's ports and the bridges.
type pump struct {
	delay   atomic.Int64 // one way, in nanoseconds
	done    chan struct{}
	sockets []*os.File
	wg      sync.WaitGroup
}

// Delay makes each frame that the host sends, and each that is sent to it, late by d; 0 ends that.
func (h *Host) Delay(d time.Duration) {
	h.t.Helper()
	if d == 0 {
		h.undelay()
		return
	}
	f := &h.wire.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pumps[h.index]; p != nil {
		p.delay.Store(int64(d))
		return
	}
	p := &pump{done: make(chan struct{})}
	p.delay.Store(int64(d))
	if err := h.insert(p); err != nil {
		p.stop()
		h.t.Fatalf("cannot delay %s: %v", h.Name, err)
	}
	if f.pumps == nil {
		f.pumps = map[int]*pump{}
	}
	f.pumps[h.index] = p
}

func (h *Host) undelay() {
	h.t.Helper()
	if !h.dropPump() {
		return
	}
	var ports strings.Builder
	for k := range h.Addrs {
		fmt.Fprintf(&ports, "link del %s\nlink set %s master br%d\n", h.delayPort(k), h.port(k), k)
	}
	if err := h.wire.run(ports.String(), "ip", "-batch", "-"); err != nil {
		h.t.Fatalf("cannot end the delay of %s: %v", h.Name, err)
	}
}

// dropPump stops the host's pump and reports whether there was one.
func (h *Host) dropPump() bool {
	f := &h.wire.faults
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pumps[h.index]
	if p == nil {
		return false
	}
	p.stop()
	delete(f.pumps, h.index)
	return true
}

// delayPort is the port in the bridge that stands for the host while it is delayed.
func (h *Host) delayPort(k int) string { return fmt.Sprintf("d%d.%d", k, h.index) }

// insert takes the host's ports out of the bridges, and puts the pump between.
func (h *Host) insert(p *pump) error {
	for k := range h.Addrs {
		pumped := fmt.Sprintf("x%d.%d", k, h.index)
		commands := fmt.Sprintf(
			"link add name %s type veth peer name %s\nlink set %s up\nlink set %s nomaster\nlink set %s master br%d up\n",
			pumped, h.delayPort(k), pumped, h.port(k), h.delayPort(k), k)
		if err := h.wire.run(commands, "ip", "-batch", "-"); err != nil {
			return err
		}
		var ends [2]*os.File
		for i, name := range []string{h.port(k), pumped} {
			err := onOwnThread(func() (err error) {
				if err := unix.Setns(int(h.wire.ns.Fd()), unix.CLONE_NEWNET); err != nil {
					return err
				}
				ends[i], err = packetSocket(name)
				return err
			})
			if err != nil {
				return err
			}
			p.sockets = append(p.sockets, ends[i])
		}
		p.wg.Go(func() { p.pass(ends[0], ends[1]) })
		p.wg.Go(func() { p.pass(ends[1], ends[0]) })
	}
	return nil
}

// packetSocket opens an interface for its frames. They carry a header that says which sums and cuts the kernel has left
// for later, so that they can be sent on as they came.
func packetSocket(name string) (*os.File, error) {
	itf, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8 // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: itf.Index}),
	)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// lateFrame is a frame on its way.
type lateFrame struct {
	due  time.Time
	data []byte
}

// pass reads frames until its socket is closed, and writes each of them later, in their order.
func (p *pump) pass(from, to *os.File) {
	late := make(chan lateFrame, queueLimit)
	p.wg.Go(func() {
		for frame := range late {
			select {
			case <-time.After(time.Until(frame.due)):
				_, _ = to.Write(frame.data) // an interface that is down or full loses frames
			case <-p.done:
				return
			}
		}
	})
	defer close(late)
	buffer := make([]byte, frameLimit)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			if errors.Is(err, unix.ENETDOWN) {
				continue // said once when an interface goes down; reads wait for it to come up again
			}
			return
		}
		select {
		case late <- lateFrame{time.Now().Add(time.Duration(p.delay.Load())), append([]byte(nil), buffer[:n]...)}:
		default:
		}
	}
}

// stop returns when no frame moves any more. What was on its way is lost.
func (p *pump) stop() {
	close(p.done)
	for _, s := range p.sockets {
		_ = s.Close()
	}
	p.wg.Wait()
}
