package output

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"time"
)

const (
	// pumpBytes is how much of a stream is held in memory at most. A longer line is shown piece by piece. The buffer
	// begins with firstBytes, and is grown once it was filled: most workers write little at once.
	pumpBytes  = 256 << 10
	firstBytes = 16 << 10
	// promptWait is how long an unfinished line rests before it is shown: prompts and progress bars end without
	// newline.
	promptWait = 100 * time.Millisecond
	// tornWait is the same where other workers are shown too. A worker whose runtime buffers its output writes in
	// blocks that end anywhere in a line; were the rest of such a line shown at once, the next line of another worker
	// would tear it. Whoever hangs in the middle of a line is still seen to do so.
	tornWait = 5 * time.Second
	// A line longer than pumpBytes keeps the others off the console. It loses the turn when nothing of it came for
	// holdIdle, or after holdMost: the others may be what its worker waits for.
	holdIdle = time.Second
	holdMost = 10 * time.Second
	// updateApart is the pace at which updates of a progress bar are shown behind a prefix, and updateApartShared when
	// each takes a line because another worker wrote in between.
	updateApart       = promptWait
	updateApartShared = time.Second
	// stateApart is the same where no terminal shows a bar moving: each of its states is a line of a file.
	stateApart = 10 * time.Second
)

// pump carries one stream of a worker to a console, line by line, and remembers its end. All fields belong to the
// goroutine of run.
type pump struct {
	src source
	// out is nil for a stream that is only remembered.
	out       *console
	localRank int
	// alone says that no other worker is shown, so that no line of another one can come in between.
	alone bool
	// prefixed says that each line starts with prefix, and that of a progress bar's updates (separated by \r) only some
	// are shown. Otherwise every byte passes as it is, but for the bars of several workers where no terminal shows them
	// moving: they would tear each other, an update a line.
	prefixed bool
	prefix   []byte
	// stamp puts the time in front of the prefix.
	stamp bool
	// tail may be nil: the ends of files are read back from there.
	tail *tail
	// heard is when something came last, in ns since the epoch; nil: nobody asks.
	heard *atomic.Int64
	// read counts the bytes that came; nil: nobody asks.
	read *atomic.Int64
	// calledOff is closed when nothing more is to be shown.
	calledOff chan struct{}

	buf  []byte
	have int // bytes of buf: the unfinished line, as far as it was not shown
	// about the unfinished line:
	begun    bool   // a part of it was shown
	progress bool   // it has updates
	state    []byte // the last of them that was shown as a line
	rewrite  bool   // what comes next replaces what was shown of it

	shownAt   time.Time // last update
	holding   bool
	heldSince time.Time
}

// run carries the stream until its end.
func (p *pump) run() {
	p.buf = make([]byte, firstBytes)
	defer p.src.close()
	for {
		n, err := p.src.read(p.buf[p.have:], p.patience())
		if n > 0 {
			if p.heard != nil {
				p.heard.Store(time.Now().UnixNano())
				p.read.Add(int64(n))
			}
			if p.tail != nil {
				p.tail.add(p.buf[p.have : p.have+n])
			}
			p.have += n
			full := p.have == len(p.buf)
			p.show()
			if full {
				p.grow()
			}
		}
		if errors.Is(err, errIdle) {
			p.showUnfinished()
			p.letGo()
		} else if err != nil {
			if p.out != nil && !errors.Is(err, io.EOF) {
				p.letGo() // the log may write to this console
				p.out.log.Warn().Err(err).Int("local_rank", p.localRank).Msg("cannot read a worker's output")
			}
			p.finish()
			return
		}
	}
}

// grow gives the buffer room for more, up to pumpBytes.
func (p *pump) grow() {
	if len(p.buf) < pumpBytes {
		p.buf = append(make([]byte, 0, 4*len(p.buf)), p.buf...)
		p.buf = p.buf[:cap(p.buf)]
	}
}

// quiet reports whether what is read is not to be shown.
func (p *pump) quiet() bool {
	if p.out == nil || p.out.lost.Load() {
		return true
	}
	select {
	case <-p.calledOff:
		return true
	default:
		return false
	}
}

