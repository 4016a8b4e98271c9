// Package netprobe measures the network between two nodes, and judges what was measured.
//
// A node listens (Listen, Server.Serve), the other one of a pair asks (Pair) and gets Facts: whether each reaches the
// other, round trips, how far the clocks are apart, which datagram sizes pass, what streams carry in both directions
// and what had to be sent again. Judge turns the facts of all pairs into results of checks. So a pair is probed from
// one end only; who is with whom, and when, is netcheck/blame's.
//
// Beside it stand facts of one node that decide how others reach it: which interface NCCL and Gloo will take (NCCL,
// Gloo), and what sysfs says of its RDMA ports (RDMA). JudgeNodes compares those of all nodes.
//
// Judging is pure. Measuring is bounded in time (Config.Budget), in bytes and in connections, at both ends. A node that
// offers probes gives work to whoever asks, so it asks for the job's token first; nothing that is measured is secret,
// and nothing is encrypted. RDMA is not measured here: TCP from two cores ends at some 4 GB/s.
//
// Probes, defaults and rules are section 6 of the design page on accelerators; docs/node-probes.md tells them to users.
package netprobe
