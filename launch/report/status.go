package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"muster/launch/job"
)

// Phase is where a job stands, in the status file's words.
type Phase string

// The phases. Stopped and Unknown are of tasks alone.
const (
	PhasePending     Phase = "Pending"     // nothing has been started
	PhaseChecking    Phase = "Checking"    // the nodes of a round are being examined
	PhaseCreating    Phase = "Creating"    // the workers of a round are being started
	PhaseRunning     Phase = "Running"     // every worker of the round was started
	PhaseRestarting  Phase = "Restarting"  // the group is being stopped, or pauses, and will start again
	PhasePausing     Phase = "Pausing"     // the workers are being stopped, and start again when somebody has asked for that
	PhasePaused      Phase = "Paused"      // they have ended; the nodes keep together
	PhaseResuming    Phase = "Resuming"    // somebody has asked for it: the nodes meet for the round in which they start
	PhaseTerminating Phase = "Terminating" // the job is decided, its workers are being stopped
	PhaseSucceeded   Phase = "Succeeded"
	PhaseFailed      Phase = "Failed"
	PhaseTimeout     Phase = "Timeout" // failed because the deadline was reached

	PhaseStopped Phase = "Stopped" // muster has ended workers of the node, and none of them had failed
	PhaseUnknown Phase = "Unknown" // nobody has said how the node's workers ended
)

// Status is the status file. docs/status-file.md describes it for its readers: fields are added, never renamed.
type Status struct {
	Version      int         `json:"version"`
	RunID        string      `json:"runId"`
	Name         string      `json:"name"`
	Phase        Phase       `json:"phase"`
	Reason       job.Reason  `json:"reason,omitempty"`
	Message      string      `json:"message,omitempty"`
	ExitStatus   *int        `json:"exitStatus"`
	Hint         string      `json:"hint,omitempty"`
	StartTime    *time.Time  `json:"startTime"`
	EndTime      *time.Time  `json:"endTime"`
	Generation   int         `json:"generation"`
	RestartCount int         `json:"restartCount"`
	Replacements int         `json:"replacements"`
	Nodes        int         `json:"nodes"`
	GroupRank    int         `json:"groupRank"`
	WorldSize    int         `json:"worldSize"`
	StoreAddress string      `json:"storeAddress,omitempty"`
	Counts       Counts      `json:"counts"`
	Tasks        []Task      `json:"tasks"`
	Ranks        []Rank      `json:"ranks,omitempty"`
	Conditions   []Condition `json:"conditions"`
	RootCause    *Cause      `json:"rootCause,omitempty"`
	// Sidecars are the processes that run beside the workers.
	Sidecars []Sidecar `json:"sidecars,omitempty"`
	// Hang is the last time that no worker showed a sign of life, nil for never. It is there where it was asked for.
	Hang *Hang `json:"hang,omitempty"`
	// Accounting is what time went to, nil where it is not known.
	Accounting *Accounting `json:"accounting,omitempty"`
	// Logs says where the workers' output is, or that it has gone to the console alone; empty: that is not known.
	Logs string `json:"logs,omitempty"`
}

// clone returns a status that later changes of d do not reach.
func (d *Status) clone() Status {
	c := *d
	c.Tasks, c.Ranks, c.Conditions = slices.Clone(d.Tasks), slices.Clone(d.Ranks), slices.Clone(d.Conditions)
	return c
}

// Restarts is how often workers were started again, for whatever reason: as often as that one of Ranks which was most often,
// and at least RestartCount times.
func (d *Status) Restarts() int {
	most := d.RestartCount
	for i := range d.Ranks {
		most = max(most, d.Ranks[i].Restarts)
	}
	return most
}

// Counts says how many workers are in which state: those of this node, in a launcher's file those of all nodes.
type Counts struct {
	Pending     int `json:"pending"`
	Creating    int `json:"creating"`
	Running     int `json:"running"`
	Terminating int `json:"terminating"`
	Succeeded   int `json:"succeeded"`
	Failed      int `json:"failed"`
	Stopped     int `json:"stopped"`
	Unknown     int `json:"unknown"` // of nodes that were lost
}

func (c *Counts) add(more Counts) {
	c.Pending += more.Pending
	c.Creating += more.Creating
	c.Running += more.Running
	c.Terminating += more.Terminating
	c.Succeeded += more.Succeeded
	c.Failed += more.Failed
	c.Stopped += more.Stopped
	c.Unknown += more.Unknown
}

func (c *Counts) sum() int {
	return c.Pending + c.Creating + c.Running + c.Terminating + c.Succeeded + c.Failed + c.Stopped + c.Unknown
}

