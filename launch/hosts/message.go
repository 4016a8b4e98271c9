package hosts

import (
	"net/netip"
	"time"

	"muster/launch/control"
	"muster/launch/job"
)

// Hello is the first thing that an agent says.
type Hello struct {
	// Version is the agent's; launcher and agents are the same program.
	Version string `json:"version"`
	// Hostname is what the machine calls itself.
	Hostname string `json:"hostname"`
	// Addr is the address by which the launcher has reached it, empty where it was not reached over a network.
	Addr string `json:"addr"`
	// Own is the address from which the machine reaches others, by its routes; empty where it has none.
	Own string `json:"own"`
	// Addrs are the addresses of its interfaces, by one of which its connections to others come.
	Addrs []netip.Addr `json:"addrs"`
	// Port is free on that machine just now.
	Port int `json:"port"`
	PID  int `json:"pid"`
}

// Order is what an agent is to do.
type Order struct {
	// Job is the node's part of the job. Its Environ is made on the node.
	Job job.Job `json:"job"`
	// Name is how the launcher calls the node.
	Name string `json:"name"`
	// Dir is the working directory, LogLevel what the agent says of itself.
	Dir      string `json:"dir"`
	LogLevel string `json:"log_level"`
	// LogFormat is the form of what is said when the launcher cannot be asked any more.
	LogFormat string `json:"log_format,omitzero"`
	// Environ are the launcher's variables that go to the node, "NAME=VALUE".
	Environ job.Strings `json:"environ"`
	// Token is the job's secret, nil for none.
	Token []byte `json:"token,omitempty"`
	// Files are files of the launcher's machine that the job names, by their paths there.
	Files map[string][]byte `json:"files,omitempty"`
	// Interfaces are names of variables that get the network interface which has Addr, an address of the machine.
	Interfaces []string `json:"interfaces,omitempty"`
	Addr       string   `json:"addr,omitempty"`
	// Collect asks for the workers' log files when the job has ended.
	Collect bool `json:"collect,omitempty"`
	// Preflight asks what the machine has, to compare it with the others.
	Preflight bool `json:"preflight,omitempty"`
	// Events asks for the node's events as they come.
	Events bool `json:"events,omitempty"`
	// Processes says that there is no job to run: the launcher starts processes one by one.
	Processes bool `json:"processes,omitempty"`
}

// Ready says that an agent could start its workers.
type Ready struct {
	// Preflight is what the machine has, nil where nobody asked.
	Preflight *job.Preflight `json:"preflight,omitempty"`
}

// Result is how a node's part of the job ended.
type Result struct {
	// Status is the exit status that muster would have there.
	Status int `json:"status"`
	// Report says why, as launch.Result has it; Error is why the job could not be run or ended, with a hint. All may be
	// empty.
	Report string `json:"report"`
	Error  string `json:"error"`
	Hint   string `json:"hint"`
	// Left says that the job goes on without this node, as somebody wanted fewer.
	Left bool `json:"left,omitempty"`
	// Over says that the job has ended for all nodes, whatever the status says of this one.
	Over bool `json:"over,omitempty"`
}

type signalMessage struct {
	Signal int `json:"signal"`
}

// StartProcess asks for a process.
type StartProcess struct {
	// ID is the launcher's name for it, never used twice.
	ID int `json:"id"`
	// Env are variables that it has beside those of the order.
	Env job.Strings `json:"env"`
	// Label names it in errors; Rank is the rank that it begins with, which its output is known by.
	Label string `json:"label"`
	Rank  int    `json:"rank"`
	// Local is its local rank, which it keeps; World is the number of the world that it is started for.
	Local int `json:"local,omitempty"`
	World int `json:"world,omitempty"`
}

// RankProcess says which rank a process has in the world with a number.
type RankProcess struct {
	ID    int `json:"id"`
	World int `json:"world"`
	Rank  int `json:"rank"`
}

// StopProcess asks for a process's end: SIGTERM, and SIGKILL after the grace.
type StopProcess struct {
	ID    int           `json:"id"`
	Grace time.Duration `json:"grace"`
}

// ProcessEvent says that a process was started, or has ended.
type ProcessEvent struct {
	ID int `json:"id"`
	// PID is that of a process that was started; it is not there where that failed.
	PID int `json:"pid,omitempty"`
	// Status is the exit status of one that has ended, 128+n for signal n. Error is why one could not be started.
	Status int    `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
	Ended  bool   `json:"-"`
}

// whoseMessage asks whose process the end at From of a connection to To is; ownerMessage answers whether it is the
// job's user's.
type (
	whoseMessage struct {
		ID   uint64         `json:"id"`
		From netip.AddrPort `json:"from"`
		To   netip.AddrPort `json:"to"`
	}
	ownerMessage struct {
		ID   uint64 `json:"id"`
		Ours bool   `json:"ours"`
	}
)

// Ask has an agent do something with the job of all nodes that somebody has asked the launcher for.
type Ask struct {
	ID      uint64          `json:"id"`
	Request control.Request `json:"request"`
	// Look says that nothing is asked for: somebody looks, and what is read for them alone is worth reading.
	Look bool `json:"look,omitempty"`
	// InRound says that an agent is to refuse which takes part in no round: others know better how the job stands.
	InRound bool `json:"inRound,omitempty"`
}

// Answer says what follows in a sentence, or why nothing does.
type Answer struct {
	ID      uint64 `json:"id"`
	Message string `json:"message,omitempty"`
	Error   string `json:"error,omitempty"`
	Hint    string `json:"hint,omitempty"`
	// Status is the exit status of an error.
	Status int `json:"status,omitempty"`
}

type fileMessage struct {
	// Path counts from the directory of the run's logs.
	Path string `json:"path"`
	Size int64  `json:"size"`
}
