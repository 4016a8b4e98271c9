package proc

import "os"

// GuardianPID returns the guardian's pid, 0 while there is none.
func (t *Tree) GuardianPID() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.guard == nil {
		return 0
	}
	return t.guard.proc.PID()
}

// Scan records escaped processes now, as the scanner does from time to time.
func (t *Tree) Scan() { t.scan() }

// Zombies returns how many children of ours are dead and not reaped.
func Zombies() (int, error) {
	s, err := readSnapshot()
	n := 0
	for _, p := range s.kids[os.Getpid()] {
		if p.state == 'Z' {
			n++
		}
	}
	return n, err
}