// Task is the worker group of one node.
type Task struct {
	Node         string `json:"node"`
	Ranks        string `json:"ranks"`
	RestartCount int    `json:"restartCount"`
	Phase        Phase  `json:"phase"`
	// ExitCode is that of the worker that failed first here, 0 where all have succeeded; nil where neither is so.
	ExitCode *int `json:"exitCode"`
	// Traffic is what the node's network interfaces have carried since its part of the job began, for whomever. It is
	// there where it was asked for, of other nodes as it was some seconds ago.
	Traffic []Traffic `json:"traffic,omitempty"`
	// LastKnown is when this was so, by the node's clock, where the node could not be asked; nil where it was.
	LastKnown *time.Time `json:"lastKnown,omitempty"`
}

// Traffic is what a network interface has carried, or a port of an RDMA device ("mlx5_0:1").
type Traffic struct {
	Interface     string `json:"interface"`
	ReceivedBytes uint64 `json:"receivedBytes"`
	SentBytes     uint64 `json:"sentBytes"`
}

// Rank is one worker: the process that runs in its place, or ran there last.
type Rank struct {
	Node      string `json:"node"`
	Rank      int    `json:"rank"`
	LocalRank int    `json:"localRank"`
	PID       int    `json:"pid"`
	Phase     Phase  `json:"phase"`
	// Restarts is how often its node's muster has started it again, for whatever reason.
	Restarts  int        `json:"restarts"`
	StartTime *time.Time `json:"startTime"`
	// LastExit is how it ended last: the process of PID, or the one before that runs now; nil where none has.
	LastExit *RankExit `json:"lastExit,omitempty"`
	// CPUSeconds and ResidentBytes are those of the process and what has descended from it, LastOutput is when it wrote
	// last, UsageTime when that was read, by the node's clock. They are there where they were asked for, and the worker
	// runs; of ranks on other nodes as they were some seconds ago.
	CPUSeconds    *float64   `json:"cpuSeconds,omitempty"`
	ResidentBytes *int64     `json:"residentBytes,omitempty"`
	UsageTime     *time.Time `json:"usageTime,omitempty"`
	LastOutput    *time.Time `json:"lastOutputTime,omitempty"`
	// Devices are what the worker's accelerators are used for, DevicesTime when that was read, by the node's clock. They
	// are there where somebody looks at the job, and the worker runs.
	Devices     []DeviceUse `json:"devices,omitempty"`
	DevicesTime *time.Time  `json:"devicesTime,omitempty"`
	// Progress is what the worker's program tells of itself, nil where it tells nothing.
	Progress *Progress `json:"progress,omitempty"`
	// Slowness is how many times as long as the median of all ranks it takes for what it does by itself in a step, nil
	// where that is not known. Slow says in a sentence that it holds up the others, and why; empty where it does not.
	Slowness *float64 `json:"slowness,omitempty"`
	Slow     string   `json:"slow,omitempty"`
}

// DeviceUse is what an accelerator of a worker is used for. What is nil is not known.
type DeviceUse struct {
	// Index is the accelerator's number on its node, as muster devices has it.
	Index int `json:"index"`
	// MemoryBytes are in use by whoever, of MemoryTotalBytes; OwnMemoryBytes by the worker and what has descended from
	// it.
	MemoryBytes      *int64 `json:"memoryBytes,omitempty"`
	MemoryTotalBytes *int64 `json:"memoryTotalBytes,omitempty"`
	OwnMemoryBytes   *int64 `json:"ownMemoryBytes,omitempty"`
	// Utilization is the share of the last moments in which it computed, for whomever, from 0 to 1.
	Utilization *float64 `json:"utilization,omitempty"`
}

// DeviceMemory is how much of its accelerators' memory a worker has, as far as that is known: of an accelerator that
// does not tell whose it is, all that is in use. total is how much there is. False where nothing is known.
func (r *Rank) DeviceMemory() (used, total int64, known bool) {
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.MemoryTotalBytes != nil {
			total += *d.MemoryTotalBytes
		}
		switch {
		case d.OwnMemoryBytes != nil:
			used, known = used+*d.OwnMemoryBytes, true
		case d.MemoryBytes != nil:
			used, known = used+*d.MemoryBytes, true
		}
	}
	return used, total, known
}

