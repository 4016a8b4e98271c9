package report

import (
	"encoding/json"
	"io"
	"strconv"
	"time"

	"muster/internal/proc"
	"muster/rendezvous"
)

// Events writes torchelastic's event records, one JSON object per line, for --event-log-handler console. The layout
// was captured from torchrun 2.15.0; unlike there, timestamp is the time in seconds since the epoch, not 0. The nil
// Events writes nothing.
type Events struct {
	Out io.Writer
	// RunID, Role and Backend are those of the job, EntryPoint is the name of what it runs; Hostname is this node's.
	RunID, Role, Backend, EntryPoint, Hostname string
	// Begun is when the agent began.
	Begun time.Time
}

// EventWorker is a worker as the records name it.
type EventWorker struct{ Rank, LocalRank, PID int }

type eventRecord struct {
	Name      string        `json:"name"`
	Source    string        `json:"source"`
	Timestamp int64         `json:"timestamp"`
	Metadata  eventMetadata `json:"metadata"`
}

type eventMetadata struct {
	RunID         string   `json:"run_id"`
	GlobalRank    *int     `json:"global_rank"`
	GroupRank     *int     `json:"group_rank"`
	WorkerID      *string  `json:"worker_id"`
	Role          string   `json:"role"`
	Hostname      string   `json:"hostname"`
	State         string   `json:"state"`
	TotalRunTime  int64    `json:"total_run_time"`
	RdzvBackend   string   `json:"rdzv_backend"`
	RawError      *string  `json:"raw_error"`
	Metadata      string   `json:"metadata"` // JSON again, as upstream nests it
	AgentRestarts int      `json:"agent_restarts"`
	DurationMs    *float64 `json:"duration_ms"`
}

type eventDetail struct {
	GroupWorldSize *int   `json:"group_world_size"`
	EntryPoint     string `json:"entry_point"`
	LocalRank      []int  `json:"local_rank,omitempty"`
	RoleRank       []int  `json:"role_rank,omitempty"`
	RoleWorldSize  []int  `json:"role_world_size,omitempty"`
	ExitCode       []*int `json:"exit_code,omitempty"`
	WorkerPID      []*int `json:"worker_pid,omitempty"`
}

// Agent records a state of the agent; r is nil before the first round, took is 0 where nothing was timed.
func (l *Events) Agent(state string, r *rendezvous.Round, restarts int, took time.Duration) {
	if l == nil {
		return
	}
	m, detail := l.base(state, r, restarts)
	if took > 0 {
		ms := float64(took) / float64(time.Millisecond)
		m.DurationMs = &ms
	}
	l.write("AGENT", m, detail)
}

// Joined records that the agent has got a round, where before is the one it had, nil for none: torchrun tells the two
// steps of it with what it knew before.
func (l *Events) Joined(before *rendezvous.Round, restarts int, took time.Duration) {
	l.Agent("RENDEZVOUS", before, restarts, took)
	l.Agent("ASSIGN_WORKER_RANKS", before, restarts, took)
}

// Started records that a worker runs.
func (l *Events) Started(w EventWorker, r *rendezvous.Round, restarts int) {
	if l == nil {
		return
	}
	m, detail := l.worker("START", w, r, restarts)
	l.write("WORKER", m, detail)
}

// Ended records that a worker ended, with its exit code as Python counts it: -n for signal n.
func (l *Events) Ended(w EventWorker, exit proc.Exit, r *rendezvous.Round, restarts int) {
	if l == nil {
		return
	}
	if exit.Status() == 0 {
		m, detail := l.worker("SUCCEEDED", w, r, restarts)
		l.write("WORKER", m, detail)
		return
	}
	m, detail := l.worker("FAILED", w, r, restarts)
	code := exit.Code
	if exit.Signal != 0 {
		code = -int(exit.Signal)
	}
	detail.ExitCode, detail.WorkerPID = []*int{&code}, []*int{&w.PID}
	raw := `{"message": "<NONE>", "errorTraits": {"category": "system_terminated_error", "retryability": "False"}}`
	m.RawError = &raw
	l.write("WORKER", m, detail)
}

func (l *Events) worker(state string, w EventWorker, r *rendezvous.Round, restarts int) (eventMetadata, eventDetail) {
	m, detail := l.base(state, r, restarts)
	id := strconv.Itoa(w.PID)
	m.GlobalRank, m.WorkerID = &w.Rank, &id
	detail.LocalRank = []int{w.LocalRank}
	detail.RoleRank = []int{r.BaseRoleRank + w.LocalRank}
	detail.RoleWorldSize = []int{r.RoleWorldSize}
	detail.ExitCode, detail.WorkerPID = []*int{nil}, []*int{nil}
	return m, detail
}

func (l *Events) base(state string, r *rendezvous.Round, restarts int) (eventMetadata, eventDetail) {
	m := eventMetadata{
		RunID: l.RunID, Role: l.Role, Hostname: l.Hostname, State: state,
		TotalRunTime: int64(time.Since(l.Begun).Seconds()), RdzvBackend: l.Backend, AgentRestarts: restarts,
	}
	if m.RdzvBackend == "standalone" {
		m.RdzvBackend = "c10d" // what torchrun makes of it
	}
	detail := eventDetail{EntryPoint: l.EntryPoint}
	if r != nil {
		m.GroupRank, detail.GroupWorldSize = &r.GroupRank, &r.GroupWorldSize
	}
	return m, detail
}

func (l *Events) write(source string, m eventMetadata, detail eventDetail) {
	nested, err := json.Marshal(detail)
	if err != nil {
		return // ints and strings always marshal
	}
	m.Metadata = string(nested)
	// Nobody can be told that standard error is gone.
	_ = json.NewEncoder(l.Out).Encode(eventRecord{"torchelastic.worker.status." + m.State, source, time.Now().Unix(), m})
}
