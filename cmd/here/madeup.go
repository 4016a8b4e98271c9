package here

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"muster/launch/job"
)

// MakeUp writes the spec of the accelerators that a job file asks for, and has all nodes of the job see them. Each node
// is told its name among those of the spec, but where its launcher does that (named). forget removes the file.
func MakeUp(j *job.Job, spec string, named bool) (forget func(), err error) {
	f, err := os.CreateTemp("", "muster-accelerators-*.yaml")
	if err != nil {
		return nil, fmt.Errorf("cannot write the accelerators of the job file: %w", err)
	}
	forget = func() { _ = os.Remove(f.Name()) }
	name, err := filepath.Abs(f.Name())
	if err == nil {
		_, err = f.WriteString(spec)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		forget()
		return nil, fmt.Errorf("cannot write the accelerators of the job file: %w", err)
	}
	j.Fake = name
	tell := func(env []job.Var, host string) []job.Var {
		from := job.Source{Kind: job.FromMuster, Name: "accelerators made up for a rehearsal"}
		env = append(slices.Clone(env), job.Var{Name: "MUSTER_FAKE", Value: name, Source: from})
		if !named {
			env = append(env, job.Var{Name: FakeNodeVariable, Value: host, Source: from})
		}
		return env
	}
	for i := range j.Hosts.Nodes {
		n := &j.Hosts.Nodes[i]
		n.Env = tell(n.Env, n.Name)
	}
	if len(j.Hosts.Nodes) == 0 {
		j.NodeEnv = tell(j.NodeEnv, "127.0.0.1")
	}
	return forget, nil
}
