package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"muster/launch/evidence"
)

// loaderName is what PyTorch (2.15.0, torch/utils/data/_utils/worker.py) calls the main thread of a data loader's worker.
const loaderName = "pt_data_worker"

// loads reports whether a process waits for a worker of its data loader.
func loads(p *evidence.Process) bool {
	if len(p.Stacks) == 0 || p.Wants >= busy {
		return false
	}
	for _, f := range p.Stacks[0].Frames {
		if strings.HasSuffix(f.File, "/torch/utils/data/dataloader.py") && strings.HasPrefix(f.Func, "_try_get_data") {
			return true
		}
	}
	return false
}

// loader says what the workers of a rank's data loader do.
func loader(r *evidence.Rank, main *evidence.Process) (does string, shown []string) {
	var worst *evidence.Process
	how, best := "", len(severity)
	// PyTorch gives its loader's workers a name; by another one a process that it has started may be anything.
	named := slices.ContainsFunc(r.Processes, func(p evidence.Process) bool { return p.PPID == main.PID && p.Name == loaderName })
	for i := range r.Processes {
		p := &r.Processes[i]
		if p.PPID != main.PID || strings.Contains(p.Name, "resource_track") || named && p.Name != loaderName {
			continue
		}
		kind, text := Ended, "has died"
		if p.State != "Z" && p.State != "X" {
			kind, text, _, _ = doing(p)
			shown = append(shown, shows(r.Rank, p)...)
		} else {
			shown = append(shown, fmt.Sprintf("rank %d: process %d (%s): state %s", r.Rank, p.PID, p.Name, p.State))
		}
		if strings.Contains(text, "waits for input") { // for work
			continue
		}
		for n, k := range severity {
			if k == kind && n < best {
				worst, how, best = p, text, n
			}
		}
	}
	const waits = "waits for its data loader, "
	if worst == nil {
		return waits + "none of whose workers is at work", shown
	}
	how = strings.Replace(how, fmt.Sprintf("process %d, ", worst.PID), "", 1)
	return fmt.Sprintf("%swhose worker process %d %s", waits, worst.PID, how), shown
}

// pool reports whether a process waits in Python's multiprocessing or concurrent.futures for other processes.
func pool(p *evidence.Process) bool {
	return len(p.Stacks) > 0 && slices.ContainsFunc(p.Stacks[0].Frames, func(f evidence.Frame) bool {
		return strings.Contains(f.File, "/multiprocessing/") || strings.Contains(f.File, "/concurrent/futures/")
	})
}

// children says what processes that a rank has started do where that can be why it waits: they have died, are stopped,
// or hang themselves.
func children(r *evidence.Rank, main *evidence.Process) (text string, shown []string) {
	var parts []string
	for i := range r.Processes {
		p := &r.Processes[i]
		if p.PPID != main.PID || strings.Contains(p.Name, "resource_track") {
			continue
		}
		kind, does := Ended, "has died"
		if p.State != "Z" && p.State != "X" {
			kind, does, _, _ = doing(p)
		}
		if kind != Ended && kind != Stopped && kind != Blocked && (kind != Input || !strings.HasPrefix(does, "waits for a file")) {
			continue
		}
		shown = append(shown, shows(r.Rank, p)...)
		if len(parts) < 2 {
			does = strings.Replace(does, fmt.Sprintf("process %d, ", p.PID), "", 1)
			parts = append(parts, fmt.Sprintf("; its process %d (%s) %s", p.PID, p.Name, does))
		}
	}
	return strings.Join(parts, ""), shown
}
