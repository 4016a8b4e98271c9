// Package rankmonitor listens to workers that tell of themselves with the RankMonitorClient of NVIDIA's resiliency
// extension (NVRx), as NVRx's launcher has a process for each of them do (nvidia-resiliency-ext 0.7.0, fault_tolerance/
// rank_monitor_server.py, data.py and utils.py, read): each worker has a Unix socket, on which it tells of heartbeats
// and of the sections that it enters and leaves. Who takes longer than the limits is told of, once and again. The agent
// (launch) opens a Server and decides what becomes of such a worker; nothing is signalled here.
//
// What a worker sends is a pickle. Nothing in it is run, and a message has a greatest length.
package rankmonitor
