// Package here is the machine and the program that a node of a job runs in, as the commands know them: it implements
// node.Here. It puts together what looks at devices, real ones or those of a spec, checks the node, keeps its checkpoints
// and hears that the machine will be taken away. The environment and the streams are given to it.
package here

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rs/zerolog"

	"muster/cmd/console"
	"muster/internal/logtext"
	"muster/launch"
	"muster/launch/hosts"
	"muster/launch/job"
	"muster/launch/node"
	"muster/launch/plan"
	"muster/launch/report"
	"muster/rendezvous/place"
)

// The arguments with which muster starts itself: as a guardian, and by the guardian to save what a killed agent has left
// in memory.
const (
	GuardianArg = "_guardian"
	SalvageArg  = "_salvage"
)

// Guardian is the command that starts this program as a guardian.
func Guardian() []string { return []string{"/proc/self/exe", GuardianArg} }

// Here is this run of the program on this machine. Environ and Console are always there.
type Here struct {
	Environ               []string // in which the program was started
	Stdin, Stdout, Stderr *os.File
	Console               *console.Console
	Name                  string   // what the launcher calls this node, empty without one
	Token                 []byte   // the job's, from the launcher
	LogsGo                string   // where the launcher takes log files, empty: they stay
	RemoveOnDeath         []string // what goes when this program is killed
	// Events takes this node's events for the file of its launcher, nil where that has none.
	Events func(line []byte)
	// WholeJob reports whether a signal that ends this node's part was sent to all nodes by who has started them.
	WholeJob func() bool
}

var _ node.Here = (*Here)(nil)

// LookupEnv returns a variable of the environment the program was started in.
func (h *Here) LookupEnv(name string) (string, bool) {
	for _, kv := range h.Environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Getenv is LookupEnv where a variable that is not there is as good as an empty one.
func (h *Here) Getenv(name string) string {
	value, _ := h.LookupEnv(name)
	return value
}

// Hostname is this machine's name, where it is only shown.
func Hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

// HostOf is what this node is called in a job.
func (h *Here) HostOf(j *job.Job) string {
	host := cmp.Or(h.Name, Hostname())
	if j.Fake != "" {
		return h.FakeNode(host)
	}
	return host
}

// Simulated reports whether this is one of the nodes of a simulation.
func (h *Here) Simulated() bool { return h.Getenv(hosts.SimulatedVariable) != "" }

// JoinSimulation makes a job that of a simulated node, and has what happens to it reach who simulates it, where that keeps
// a file of it.
func (h *Here) JoinSimulation(j *job.Job) {
	hosts.MarkNode(j, h.HostOf(j))
	j.Meeting.Wants, _ = strconv.Atoi(h.Getenv(hosts.WantedVariable)) // few have it
	h.WholeJob = hosts.SimulationStops()
	if j.See.EventsFile != "" {
		h.Events = hosts.SimulatedEvents()
	}
}

// Launched implements node.Here.
func (h *Here) Launched() bool { return h.Name != "" || h.Simulated() }

// PassEvents implements node.Here.
func (h *Here) PassEvents() func(line []byte) { return h.Events }

// PrintError implements node.Here.
func (h *Here) PrintError(err error) { h.Console.PrintError(err) }

// Meeting implements node.Here.
func (h *Here) Meeting(plan *plan.Plan, log zerolog.Logger) place.Config {
	return place.Config{
		Job: &plan.Job, RunID: plan.RunID, Hostname: plan.Hostname, MasterHost: plan.MasterHost(), Token: h.Token,
		IDs: func(ctx context.Context) []string { return h.acceleratorIDs(ctx, &plan.Job) }, Simulated: h.Simulated(),
		ClockOffset: clockOffset(), Log: log,
	}
}

// Agent implements node.Here.
func (h *Here) Agent(plan *plan.Plan, at place.Reach, in *launch.Interrupts, log zerolog.Logger) *launch.Agent {
	return &launch.Agent{
		LogTo: h.Console.LogTo, LogJSON: h.Console.LogsJSON(), Stdin: h.Stdin, Stdout: h.Stdout, Stderr: h.Stderr,
		StopTold: h.Name != "", WholeJob: h.WholeJob, Guardian: Guardian(), RemoveOnDeath: h.RemoveOnDeath,
		OpenCheckpoints: checkpointService(plan, at, h.MemoryDir(), log),
		Salvager:        []string{"/proc/self/exe", SalvageArg, cmp.Or(h.Console.Format, logtext.Auto)},
		Notices:         h.notices(plan.Job.Checkpoint, in),
		ErrorFile:       h.Getenv("TORCHELASTIC_ERROR_FILE"), TerminationLog: h.TerminationLog(), LogsGo: h.LogsGo,
	}
}

// TerminationLog is the file from which Kubernetes reads why a container ended, empty outside of it.
func (h *Here) TerminationLog() string {
	const path = "/dev/termination-log"
	if h.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return ""
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return path
}

// Refused is how a job ends that could not be started here: its status file says so too.
func (h *Here) Refused(j job.Job, host string, err error) error {
	report.TellRefused(j, host, []*os.File{h.Stdout, h.Stderr}, h.TerminationLog(), err)
	return node.Compat(&j, err, h.PrintError)
}

// cacheDir is where what can be made again is kept for this user, empty where there is no such place.
func (h *Here) cacheDir() string {
	for _, dir := range []string{h.Getenv("XDG_CACHE_HOME"), filepath.Join(h.Getenv("HOME"), ".cache")} {
		if filepath.IsAbs(dir) { // as the XDG Base Directory Specification has it
			return dir
		}
	}
	return ""
}
