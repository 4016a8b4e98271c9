package report_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"muster/internal/errhint"
	"muster/netcheck"
)

// records are the checks whose reports are kept in testdata.
func records() map[string]*netcheck.Record {
	undecided := clean(2)
	undecided.Links = []netcheck.LinkRecord{{A: 0, B: 1, Failed: 2, Err: "n1 said: connection timed out"}}
	undecided.Undecided = []string{
		"either n0 is bad; or n1 is bad; or the link between n0 and n1 is bad",
		"n0 and n1: n1 said: connection timed out",
	}
	for i := range undecided.Nodes {
		undecided.Nodes[i].Status, undecided.Nodes[i].Reason = netcheck.Ambiguous,
			"failed with the other node, which may be the fault of either or of what is between them"
	}

	unable := clean(2)
	unable.Links, unable.Rounds = nil, 0
	for i := range unable.Nodes {
		unable.Nodes[i] = netcheck.NodeRecord{
			Node: fmt.Sprintf("n%d", i), Status: netcheck.Skip, Reason: "nobody was left to test it with",
			Unable: "python3 has no torch: cannot be tested",
		}
	}

	alone := clean(1)
	alone.Nodes[0].Reason, alone.Nodes[0].Local.Reduce, alone.Rounds = "its own tests have passed", 830*time.Microsecond, 0

	return map[string]*netcheck.Record{
		"clean": clean(4), "faulty": faulty(), "undecided": undecided, "unable": unable, "one": alone, "full16": full(16),
		"many40": many(40),
	}
}

// tested is a link that passed, with a speed relative to the usual one.
func tested(a, b int, speed float64) netcheck.LinkRecord {
	const size, usual = 16 << 20, 182e9 // bytes, bytes/s
	took := time.Duration(size / (usual * speed) * 1.5 * 1e9)
	return netcheck.LinkRecord{A: a, B: b, Passed: 1, Best: netcheck.Timing{
		Bytes: size, Took: took, AlgBW: size / took.Seconds() / 1e9, BusBW: 1.5 * size / took.Seconds() / 1e9, Device: "cuda",
	}}
}

// clean is a check of n nodes in two rounds in which everything passed.
func clean(n int) *netcheck.Record {
	r := &netcheck.Record{Began: began, Took: 4217 * time.Millisecond, Rounds: 2}
	for i := range n {
		node := netcheck.NodeRecord{Node: fmt.Sprintf("n%d", i), Status: netcheck.Pass, Reason: "passed with two others"}
		node.Local.Compute = 10*time.Millisecond + time.Duration(i*37%11)*29*time.Microsecond
		r.Nodes = append(r.Nodes, node)
		if j := i ^ 1; j < i {
			r.Links = append(r.Links, tested(j, i, 1))
		}
		if j := i ^ 2; j < i {
			r.Links = append(r.Links, tested(j, i, 0.98))
		}
	}
	r.Untested = n*(n-1)/2 - len(r.Links)
	return r
}

// faulty is a check with a bad node, a bad link, an unsteady one, a straggler, and the bandwidth of all.
func faulty() *netcheck.Record {
	r := clean(8)
	for i := range r.Nodes {
		r.Nodes[i].Node = fmt.Sprintf("gpu-%02d.cluster", 17+i)
	}
	r.Rounds, r.Took, r.Fake = 4, 11*time.Second, "testdata/two-racks.yaml"
	bad := &r.Nodes[3]
	bad.Status, bad.Local = netcheck.Fail, netcheck.Local{}
	bad.Reason = "failed with gpu-17.cluster, gpu-18.cluster and gpu-19.cluster, which pass with others (gpu-20.cluster said: NCCL: " +
		"unhandled system error)"
	bad.Fault = &netcheck.Fault{Status: errhint.Faulty, Reason: bad.Reason}
	r.Links = slices.DeleteFunc(r.Links, func(l netcheck.LinkRecord) bool { return l.A == 3 || l.B == 3 })
	for _, peer := range []int{0, 1, 2} {
		r.Links = append(r.Links, netcheck.LinkRecord{A: peer, B: 3, Failed: 1, Err: "gpu-20.cluster said: NCCL: unhandled system error"})
	}
	for i := range r.Links {
		switch l := &r.Links[i]; [2]int{l.A, l.B} {
		case [2]int{4, 5}:
			*l = netcheck.LinkRecord{A: 4, B: 5, Failed: 2, Faulty: true, Err: "gpu-22.cluster said: connection timed out"}
		case [2]int{0, 2}:
			l.Failed, l.Err = 1, "gpu-19.cluster said: connection reset by peer"
		case [2]int{6, 7}:
			*l = tested(6, 7, 0.44)
		case [2]int{5, 7}:
			*l = tested(5, 7, 0.41)
		}
	}
	r.Links = append(r.Links, tested(1, 7, 0.43), tested(2, 6, 0.83), tested(0, 4, 0.62), tested(0, 5, 1.01), tested(1, 4, 0.97),
		tested(1, 6, 1))
	r.Nodes[5].Fault = &netcheck.Fault{
		Status: errhint.Undecided,
		Reason: "its link to gpu-21.cluster is bad, so that one of the two has to go",
	}
	r.Nodes[7].Local.Compute = 23400 * time.Microsecond
	r.Stragglers = []netcheck.StragglerRecord{
		{Node: 7, Resource: "compute", Took: 23400 * time.Microsecond, Others: 10140 * time.Microsecond},
		{Node: 7, Resource: "network", Took: 322 * time.Microsecond, Others: 142 * time.Microsecond},
	}
	r.Untested = 5
	for size := int64(1 << 20); size <= 1<<30; size <<= 5 {
		took := 120*time.Microsecond + time.Duration(float64(size)/92e9*1e9)
		bw := float64(size) / took.Seconds() / 1e9
		r.Perf = append(r.Perf, netcheck.Timing{Bytes: size, Took: took, AlgBW: bw, BusBW: bw * 1.97, Device: "cuda"})
	}
	r.PerfErr = "node gpu-22.cluster: the last size took too long"
	return r
}

// full is a check of every pair of nodes in two racks, with slow links between them, a bad node and a bad link.
func full(n int) *netcheck.Record {
	r := clean(n)
	r.Links, r.Untested, r.Rounds = nil, 0, n-1
	random := rand.New(rand.NewPCG(1, 2))
	for b := range n {
		for a := range b {
			speed := 0.93 + 0.12*random.Float64()
			if a < n/4 && b >= n/4 {
				speed *= 0.6
			}
			if b == n-2 {
				speed *= 0.5
			}
			l := tested(a, b, speed)
			if a == 5 || b == 5 {
				l = netcheck.LinkRecord{A: a, B: b, Failed: 1, Err: "n5 said: connection refused"}
			}
			r.Links = append(r.Links, l)
		}
	}
	r.Links[n+2] = netcheck.LinkRecord{A: r.Links[n+2].A, B: r.Links[n+2].B, Failed: 2, Faulty: true, Err: "connection timed out"}
	r.Nodes[5].Status, r.Nodes[5].Reason = netcheck.Fail, "failed with n0, n1, n2, n3, n4 and 10 more, which pass with others"
	r.Nodes[5].Fault = &netcheck.Fault{Status: errhint.Faulty, Reason: r.Nodes[5].Reason}
	return r
}

// many is a clean check of many nodes.
func many(n int) *netcheck.Record {
	r := clean(n)
	for i := range r.Links {
		r.Links[i].Best = tested(0, 1, 0.85+float64(i*7%30)/100).Best
	}
	return r
}
