package output

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"muster/internal/python"
	"muster/launch/job"
)

// Sidecar opens the output of a process that runs beside the workers, which has a number. What it writes is shown
// behind a prefix, and where the job has a directory for logs it writes to files there, to which the next process of
// this number appends.
func (l *Logs) Sidecar(index int, host string) (*Worker, error) {
	w := &Worker{
		attempt: &Attempt{Logs: l}, id: Identity{LocalRank: -1, Rank: -1, Role: "sidecar", Host: host},
		pumped: make(chan struct{}), calledOff: make(chan struct{}),
	}
	if l.dir.path != "" && len(l.Disposable()) == 0 {
		w.dir = filepath.Join(l.dir.path, sidecarDir+strconv.Itoa(index))
	}
	for i, stream := range []string{"stdout", "stderr"} {
		w.prefix[i] = []byte(sidecarPrefix(&l.rules, index, host, stream))
	}
	if err := w.openSidecar(); err != nil {
		w.closeChild()
		for _, s := range w.sources {
			s.close()
		}
		for _, s := range w.pipes {
			s.close()
		}
		return nil, fmt.Errorf("cannot make a place for the output of sidecar %d: %w", index, err)
	}
	return w, nil
}

func (w *Worker) openSidecar() error {
	if w.dir != "" {
		if err := os.MkdirAll(w.dir, 0o777); err != nil {
			return err
		}
	}
	for i, name := range []string{stdoutFile, stderrFile} {
		p := &pump{
			out: w.attempt.console(i), localRank: w.id.LocalRank, prefixed: true, prefix: w.prefix[i], stamp: w.attempt.rules.Stamp,
			calledOff: w.calledOff,
		}
		var err error
		if w.dir == "" {
			err = w.sidecarPipe(i, p)
		} else {
			err = w.sidecarFile(i, filepath.Join(w.dir, name), p)
		}
		if err != nil {
			return err
		}
		w.runs = append(w.runs, p.run)
	}
	return nil
}

func (w *Worker) sidecarPipe(i int, p *pump) error {
	poll, err := w.attempt.pipePoller()
	if err != nil {
		return err
	}
	src, end, err := openPipe(poll)
	if err != nil {
		return err
	}
	w.owned, w.pipes, w.child[i] = append(w.owned, end), append(w.pipes, src), end
	p.src, p.tail, p.heard, p.read = src, &tail{}, &w.heard, &w.read
	w.last[i] = p.tail.lines
	return nil
}

func (w *Worker) sidecarFile(i int, path string, p *pump) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	w.owned, w.child[i], w.paths[i] = append(w.owned, f), f, path
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	src, err := followFile(path, w.attempt.watcher())
	if err != nil {
		return err
	}
	src.off = size // what stands there was shown
	w.sources, p.src = append(w.sources, src), src
	w.last[i] = func(n int) []string { return fileLines(path, n) }
	return nil
}

// sidecarPrefix is what stands in front of each line.
func sidecarPrefix(r *job.LogRules, index int, host, stream string) string {
	number := strconv.Itoa(index)
	return python.Substitute(cmp.Or(r.Prefix, job.RankPrefix), map[string]string{
		"role_name": "sidecar", "local_rank": number, "rank": "sidecar " + number, "hostname": shortHost(host), "stream": stream,
	})
}
