package tcpstore

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deliver sends the connections in l.woken what they earned and did not get yet.
func (l *loop) deliver() {
	list := l.woken
	l.dues = l.dues[:0]
	s := l.srv.space
	s.mu.Lock()
	for _, c := range list {
		l.dues = append(l.dues, c.due)
		c.due = 0
	}
	s.mu.Unlock()
	for i, c := range list {
		if c.closed || l.dues[i] == 0 {
			continue
		}
		for range l.dues[i] {
			l.out.buf = append(l.out.buf, replyStop)
		}
		l.flush(c)
	}
	// A connection that broke just now may have passed its wake-up on to one that stands behind the list.
	n := copy(l.woken, l.woken[len(list):])
	clear(l.woken[n:])
	l.woken = l.woken[:n]
}

// flush sends the replies in l.out to c; what the socket does not take waits in c.out.
func (l *loop) flush(c *conn) {
	if l.out.size() == 0 {
		return
	}
	sent := 0
	if c.out == nil && len(l.out.cuts) == 0 {
		n, err := send(c.fd, l.out.buf)
		if err != 0 && err != unix.EAGAIN {
			l.out.reset()
			l.close(c, nil)
			return
		}
		if sent = n; sent == len(l.out.buf) {
			l.out.reset()
			return
		}
	}
	if c.out == nil {
		c.out = &outbox{moved: time.Now()}
	}
	c.out.add(&l.out, sent)
	l.out.reset()
	l.push(c)
}

// add takes over the replies in r after the first sent bytes; sent is not 0 only if r has no big values.
func (o *outbox) add(r *reply, sent int) {
	var small []byte
	if cap(r.buf) > keepReply && len(r.buf)-sent > cap(r.buf)/2 {
		small, r.buf = r.buf[sent:], nil // reset would not keep it
	} else {
		small = append(small, r.buf[sent:]...)
	}
	o.size += len(small) + r.big
	o.small += len(small)
	at := 0
	for _, c := range r.cuts {
		if c.at > at {
			o.segs = append(o.segs, segment{b: small[at:c.at:c.at]})
			at = c.at
		}
		o.segs = append(o.segs, segment{c.b, c.blob})
	}
	if at < len(small) {
		o.segs = append(o.segs, segment{b: small[at:]})
	}
}

func send(fd int32, b []byte) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
		if e == 0 {
			return int(n), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

// push sends from c.out until the socket takes no more.
func (l *loop) push(c *conn) {
	o := c.out
	var bufs [64][]byte
	for len(o.segs) > 0 {
		n := min(len(o.segs), len(bufs))
		for i := range n {
			bufs[i] = o.segs[i].b
		}
		sent, err := unix.SendmsgBuffers(int(c.fd), bufs[:n], nil, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			l.close(c, nil)
			return
		}
		o.moved = time.Now()
		o.size -= sent
		for sent > 0 {
			seg := &o.segs[0]
			if seg.blob == nil {
				o.small -= min(sent, len(seg.b))
			}
			if sent < len(seg.b) {
				seg.b = seg.b[sent:]
				break
			}
			sent -= len(seg.b)
			if seg.blob != nil {
				l.srv.pool.release(seg.blob)
			}
			*seg = segment{}
			o.segs = o.segs[1:]
		}
	}
	if kept := o.kept(); kept >= hoardFrom || c.hoards {
		if l.hoards(c, kept); c.closed {
			return
		}
	}
	limit := l.srv.cfg.Limits.ReplyBuffer
	switch {
	case o.size == 0:
		c.out = nil
		if c.ending {
			l.close(c, nil)
			return
		}
	case !c.polling:
		c.polling = true
		const events = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLOUT
		if err := l.watch(unix.EPOLL_CTL_MOD, int(c.fd), events, c.slot, c.serial); err != nil {
			l.close(c, fmt.Errorf("cannot watch a connection: %w", err))
			return
		}
	}
	if c.paused && o.size <= limit/2 {
		l.resume(c)
	}
}

func (l *loop) pause(c *conn) {
	c.paused = true
	l.stalled[c] = struct{}{}
}

// resume goes on with the requests of c that were left alone.
func (l *loop) resume(c *conn) {
	c.paused = false
	delete(l.stalled, c)
	l.later(c)
}

// closeStalled closes connections whose full reply buffer has not moved for too long.
func (l *loop) closeStalled() {
	now := time.Now()
	for c := range l.stalled {
		if now.Sub(c.out.moved) >= l.srv.cfg.StallTimeout {
			l.close(c, fmt.Errorf("%w: %d bytes of replies unread for %v", errProtocol, c.out.size, l.srv.cfg.StallTimeout))
		}
	}
}
