package warm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// printLimit bounds what modules may print when they are imported, in bytes: every worker prints it again.
const printLimit = 1 << 20

// printed is what modules print while they are imported, in the order in which it arrives.
type printed struct {
	mu     sync.Mutex
	pieces []string // each begins with the number of its stream
	size   int
	ended  int           // streams that have come to their end mark
	all    chan struct{} // closed when both have; made by the first who asks
}

// read collects stream number from r until its end mark, and drops what comes later. It returns at the end of the
// stream.
func (p *printed) read(r *os.File, number string, end []byte) {
	defer func() { _ = r.Close() }()
	var pending []byte // may hold the beginning of the mark
	buf := make([]byte, 1<<15)
	for ended := false; ; {
		n, err := r.Read(buf)
		if !ended {
			pending = append(pending, buf[:n]...)
			at := bytes.Index(pending, end)
			ended = at >= 0
			switch {
			case ended:
				p.add(number, pending[:at])
				p.finish()
			case err != nil:
				p.add(number, pending)
			default:
				whole := max(0, len(pending)-len(end)+1)
				p.add(number, pending[:whole])
				pending = slices.Clone(pending[whole:])
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *printed) add(number string, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.size += len(data)
	if len(data) > 0 && p.size <= printLimit {
		p.pieces = append(p.pieces, number+string(data))
	}
}

func (p *printed) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended++; p.ended == 2 {
		close(p.doneLocked())
	}
}

func (p *printed) doneLocked() chan struct{} {
	if p.all == nil {
		p.all = make(chan struct{})
	}
	return p.all
}

// await returns all that was printed. gone ends the waiting.
func (p *printed) await(gone <-chan struct{}) ([]string, error) {
	p.mu.Lock()
	all := p.doneLocked()
	p.mu.Unlock()
	limit := time.NewTimer(printedLimit)
	defer limit.Stop()
	select {
	case <-all:
	case <-gone:
		return nil, errors.New("the template ended when it was ready")
	case <-limit.C: // what it prints goes somewhere else
		return nil, &refusal{Reason: "what is printed while modules are imported does not arrive", Step: -1, Module: -1}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size > printLimit {
		return nil,
			&refusal{Reason: fmt.Sprintf("more than %d bytes are printed while modules are imported", printLimit), Step: -1, Module: -1}
	}
	return p.pieces, nil
}
