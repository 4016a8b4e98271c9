package job

import "time"

// HangRules say when workers hang, and what follows.
type HangRules struct {
	// Timeout is how long all workers may show no sign of life; 0: as long as they like. Auto has it learned from the
	// steps that they tell instead.
	Timeout time.Duration
	Auto    bool
	// Exclude has the node leave in which the cause lies, and all workers start again without it. Action is what follows
	// where it does not: there is no such node, or the job cannot do without it.
	Exclude bool
	Action  HangAction
	// Dir is where the evidence of hangs is kept, empty: under the log directory.
	Dir string
	// Stacks says whether Python workers write their stacks when muster asks.
	Stacks StacksMode
	// Monitor says what clients of NVRx may take; nil: nobody listens to them.
	Monitor *RankMonitor
}

// HangAction is what follows when workers hang.
type HangAction string

// The actions. The empty one is HangDump.
const (
	HangDump    HangAction = "dump"    // the evidence is kept, and the job goes on
	HangExclude HangAction = "exclude" // HangRules.Exclude
	HangRestart HangAction = "restart" // and all workers start again
	HangFail    HangAction = "fail"    // and the job fails
)

// StacksMode says whether Python workers write their stacks when muster asks.
type StacksMode string

// The modes. The empty one is StacksAuto.
const (
	StacksAuto StacksMode = "auto" // where it is looked for hangs
	StacksOn   StacksMode = "on"
	StacksOff  StacksMode = "off"
)

// Watches reports whether it is looked for workers that hang.
func (h HangRules) Watches() bool { return h.Timeout > 0 || h.Auto }

// Answers reports whether they do.
func (h HangRules) Answers() bool {
	return h.Stacks == StacksOn || h.Stacks != StacksOff && (h.Watches() || h.Monitor != nil)
}

// Examines reports whether the nodes are checked before workers start again that hung for no cause that was found.
func (h HangRules) Examines() bool { return h.Watches() && h.Action == HangRestart }

// Excludes reports whether a node may have to leave the job for another reason than a check before the start.
func (j *Job) Excludes() bool {
	return !j.Alone() && (j.Hang.Examines() || j.CanSpareNodes() && (j.Hang.Exclude || j.Restart.CrashLoop > 0 || j.Check.ExcludeStraggler))
}
