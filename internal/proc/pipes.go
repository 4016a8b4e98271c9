package proc

import "os"

// Direction says who writes to a pipe.
type Direction int

// The directions of a pipe between us and a process.
const (
	In  Direction = iota // we write, and the process reads
	Out                  // the process writes, and we read
)

// Pipes are pipes between us and a process that is about to be started.
type Pipes struct {
	Ours   []*os.File // our ends, in the order of the directions
	Theirs []*os.File // the ends for Spec.Files
}

// NewPipes opens a pipe for each direction, all or none. Settle must be called when the process has been started, or could
// not be.
func NewPipes(directions ...Direction) (*Pipes, error) {
	p := &Pipes{}
	for _, d := range directions {
		r, w, err := os.Pipe()
		if err != nil {
			p.Settle(err)
			return nil, err
		}
		if d == In {
			r, w = w, r
		}
		p.Ours, p.Theirs = append(p.Ours, r), append(p.Theirs, w)
	}
	return p, nil
}

// Settle closes the ends of a process that has them by now, and ours, too, if err says that it has not been started.
func (p *Pipes) Settle(err error) {
	closing := p.Theirs
	if p.Theirs = nil; err != nil {
		closing, p.Ours = append(closing, p.Ours...), nil
	}
	for _, f := range closing {
		_ = f.Close() // nothing has been written to it
	}
}