// DeviceBusy is how much a worker's accelerators compute, in the mean, from 0 to 1; false where that is not known.
func (r *Rank) DeviceBusy() (share float64, known bool) {
	n := 0
	for i := range r.Devices {
		if u := r.Devices[i].Utilization; u != nil {
			share += *u
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return share / float64(n), true
}

// Progress is how far the program of a worker has come, by its own words (muster.progress).
type Progress struct {
	// Step is the number of the last step that was finished, Total how many there will be, 0 where that is not known.
	Step  int64 `json:"step"`
	Total int64 `json:"total,omitempty"`
	// StepSeconds is the median time of the last steps; nil before there are two.
	StepSeconds *float64 `json:"stepSeconds,omitempty"`
	// Section is what the program does now other than steps, such as "eval"; empty for steps.
	Section string `json:"section,omitempty"`
	// Values are what was told with the last step, such as loss; NotFinite names those that were infinite or no number.
	Values    map[string]float64 `json:"values,omitempty"`
	NotFinite []string           `json:"notFinite,omitempty"`
	// Time is when it last told something, by the node's clock.
	Time time.Time `json:"time"`
}

// RankExit is how a worker ended.
type RankExit struct {
	PID      int       `json:"pid"`
	ExitCode int       `json:"exitCode"` // 128+n for a signal
	Signal   string    `json:"signal,omitempty"`
	Stopped  bool      `json:"stopped"` // muster had begun to end it
	Time     time.Time `json:"time"`
}

// conditionType names a condition. Their meaning is that of Kubernetes' conditions: several can hold at once.
type conditionType string

const (
	conditionInitialized    conditionType = "Initialized"    // the workers have been started once
	conditionRunning        conditionType = "Running"        // they run now
	conditionPaused         conditionType = "Paused"         // somebody has paused the job
	conditionSuspended      conditionType = "Suspended"      // the same, as other kinds call it
	conditionReplicaFailure conditionType = "ReplicaFailure" // a worker of the last round failed
	conditionCompleted      conditionType = "Completed"      // the job has succeeded
	conditionFailed         conditionType = "Failed"         // the job has failed
)

// Condition is one of the conditions that hold, or do not any more.
type Condition struct {
	Type               conditionType `json:"type"`
	Status             string        `json:"status"` // True or False
	Reason             job.Reason    `json:"reason,omitempty"`
	Message            string        `json:"message,omitempty"`
	LastTransitionTime time.Time     `json:"lastTransitionTime"`
}

// Cause is the worker that is to blame.
type Cause struct {
	Host       string    `json:"host"`
	Rank       int       `json:"rank"`
	LocalRank  int       `json:"localRank"`
	PID        int       `json:"pid"`
	Time       time.Time `json:"time"`
	ExitCode   int       `json:"exitCode"` // 128+n for a signal
	Signal     string    `json:"signal,omitempty"`
	CoreDumped bool      `json:"coreDumped"`
	ErrorFile  string    `json:"errorFile,omitempty"`
	Error      string    `json:"error,omitempty"`
	Traceback  string    `json:"traceback,omitempty"`
	Evidence   []string  `json:"evidence,omitempty"`
	Cause      string    `json:"cause,omitempty"`
	// HeldUp is the rank that this one has waited for in vain.
	HeldUp    *HeldUp  `json:"heldUp,omitempty"`
	LastLines []string `json:"lastLines"`
}

// maxTerminationLog is what the kubelet takes of a termination log, in bytes.
const maxTerminationLog = 4096

func (d Status) writeTo(terminationLog string) error {
	f, err := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.Write(d.shortened(maxTerminationLog))
	return errors.Join(err, f.Close())
}

// TellTermination writes a status, as a status file holds it, to the termination log of Kubernetes.
func TellTermination(terminationLog string, status []byte) error {
	var d Status
	if err := json.Unmarshal(status, &d); err != nil {
		return fmt.Errorf("cannot read the status of the job: %w", err)
	}
	return d.writeTo(terminationLog)
}

// shortened returns the status as JSON of at most limit bytes: the call stack goes first, then the oldest of the last
// lines, then the ends of texts, then what can be read elsewhere.
func (d Status) shortened(limit int) []byte {
	cause := Cause{}
	if d.RootCause != nil {
		cause = *d.RootCause
		d.RootCause = &cause
	}
	fits := func() ([]byte, bool) {
		text, err := json.Marshal(&d)
		return text, err == nil && len(text) <= limit
	}
	text, ok := fits()
	if ok {
		return text
	}
	d.Ranks, d.Sidecars, d.Accounting, cause.Traceback = nil, nil, nil, ""
	for text, ok = fits(); !ok && len(cause.LastLines) > 0; text, ok = fits() {
		cause.LastLines = cause.LastLines[1:]
	}
	for most := 512; !ok && most > 0; most /= 2 {
		for _, part := range []*string{
			&d.Message, &d.Hint, &d.Name, &d.RunID, &d.StoreAddress, &cause.Error, &cause.ErrorFile, &cause.Host,
		} {
			*part = (*part)[:min(len(*part), most)] // half a character becomes U+FFFD
		}
		cause.Evidence, d.Conditions, d.Tasks = nil, []Condition{}, []Task{}
		text, ok = fits()
	}
	return text
}
