package diagnose

import (
	"fmt"
	"path"
	"strings"

	"muster/launch/evidence"
)

// waitsForDevice makes of a rank that keeps a processor busy what it is where it waits for its GPU: the driver looks again and again
// whether that is ready. Where the GPU is in a collective the rank waits for the others.
func waitsForDevice(a *activity, main *evidence.Process) {
	own := (*evidence.Frame)(nil)
	if len(main.Stacks) > 0 {
		own = main.Stacks[0].Own()
	}
	if a.kind != Runs || a.rank.Spins == 0 && (!main.Device || !synchronizes(main, own)) {
		return
	}
	where := ""
	if own != nil {
		where = place(own)
	}
	if c := pending(main); c != nil {
		a.kind, a.call, a.at, a.in = Collective, c.Op, where, c
		a.does = "waits in " + c.Op + " " + where
		return
	}
	a.kind, a.does = Device, "waits for its device"
	if where != "" {
		a.does += " " + where
	}
}

// standsStill is the line of evidence of how long a rank has got nowhere. It is none of what the rank does: ranks that do the
// same are told of together.
func standsStill(r *evidence.Rank) []string {
	if r.Spins == 0 {
		return nil
	}
	return []string{fmt.Sprintf("rank %d: for %.0f s it has begun no collective, taken no memory of its device, and stood where it stands",
		r.Rank, r.Spins)}
}

// synchronizes reports whether the main thread of a process is at a line that waits for a device.
func synchronizes(p *evidence.Process, own *evidence.Frame) bool {
	if len(p.Stacks) == 0 || len(p.Stacks[0].Frames) == 0 { // it is no Python, or does not answer
		return false
	}
	frames := p.Stacks[0].Frames
	if last := &frames[len(frames)-1]; last.Func == "synchronize" && path.Base(path.Dir(last.File)) == "cuda" {
		return true
	}
	if own != &frames[len(frames)-1] { // the line calls something that is in Python
		return false
	}
	for _, call := range []string{".item(", ".cpu(", ".tolist(", ".numpy(", "synchronize("} {
		if strings.Contains(own.Text, call) {
			return true
		}
	}
	return false
}