// patience is how long the next read may take before the unfinished line is shown; negative for ever.
func (p *pump) patience() time.Duration {
	switch {
	case p.holding:
		return holdIdle
	case p.have == 0:
		return -1
	case p.progress && p.sifted():
		return max(promptWait, time.Until(p.shownAt.Add(p.apart())))
	case p.progress || p.alone:
		return promptWait
	}
	return tornWait
}

func (p *pump) apart() time.Duration {
	if !p.out.live {
		return stateApart
	}
	if openLine := p.out.openLine.Load(); openLine == nil || openLine == p {
		return updateApart
	}
	return updateApartShared
}

// turn takes the console's turn, unless it is held already; false when nothing more is to be shown.
func (p *pump) turn() bool {
	if p.holding {
		return true
	}
	if !p.out.take(p.calledOff) {
		return false
	}
	p.holding = true
	p.heldSince = time.Now()
	return true
}

func (p *pump) letGo() {
	if p.holding {
		p.holding = false
		p.out.release()
	}
}

// show shows the complete lines of what was read, and of the rest what is due.
func (p *pump) show() {
	if p.quiet() {
		p.letGo()
		p.have = 0
		return
	}
	data := p.buf[:p.have]
	if end := bytes.LastIndexByte(data, '\n') + 1; end > 0 {
		if p.turn() {
			p.writeLines(data[:end])
			p.letGo()
		}
		data = data[end:]
		p.begun, p.progress, p.rewrite = false, false, false
	}
	if end := lastUpdate(data); end > 0 {
		p.moves()
		if p.sifted() {
			if time.Since(p.shownAt) >= p.apart() {
				p.showText(data[:end])
			}
			p.rewrite = true // not shown: the next one replaces it anyway
		} else {
			p.showText(data[:end])
		}
		p.letGo()
		data = data[end:]
	} else if p.sifted() && len(data) > 0 && data[len(data)-1] == '\r' {
		p.moves()
	}
	p.have = copy(p.buf, data)
	if p.have == pumpBytes {
		p.showText(p.buf) // and keep the turn
		p.have = 0
	}
	if p.holding && time.Since(p.heldSince) > holdMost {
		p.letGo()
	}
}

// moves notes that the unfinished line is a progress bar.
func (p *pump) moves() {
	if p.progress {
		return
	}
	p.progress, p.state = true, nil
	if !p.out.live {
		p.shownAt = time.Now() // a bar that ends soon shows its end alone
	}
}

// settled reports whether states of the unfinished line are shown as lines.
func (p *pump) settled() bool { return p.sifted() && p.progress && !p.out.live }

// sifted reports whether of a bar's updates only some are shown.
func (p *pump) sifted() bool { return p.prefixed || !p.alone && !p.out.live }

// appendState appends the last state of a bar as a line, unless it was shown. The caller has the turn.
func (p *pump) appendState(to []byte, openLine *pump, text []byte) []byte {
	state := text[bytes.LastIndexByte(text, '\r')+1:]
	if p.state != nil && (len(state) == 0 || bytes.Equal(state, p.state)) {
		return to
	}
	if openLine != nil {
		to = append(to, '\n')
	}
	p.state = append([]byte{}, state...)
	return append(append(p.head(to), state...), '\n')
}

// lastUpdate returns where the text behind the last carriage return of an unfinished line starts, 0 where there is
// none. Those at the end are left alone: a newline may follow.
func lastUpdate(data []byte) int {
	return bytes.LastIndexByte(bytes.TrimRight(data, "\r"), '\r') + 1
}

// showUnfinished shows what there is of the unfinished line, because nothing more came for a while.
func (p *pump) showUnfinished() {
	if p.have == 0 || p.quiet() {
		return
	}
	p.showText(p.buf[:p.have])
	p.have = 0
}

