package hosts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"muster/internal/beneath"
	"muster/internal/durable"
	"muster/launch"
	"muster/launch/job"
)

// jobFiles are the places in a job that name files of the launcher's machine: those that agents read.
func jobFiles(job *job.Job) []*string {
	m := &job.Meeting
	return []*string{&m.Topology, &job.Fake, &m.Etcd.CACert, &m.Etcd.Cert, &m.Etcd.CertKey, &m.Etcd.PasswordFile}
}

// unpack writes the files that came with the order, and lets the job name them there. Only this user can read them.
func (n *remoteNode) unpack() error {
	var err error
	if n.dir, err = durable.MkdirTemp(os.TempDir(), "muster-agent-"); err != nil {
		return fmt.Errorf("cannot keep the job's files: %w", err)
	}
	for i, path := range jobFiles(&n.order.Job) {
		data, ok := n.order.Files[*path]
		if !ok {
			continue
		}
		*path = filepath.Join(n.dir, fmt.Sprintf("%d-%s", i, filepath.Base(*path)))
		if err := os.WriteFile(*path, data, 0o600); err != nil {
			return fmt.Errorf("cannot keep the job's files: %w", err)
		}
	}
	n.order.Job.StatusFile = "" // it lies at the launcher's
	return nil
}

// statusEvery is how often it is looked whether the node stands in another way.
const statusEvery = time.Second

// tellStatus tells the launcher how the node stands whenever that has changed, until ctx ends, and once more then. What
// changes all the time is told more rarely where many nodes have much to say.
func (n *remoteNode) tellStatus(ctx context.Context, s *launch.Steering) {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	var last, lastSteady []byte
	var told time.Time
	for running := true; running; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			running = false
		}
		d := s.Status()
		data, err := json.Marshal(d)
		steady, steadyErr := json.Marshal(d.Steady())
		if err != nil || steadyErr != nil || bytes.Equal(data, last) {
			continue
		}
		if running && bytes.Equal(steady, lastSteady) && time.Since(told) < launch.ProgressEvery(d.Nodes, len(data)) {
			continue
		}
		last, lastSteady, told = data, steady, time.Now()
		_ = n.link.Status(data) // a launcher that is gone reads no status
	}
}

// send sends the files in a directory of a tree, and below.
func (n *remoteNode) send(t *beneath.Tree, dir string) error {
	entries, err := t.Names(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			err = n.send(t, name)
		case e.Type().IsRegular():
			var f *os.File
			var info fs.FileInfo
			if f, info, err = t.OpenFile(name); err == nil {
				err = errors.Join(n.link.File(name, info.Size(), f), f.Close())
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// collect sends the workers' log files home. Where they lay in a temporary directory they are removed then.
func (n *remoteNode) collect(dir string, temporary bool, log zerolog.Logger) {
	if dir == "" {
		return
	}
	t, err := beneath.Open(dir)
	if err == nil {
		err = errors.Join(n.send(t, "."), t.Close())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return // nothing was written
	}
	if err != nil {
		log.Warn().Err(err).Str("path", dir).Msg("log files could not be brought to the launcher: they stay here")
		return
	}
	if temporary {
		_ = os.RemoveAll(filepath.Dir(dir))
	}
}
