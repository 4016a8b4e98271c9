package diagnose

import (
	"slices"
	"strings"
	"testing"

	"muster/launch/evidence"
)

// The processes of the cases below, each of which is one of a rank.
type change func(*evidence.Rank)

func rank(n int, changes ...change) evidence.Rank {
	r := evidence.Rank{Rank: n, PID: 100 + n, Processes: []evidence.Process{{
		PID: 100 + n, PPID: 1, Name: "python", State: "S", Steady: true, Threads: []evidence.Thread{{TID: 100 + n, State: "S"}},
	}}}
	for _, c := range changes {
		c(&r)
	}
	return r
}

func at(syscall string, frames ...evidence.Frame) change {
	return func(r *evidence.Rank) {
		r.Processes[0].Threads[0].Syscall = syscall
		r.Processes[0].Stacks = append(r.Processes[0].Stacks, evidence.Stack{Thread: "0x1", Frames: frames})
	}
}

func state(s string) change { return func(r *evidence.Rank) { r.Processes[0].State = s } }

func uses(share float64) change {
	return func(r *evidence.Rank) {
		p := &r.Processes[0]
		p.CPU, p.Wants, p.Threads[0].CPU, p.Threads[0].Wants = share, share, share, share
	}
}

// wants is what all threads of a process together would use, but for its main one.
func wants(share float64) change { return func(r *evidence.Rank) { r.Processes[0].Wants = share } }

func with(p evidence.Process, threads ...evidence.Thread) change {
	return func(r *evidence.Rank) {
		r.Processes[0].Threads = append(r.Processes[0].Threads, threads...)
		if p.PID > 0 {
			p.PPID = r.PID
			r.Processes = append(r.Processes, p)
		}
	}
}

func waitsForLock(file string, holder int) change {
	return func(r *evidence.Rank) { r.Processes[0].Locks = []evidence.FileLock{{File: file, Holder: holder}} }
}

func connected(s ...evidence.Socket) change {
	return func(r *evidence.Rank) { r.Processes[0].Sockets = s }
}

var (
	user   = evidence.Frame{Func: "train", File: "/home/u/train.py", Line: 7, Text: "loss.item()"}
	reduce = evidence.Frame{Func: "all_reduce", File: "/v/site-packages/torch/distributed/distributed_c10d.py", Line: 9}
	gather = evidence.Frame{Func: "all_gather", File: "/v/site-packages/torch/distributed/distributed_c10d.py", Line: 8}
	back   = evidence.Frame{Func: "_engine_run_backward", File: "/v/site-packages/torch/autograd/graph.py", Line: 8}
	fetch  = evidence.Frame{Func: "_try_get_data", File: "/v/site-packages/torch/utils/data/dataloader.py", Line: 8}
	elsew  = evidence.Frame{Func: "save", File: "/home/u/train.py", Line: 31}
	isSet  = evidence.Frame{Func: "is_set", File: "/usr/lib/python3.13/threading.py", Line: 575}
	polls  = evidence.Frame{Func: "poll", File: "/home/u/train.py", Line: 40, Text: "time.sleep(1)", Loop: "while not done"}
)

func spins(seconds float64) change { return func(r *evidence.Rank) { r.Spins = seconds } }

func device(r *evidence.Rank) { r.Processes[0].Device = true }

func calls(list ...evidence.Collective) change {
	return func(r *evidence.Rank) { r.Processes[0].Calls = list }
}

func pendingCall(number int64) evidence.Collective {
	return evidence.Collective{Group: "0", GroupIs: "default_pg", Number: number, Op: "all_reduce", Pending: true}
}

func in(call evidence.Frame) change { return at("futex", user, call) }