// showText shows a part of the unfinished line; the turn is kept.
func (p *pump) showText(text []byte) {
	shown := text
	if p.prefixed || p.settled() {
		shown = bytes.TrimRight(text, "\r")
		if len(shown) == 0 {
			p.rewrite = true
			return
		}
	}
	if !p.turn() {
		return
	}
	if p.settled() {
		p.out.compose = p.appendState(p.out.compose[:0], p.out.openLine.Load(), shown)
		if len(p.out.compose) > 0 {
			p.out.write(p.out.compose, nil, p.calledOff)
		}
		p.shownAt, p.begun, p.rewrite = time.Now(), false, false
		return
	}
	if p.prefixed {
		p.out.compose = p.appendText(p.out.compose[:0], p.out.openLine.Load(), shown)
		p.out.write(p.out.compose, p, p.calledOff)
		p.rewrite = len(shown) < len(text)
		p.shownAt = time.Now()
	} else {
		p.writeRaw(shown, p)
	}
	p.begun = true
}

// writeRaw writes text as it is, behind a newline if somebody else's line stands at the end of the console.
func (p *pump) writeRaw(text []byte, openLine *pump) {
	if now := p.out.openLine.Load(); now != nil && now != p {
		p.out.write([]byte{'\n'}, nil, p.calledOff)
	}
	p.out.write(text, openLine, p.calledOff)
}

// appendText appends a part of a line, with what has to come before it when openLine is at the end of the console. Of
// its updates only the last is taken.
func (p *pump) appendText(to []byte, openLine *pump, text []byte) []byte {
	if i := bytes.LastIndexByte(text, '\r'); i >= 0 {
		text, p.rewrite = text[i+1:], true
	}
	switch {
	case openLine == p && p.rewrite:
		if len(text) == 0 {
			return to
		}
		to = append(to, '\r')
		if p.out.terminal {
			to = append(to, "\x1b[K"...) // clear: updates that were left out may have been longer
		}
		to = p.head(to)
	case openLine == p: // goes on where it was
	case openLine != nil:
		to = p.head(append(to, '\n'))
	default:
		to = p.head(to)
	}
	p.rewrite = false
	return append(to, text...)
}

// head begins a line.
func (p *pump) head(to []byte) []byte {
	if p.stamp {
		to = time.Now().AppendFormat(to, time.ANSIC) // as C's asctime writes it
	}
	if !p.prefixed {
		return to
	}
	return append(to, p.prefix...)
}

// writeLines shows lines, the first of which may have been begun before. The caller has the turn.
func (p *pump) writeLines(lines []byte) {
	returns := bytes.IndexByte(lines, '\r') >= 0
	if bars := returns || p.progress; !p.prefixed && (!bars || !p.sifted()) {
		p.writeRaw(lines, nil)
		return
	}
	out := p.out.compose[:0]
	openLine := p.out.openLine.Load()
	for len(lines) > 0 {
		end := bytes.IndexByte(lines, '\n') + 1
		line := lines[:end]
		lines = lines[end:]
		switch {
		case p.settled():
			if more := p.appendState(out, openLine, bytes.TrimRight(line, "\r\n")); len(more) > len(out) {
				out, openLine = more, nil
			}
			p.progress = false
		case p.begun && openLine != p && len(bytes.TrimRight(line, "\r\n")) == 0:
			// All of it was shown, and somebody else ended it.
		case returns || openLine != nil:
			text := bytes.TrimRight(line, "\r\n")
			out = append(p.appendText(out, openLine, text), line[len(text):]...)
			openLine = nil
		default:
			out = append(p.head(out), line...)
		}
		p.begun, p.rewrite = false, false
		if len(out) >= pumpBytes {
			p.out.write(out, openLine, p.calledOff)
			out = out[:0]
		}
	}
	p.out.write(out, openLine, p.calledOff)
	p.out.compose = out[:0]
}

// finish shows what is left when the stream has ended. Behind a prefix, the last line gets the newline it lacks.
func (p *pump) finish() {
	defer p.letGo()
	if p.quiet() {
		return
	}
	if !p.prefixed {
		p.showUnfinished()
		return
	}
	if p.have == 0 && p.out.openLine.Load() != p {
		return
	}
	if p.turn() {
		p.writeLines(append(p.buf[:p.have:p.have], '\n'))
	}
}
