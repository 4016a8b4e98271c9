package tcpstore

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// read reads from c until there is no more, its reply buffer is full, or its turn is over.
func (l *loop) read(c *conn) {
	for range readRounds {
		if c.closed || c.paused || c.ending || c.again {
			return
		}
		into := l.buf
		if c.fill != nil {
			b := c.fill.blob
			if len(b.b) == cap(b.b) {
				if err := l.grow(c.fill.key, b, c.fill.size); err != nil {
					l.refuse(c, err)
					l.close(c, err)
					return
				}
			}
			into = b.b[len(b.b):min(cap(b.b), c.fill.size)]
		}
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(&into[0])), uintptr(len(into)), 0, 0, 0)
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			return
		case e != 0:
			l.close(c, nil)
			return
		case n == 0:
			l.finish(c, nil)
			return
		}
		if c.fill != nil {
			b := c.fill.blob
			b.b = b.b[:len(b.b)+int(n)]
			if len(b.b) == c.fill.size {
				l.filled(c)
			}
		} else {
			l.take(c, into[:n])
		}
		if int(n) < len(into) && !c.hungup {
			return
		}
	}
	if !c.closed && !c.ending {
		l.later(c)
	}
}

// later goes on with c when others have had their turn.
func (l *loop) later(c *conn) {
	if !c.again {
		c.again = true
		l.again = append(l.again, c)
	}
}

// grow gives a value that arrives more room, if the store has it.
func (l *loop) grow(key []byte, b *blob, size int) error {
	s := l.srv.space
	s.mu.Lock()
	err := s.roomForValueLocked(key, min(size, 4*cap(b.b))-cap(b.b))
	s.mu.Unlock()
	if err == nil {
		l.srv.pool.grow(b, size)
	}
	return err
}

// take adds b to what came of c before, carries out the requests in it and keeps the rest.
func (l *loop) take(c *conn, b []byte) {
	if c.in != nil {
		c.in = append(c.in, b...)
		b = c.in
	}
	for {
		rest, full, err := l.feed(c, b)
		l.flush(c)
		if err != nil {
			if errors.Is(err, errFull) {
				l.refuse(c, err)
			}
			l.finish(c, err)
			return
		}
		if c.closed {
			return
		}
		b = rest
		if !full || c.again {
			break
		}
		if c.unsent() >= l.srv.cfg.Limits.ReplyBuffer {
			l.pause(c)
			break
		}
	}
	switch {
	case len(b) == 0:
		c.in = nil
	case c.in != nil && &b[0] == &c.in[0]:
		c.in = b // nothing was consumed; copying it at every read would make a long request cost its length squared
	case c.in == nil:
		c.in = append([]byte(nil), b...)
	default:
		c.in = append(c.in[:0], b...) // a move to the front; b lies in c.in
	}
	if err := l.count(c); err != nil {
		l.refuse(c, err)
		l.finish(c, err)
	}
}

// feed carries out the whole requests at the start of b. It stops early, and returns full, when the replies reach their
// limit, or at a second list of all keys in the same turn: c goes on later then. The replies stand in l.out.
func (l *loop) feed(c *conn, b []byte) (rest []byte, full bool, err error) {
	cfg, s := &l.srv.cfg, l.srv.space
	s.mu.Lock()
	defer s.mu.Unlock()
	l.collectLocked(c)
	for len(b) > 0 {
		if !c.scan.active {
			o, used, ok, err := c.opcode(b, cfg.OldClients, &cfg.Limits)
			if err != nil {
				return b, false, err
			}
			if !ok {
				return b, false, nil
			}
			if used > 0 {
				if !c.spoke {
					c.speaks()
				}
				b = b[used:]
				continue
			}
			c.scan = begin(o)
		}
		whole, err := c.scan.advance(b, &cfg.Limits)
		if err != nil {
			return b, false, err
		}
		if !whole {
			rest, err := l.beginFill(c, b)
			return rest, false, err
		}
		o, n := c.scan.op, c.scan.pos
		c.scan = scan{}
		if o == opListKeys {
			if l.listed {
				l.later(c)
				return b, true, nil
			}
			l.listed = true
		}
		c.forgetLocked(s)
		if !c.spoke {
			c.speaks()
		}
		if err = s.roomForLocked(o, request(b[1:n:n]), n, &c.waiter); err == nil {
			err = s.do(o, request(b[1:n:n]), &c.waiter, &l.out)
		}
		l.collectLocked(c)
		if err != nil {
			return b, false, err
		}
		b = b[n:]
		if l.out.size()+c.unsent() >= cfg.Limits.ReplyBuffer {
			return b, true, nil
		}
	}
	return b, false, nil
}

// forgetLocked drops a pending wait when a client of PyTorch 2.0 or older sends something else: its own time limit has
// passed, it has no CANCEL_WAIT, and a late answer would be taken for the answer to what it sends now.
func (c *conn) forgetLocked(s *space) {
	if Generation(c.gen) == G0 && c.wait != nil {
		s.dropWaitLocked(&c.waiter)
	}
}

// beginFill returns b, a part of a request, unless the rest of it is a big value that can be read into place.
func (l *loop) beginFill(c *conn, b []byte) ([]byte, error) {
	start, size, ok := c.scan.tail(b)
	if !ok || size < bigValue {
		return b, nil
	}
	head := request(b[1:start])
	key := head.bytes()
	if err := l.srv.space.roomForValueLocked(key, size); err != nil {
		return b, err
	}
	blob := l.srv.pool.get(size, len(b)-start)
	blob.b = append(blob.b, b[start:]...)
	c.fill = &fill{op: c.scan.op, key: append([]byte(nil), key...), blob: blob, size: size}
	c.scan = scan{}
	return nil, nil
}

// filled carries out the request whose big value is complete.
func (l *loop) filled(c *conn) {
	f, s := c.fill, l.srv.space
	c.fill = nil
	var err error
	s.mu.Lock()
	c.forgetLocked(s)
	if !c.spoke {
		c.speaks()
	}
	ks := s.of(f.key, &c.waiter)
	switch f.op {
	case opSet:
		ks.storeLocked(f.key, nil, f.blob)
	case opQueuePush:
		ks.pushLocked(f.key, nil, f.blob)
	default:
		if err = s.roomForAppendLocked(ks.keys[string(f.key)], len(f.blob.b)); err == nil {
			err = ks.appendLocked(f.key, f.blob.b)
		}
		l.srv.pool.release(f.blob)
	}
	l.collectLocked(c)
	s.mu.Unlock()
	l.flush(c)
	if err != nil {
		if errors.Is(err, errFull) {
			l.refuse(c, err)
		}
		l.finish(c, err)
	}
}

// collectLocked puts the earned wake-ups of c into l.out, and passes on those of others.
func (l *loop) collectLocked(c *conn) {
	s := l.srv.space
	for ; c.due > 0; c.due-- {
		l.out.buf = append(l.out.buf, replyStop)
	}
	if len(s.woken) > 0 {
		l.notifyLocked(c)
	}
}

// notifyLocked tells the loops of those who were woken, save c.
func (l *loop) notifyLocked(c *conn) {
	s := l.srv.space
	for i, w := range s.woken {
		s.woken[i] = nil
		switch o := w.conn; {
		case o == c:
		case o.loop == l:
			l.woken = append(l.woken, o)
		default:
			o.loop.box.mu.Lock()
			o.loop.box.woken = append(o.loop.box.woken, o)
			o.loop.ringLocked()
		}
	}
	s.woken = s.woken[:0]
}
