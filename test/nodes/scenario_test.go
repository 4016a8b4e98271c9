package nodes

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"muster/test/drive"
)

// Jobs as platforms start them: on each host what a pod runs, with what the platform tells that pod.

// podsEnd bounds the end of a job of pods, not its speed.
const podsEnd = 2 * time.Minute

// pod starts a command line on a host, as a pod has it.
func (j *nodes) pod(host int, environ []string, args ...string) *nodeAgent {
	j.t.Helper()
	h := j.hosts[host]
	a := &nodeAgent{kind: args[0], HostCommand: h.Command(args[0], args[1:]...), began: time.Now()}
	a.Env = append(append(drive.CleanEnviron(), h.Environ()...), "OMP_NUM_THREADS=1", "OUT="+j.dir, drive.EndAtOnce)
	a.Env = append(append(a.Env, j.env...), environ...)
	a.Stdout, a.Stderr = &a.out, &a.err
	if err := a.Start(); err != nil {
		j.t.Fatal(err)
	}
	j.agents = append(j.agents, a)
	return a
}

// pods starts the same command line on all hosts, each with its own environment.
func (j *nodes) pods(environ func(host int) []string, args ...string) {
	j.t.Helper()
	for host := range j.hosts {
		j.pod(host, environ(host), args...)
	}
}

// allEnd fails the test unless all agents end with the status, and leave nothing.
func (j *nodes) allEnd(status int) {
	j.t.Helper()
	for _, a := range j.agents {
		j.ends(a, podsEnd, status)
	}
	for _, h := range j.hosts {
		if left := h.Processes(); len(left) > 0 {
			j.t.Errorf("left on %s: %v", h.Name, left)
		}
	}
}

// said is all that the workers have printed.
func (j *nodes) said() string {
	var b strings.Builder
	for _, a := range j.agents {
		b.WriteString(a.out.String())
	}
	return b.String()
}

// shown are the environments of the workers that ran drive.ShowRank, by rank and round.
func (j *nodes) shown(rank, round int) map[string]string {
	j.t.Helper()
	return drive.ReadEnvironment(j.t, filepath.Join(j.dir, fmt.Sprintf("%d.%d", rank, round)))
}