// Each kind of hang has its sentence, its culprits and its victims.
func TestVerdict(t *testing.T) {
	loader := func(changes ...func(*evidence.Process)) change {
		p := evidence.Process{
			PID: 900, Name: "pt_data_worker", State: "S", Steady: true,
			Threads: []evidence.Thread{{TID: 900, State: "S"}},
		}
		for _, c := range changes {
			c(&p)
		}
		return with(p)
	}
	for name, c := range map[string]struct {
		ranks             []evidence.Rank
		kind              Kind
		culprits, victims []int
		says              []string
	}{
		"stopped": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, state("T")), rank(2, in(reduce))},
			Stopped,
			[]int{1},
			[]int{0, 2},
			[]string{
				"rank 1 has not come to all_reduce", "is stopped by a signal (process 101, state T)",
				"ranks 0/2 wait for it in all_reduce at train.py:7",
			},
		},
		"blocked": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, state("D"))},
			Blocked,
			[]int{1},
			[]int{0},
			[]string{"no signal reaches it", "state D"},
		},
		"a moment in the kernel": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, state("D"), uses(0.9), at("", elsew), func(r *evidence.Rank) {
				r.Processes[0].Steady = false
			})},
			Runs,
			[]int{1},
			[]int{0},
			[]string{"computes at train.py:31 in save", "cannot be told from an endless loop"},
		},
		"sleeps": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("clock_nanosleep", elsew)), rank(2, at("clock_nanosleep", elsew))},
			Sleeps,
			[]int{1, 2},
			[]int{0},
			[]string{"ranks 1-2 have not come to all_reduce: each sleeps at train.py:31 in save; rank 0 waits for them in all_reduce"},
		},
		"ended": {
			[]evidence.Rank{rank(0, in(reduce)), {Rank: 1, PID: 101, Ended: true}}, Ended, []int{1}, []int{0}, []string{"it has ended"},
		},
		"devices in a collective that one has not come to": {
			[]evidence.Rank{
				rank(0, uses(1), at("", user), spins(40), calls(pendingCall(48))), rank(1, at("clock_nanosleep", elsew)),
				rank(2, uses(1), at("", user), spins(41), calls(pendingCall(48))),
			},
			Sleeps,
			[]int{1},
			[]int{0, 2},
			[]string{"rank 1 has not come to all_reduce: it sleeps", "ranks 0/2 wait for it in all_reduce at train.py:7"},
		},
		"a device that does not come to an end": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, uses(1), at("", user), spins(40))},
			Device,
			[]int{1},
			[]int{0},
			[]string{"it waits for its device at train.py:7 in train (loss.item()); rank 0"},
		},
		"by one look": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, uses(1), at("", user), device)},
			Device,
			[]int{1},
			[]int{0},
			[]string{"it waits for its device at train.py:7 in train (loss.item()); rank 0"},
		},
		"what computes beside a device": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, uses(1), at("", elsew), device)},
			Runs,
			[]int{1},
			[]int{0},
			[]string{"it computes"},
		},
		"a program that uses a device and has no stacks": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, uses(1), device)}, Runs, []int{1}, []int{0}, []string{"it computes"},
		},
		"devices of which nothing more is known": {
			[]evidence.Rank{rank(0, uses(1), at("", user), spins(40)), rank(1, uses(1), at("", user), spins(52))},
			Device,
			nil,
			[]int{0, 1},
			[]string{"ranks 0-1: each waits for its device at train.py:7 in train (loss.item()); " +
				"which of their devices holds up the others cannot be told"},
		},
		"native code with the lock": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, uses(0.97), at("", elsew), at("", user),
				with(evidence.Process{}, evidence.Thread{TID: 7, Syscall: "futex", Waits: 198}))},
			Interpreter,
			[]int{1},
			[]int{0},
			[]string{"does not give up Python's lock"},
		},
		"native code with the lock, for which a thread waits in Python's library": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, uses(0.97), at("", elsew), at("", isSet),
				with(evidence.Process{}, evidence.Thread{TID: 7, Syscall: "futex", Waits: 198}))},
			Interpreter,
			[]int{1},
			[]int{0},
			[]string{"does not give up Python's lock"},
		},
		"a loop beside a thread that polls": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, uses(0.97), at("", elsew), at("", user),
				with(evidence.Process{}, evidence.Thread{TID: 7, Syscall: "poll", Waits: 100}))},
			Runs,
			[]int{1},
			[]int{0},
			[]string{"computes"},
		},
		"deadlock": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("futex", elsew), at("futex", user),
				with(evidence.Process{}, evidence.Thread{TID: 7, Syscall: "futex"}))},
			Deadlock,
			[]int{1},
			[]int{0},
			[]string{"another thread of it waits for one, too at train.py:7"},
		},
		"a deadlock while threads of PyTorch are in line for a core": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("futex", elsew), at("futex", user), wants(0.3),
				with(evidence.Process{}, evidence.Thread{TID: 7, Syscall: "futex"},
					evidence.Thread{TID: 8, Syscall: "epoll_wait", Wants: 0.3}))},
			Deadlock,
			[]int{1},
			[]int{0},
			[]string{"another thread of it waits for one, too at train.py:7"},
		},
		"a lock while another thread computes": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("futex", elsew), at("futex", user), wants(1),
				with(evidence.Process{}, evidence.Thread{TID: 7, Syscall: "futex"},
					evidence.Thread{TID: 8, State: "R", CPU: 0.05, Wants: 1}))},
			Lock,
			[]int{1},
			[]int{0},
			[]string{"who has the lock cannot be seen"},
		},
		"gradients while threads of PyTorch are in line for a core": {
			[]evidence.Rank{rank(0, at("futex", user, back), wants(0.3)), rank(1, at("clock_nanosleep", elsew))},
			Sleeps,
			[]int{1},
			[]int{0},
			[]string{"rank 0 waits for it in the exchange of gradients in backward()"},
		},
		"in line for a core between two sleeps": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("", polls))},
			Sleeps,
			[]int{1},
			[]int{0},
			[]string{"it sleeps at train.py:40 in poll (time.sleep(1)), again and again (while not done)"},
		},
		"no core": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("", user), uses(1), func(r *evidence.Rank) {
				r.Processes[0].Threads[0].CPU = 0.01
			})},
			Starved,
			[]int{1},
			[]int{0},
			[]string{"gets no core (1 % of one)", "it is at train.py:7 in train"},
		},
		"a lock": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("futex", elsew))},
			Lock,
			[]int{1},
			[]int{0},
			[]string{"who has the lock cannot be seen"},
		},
		"a lock that a waiting rank has": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("flock", elsew), waitsForLock("/f", 100))},
			Deadlock,
			[]int{1, 0},
			[]int{0},
			[]string{"rank 1 waits for a lock on the file /f at train.py:31 in save, which rank 0 has, and that one waits for the others " +
				"in all_reduce"},
		},
		"a lock that a sleeping rank has": {
			[]evidence.Rank{rank(0, at("clock_nanosleep", user)), rank(1, at("flock", elsew), waitsForLock("/f", 100))},
			FileLock,
			[]int{0},
			[]int{1},
			[]string{"which rank 0 has: that one sleeps"},
		},
		"loader stopped": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("poll", user, fetch), loader(func(p *evidence.Process) { p.State = "T" }))},
			Loader,
			[]int{1},
			[]int{0},
			[]string{"it waits for its data loader, whose worker process 900 is stopped by a signal"},
		},
		"loader dead": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("poll", user, fetch), loader(func(p *evidence.Process) { p.State = "Z" }))},
			Loader,
			[]int{1},
			[]int{0},
			[]string{"whose worker process 900 has died"},
		},
		"loader stopped beside a process that has died": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("poll", user, fetch),
				with(evidence.Process{PID: 800, Name: "python", State: "Z"}), loader(func(p *evidence.Process) { p.State = "T" }))},
			Loader,
			[]int{1},
			[]int{0},
			[]string{"whose worker process 900 is stopped by a signal"},
		},
		"loader gone": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, at("poll", user, fetch))},
			Loader,
			[]int{1},
			[]int{0},
			[]string{"none of whose workers is at work"},
		},
		"other collective": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, in(gather)), rank(2, in(reduce))},
			Mismatch,
			[]int{1},
			[]int{0, 2},
			[]string{"different collectives: rank 1 in all_gather", "ranks 0/2 in all_reduce"},
		},
		"two collectives": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, in(gather))},
			Mismatch, nil,
			[]int{0, 1},
			[]string{"which of them is the wrong one cannot be told"},
		},
		"link": {
			[]evidence.Rank{
				rank(0, in(reduce),
					connected(evidence.Socket{Local: "10.0.0.1:5", Peer: "10.0.0.2:6", State: "established", Send: 640, Retransmits: 4})),
				rank(1, in(reduce), connected(evidence.Socket{Local: "10.0.0.2:6", Peer: "10.0.0.1:5", State: "established"})),
			},
			Link,
			[]int{0, 1},
			[]int{0, 1},
			[]string{"the connection between rank 0 and rank 1 does not get through (640 bytes from rank 0 were sent again 4 times)"},
		},
		"all in one collective": {
			[]evidence.Rank{rank(0, in(reduce)), rank(1, in(reduce))},
			Unknown, nil,
			[]int{0, 1},
			[]string{"all ranks seen (0-1)", "cannot be told by one look"},
		},
		"gradients": {
			[]evidence.Rank{rank(0, at("futex", user, back)), rank(1, at("read", elsew))},
			Input,
			[]int{1},
			[]int{0},
			[]string{"waits for input at train.py:31 in save, in read", "the exchange of gradients in backward()"},
		},
		"computes in backward": {
			[]evidence.Rank{rank(0, uses(0.9), at("", user, back)), rank(1, uses(0.9), at("", user, back))},
			Nothing, nil, nil,
			[]string{"no rank waits for another one: ranks 0-1: each computes"},
		},
		"no stacks": {
			[]evidence.Rank{rank(0, func(r *evidence.Rank) { r.Processes[0].NoStacks = "it is no Python that answers" })},
			Unknown,
			[]int{0},
			nil,
			[]string{"waits somewhere that cannot be seen (process 100; it is no Python that answers)"},
		},
		"nobody": {nil, Unknown, nil, nil, []string{"no rank could be looked at"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			half := len(c.ranks) / 2 // on two nodes it is the same
			for _, nodes := range [][]evidence.Node{{{Ranks: c.ranks}}, {{Ranks: c.ranks[half:]}, {Ranks: c.ranks[:half]}}} {
				v := Of(nodes, nil)
				if v.Kind != c.kind || !slices.Equal(v.Culprits, c.culprits) || !slices.Equal(v.Victims, c.victims) {
					t.Errorf("%s, culprits %v, victims %v", v.Kind, v.Culprits, v.Victims)
				}
				for _, s := range c.says {
					if !strings.Contains(v.Sentence, s) {
						t.Errorf("it does not say %q: %s", s, v.Sentence)
					}
				}
			}
		})
	}
	v := Of([]evidence.Node{{Ranks: []evidence.Rank{rank(3, uses(1), at("", user), spins(40))}}}, nil)
	if text := strings.Join(v.Evidence, "\n"); !strings.Contains(text, "\nrank 3: for 40 s it has begun no collective") {
		t.Error(text)
	}
	if v := Of(nil, []string{"a", "b"}); !strings.HasSuffix(v.Sentence, "the nodes a and b could not be looked at, and may be the reason") {
		t.Errorf("%s", v.Sentence)
	}
}

