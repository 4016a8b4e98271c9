package checkpointd

import (
	"net"

	"golang.org/x/sys/unix"

	"muster/internal/wire"
)

// Python's half of this is internal/python/checkpoint/muster/checkpoint/_agent.py. Fields are only ever added.
const (
	frameLimit      = 1 << 20
	protocolVersion = 1
)

// request is what a worker asks. Op says which of the other fields mean something.
type request struct {
	Op string `json:"op"`
	// hello: who asks, and about which checkpoints.
	Version int  `json:"version,omitempty"`
	Rank    int  `json:"rank,omitempty"`
	Shard   int  `json:"shard,omitempty"` // the one that it reads, and writes where Saves is true
	Shards  int  `json:"shards,omitempty"`
	Saves   bool `json:"saves,omitempty"`
	// Copies says that it saves the shard, too, where no node may have it from another one: it is the first of its node
	// that reads it.
	Copies bool   `json:"copies,omitempty"`
	Dir    string `json:"dir,omitempty"`
	// Reshards says that the worker can restore what another number of shards has saved.
	Reshards bool `json:"reshards,omitempty"`
	// Across says that it reads what other workers have saved, besides its own shard.
	Across bool `json:"across,omitempty"`
	// Replicas is on how many nodes it wants a copy of each shard, where that is more than muster was told.
	Replicas int   `json:"replicas,omitempty"`
	Keep     int   `json:"keep,omitempty"`
	Every    int64 `json:"every,omitempty"`
	// begin, ready, abort, release, open: which memory, for what.
	Step int64 `json:"step,omitempty"`
	Size int64 `json:"size,omitempty"` // begin, reserve: bytes of records and their list
	Slot int   `json:"slot,omitempty"`
	// Persist asks for the step on disk.
	Persist bool `json:"persist,omitempty"`
	// open: which file of the step that load told.
	Path string `json:"path,omitempty"`
	// ready: where the list of records lies.
	MetaOffset int64 `json:"meta_offset,omitempty"`
	MetaLength int64 `json:"meta_length,omitempty"`
	// wait: how long, in milliseconds.
	Millis int64 `json:"millis,omitempty"`
}

// reply answers a request. A descriptor comes with it where New is true.
type reply struct {
	Error string `json:"error,omitempty"`
	// Busy says that there is no memory for the step now, Full that there will be none: the worker writes it itself.
	Busy bool `json:"busy,omitempty"`
	Full bool `json:"full,omitempty"`
	// Saves tells a worker at hello whether it saves its shard, Local that nodes have no copies from each other.
	Saves bool `json:"saves,omitempty"`
	Local bool `json:"local,omitempty"`
	// Direct tells a worker at hello to write its checkpoints by itself.
	Direct bool `json:"direct,omitempty"`

	Slot     int   `json:"slot,omitempty"`
	Capacity int64 `json:"capacity,omitempty"` // bytes of the slot's file, with its header
	New      bool  `json:"new,omitempty"`

	// load: where the step is: memory, disk or none.
	Source     string `json:"source,omitempty"`
	Step       int64  `json:"step,omitempty"`
	MetaOffset int64  `json:"meta_offset,omitempty"`
	MetaLength int64  `json:"meta_length,omitempty"`
	Path       string `json:"path,omitempty"` // of the shard's first file
	Root       string `json:"root,omitempty"` // the directory of the step's files
	Note       string `json:"note,omitempty"`

	// wait: Committed is the newest step on disk, -1 for none.
	Committed int64 `json:"committed,omitempty"`
	Done      bool  `json:"done,omitempty"`
}

// writeReply writes one frame, with a descriptor unless fd is -1.
func writeReply(conn *net.UnixConn, rep reply, fd int) error {
	frame, err := wire.Frame(rep)
	if err != nil {
		return err
	}
	if fd < 0 {
		_, err = conn.Write(frame)
		return err
	}
	n, _, err := conn.WriteMsgUnix(frame, unix.UnixRights(fd), nil)
	if err == nil && n < len(frame) { // the descriptor went with the first byte
		_, err = conn.Write(frame[n:])
	}
	return err
}

// peerUID returns the user at the other end of a connection.
func peerUID(conn *net.UnixConn) (uid, pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, 0, err
	}
	if credErr != nil {
		return 0, 0, credErr
	}
	return int(cred.Uid), int(cred.Pid), nil
}