// on has ranks on a node.
func on(node string, ranks ...evidence.Rank) evidence.Node {
	for i := range ranks {
		ranks[i].Node = node
	}
	return evidence.Node{Node: node, Ranks: ranks}
}

// Of several nodes the one is named that the culprit is on. Processes and addresses that two nodes have are not one.
func TestVerdictOfNodes(t *testing.T) {
	socket := func(local, peer string, again int) evidence.Socket {
		return evidence.Socket{Local: local, Peer: peer, State: "established", Send: int64(again), Retransmits: again}
	}
	both := func(a, b evidence.Rank) []evidence.Node { return []evidence.Node{on("a", a), on("b", b)} }
	pid := func(n int) change {
		return func(r *evidence.Rank) { r.PID, r.Processes[0].PID, r.Processes[0].Threads[0].TID = n, n, n }
	}
	for name, c := range map[string]struct {
		nodes   []evidence.Node
		missing []string
		kind    Kind
		says    string
	}{
		"one": {
			both(rank(0, in(reduce)), rank(1, at("clock_nanosleep", elsew))), nil, Sleeps,
			"rank 1 on node b has not come to all_reduce: it sleeps at train.py:31 in save; " +
				"rank 0 waits for it in all_reduce at train.py:7",
		},
		"two": {
			[]evidence.Node{on("a", rank(0, in(reduce)), rank(1, state("T"))), on("b", rank(2, state("T")), rank(3, state("T")))},
			nil, Stopped,
			"rank 1 on node a and ranks 2-3 on node b have not come to all_reduce: ",
		},
		"missing": {
			[]evidence.Node{on("a", rank(0, in(reduce)), rank(1, in(reduce)))},
			[]string{"b", "c", "d"},
			Unknown, "; the nodes b, c and d could not be looked at, and may be the reason",
		},
		"mismatch": {
			[]evidence.Node{on("a", rank(0, in(reduce)), rank(1, in(reduce))), on("b", rank(2, in(gather)))},
			nil, Mismatch,
			"rank 2 on node b in all_gather at train.py:7 in train (loss.item()), ranks 0-1 in all_reduce",
		},
		"link": {
			both(rank(0, in(reduce), connected(socket("10.0.0.1:5", "10.0.0.2:6", 4))),
				rank(1, in(reduce), connected(socket("10.0.0.2:6", "10.0.0.1:5", 0)))), nil, Link,
			"the connection between rank 0 on node a and rank 1 on node b does not get through (4 bytes from rank 0 were sent again " +
				"4 times)",
		},
		"a connection within a machine": {
			both(rank(0, in(reduce), connected(socket("127.0.0.1:5", "127.0.0.1:6", 4))),
				rank(1, in(reduce), connected(socket("127.0.0.1:6", "127.0.0.1:5", 0)))), nil, Unknown, "all ranks seen (0-1)",
		},
		"the same process id": {
			both(rank(0, in(reduce), pid(7)), rank(1, pid(8), at("flock", elsew), waitsForLock("/data/lock", 7))), nil, FileLock,
			"rank 1 on node b has not come to all_reduce: it waits for a lock on the file /data/lock",
		},
	} {
		v := Of(c.nodes, c.missing)
		if v.Kind != c.kind || !strings.Contains(v.Sentence, c.says) {
			t.Errorf("%s: %s: %s", name, v.Kind, v.Sentence)
		}
	}
}
