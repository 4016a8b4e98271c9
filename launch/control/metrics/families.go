package metrics

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"muster/launch/report"
)

// phases are those that a job can stand in, in the order of its life.
var phases = [...]report.Phase{
	report.PhasePending, report.PhaseChecking, report.PhaseCreating, report.PhaseRunning, report.PhasePausing, report.PhasePaused,
	report.PhaseResuming,
	report.PhaseRestarting,
	report.PhaseTerminating, report.PhaseSucceeded, report.PhaseFailed, report.PhaseTimeout,
}

// families are all metrics. docs/metrics.md has them, too.
var families = [...]family{
	{"muster_job_info", gauge, "The job: always 1.", func(l *lines, s *Snapshot) {
		l.add(1, "run_id", s.Status.RunID, "name", s.Status.Name)
	}},
	{"muster_job_phase", gauge, "1 for the phase in which the job stands, 0 for the others.", func(l *lines, s *Snapshot) {
		for _, p := range phases {
			l.add(truth(p == s.Status.Phase), "phase", string(p))
		}
	}},
	{"muster_job_start_time_seconds", gauge, "When all workers ran for the first time, since the epoch.", func(l *lines, s *Snapshot) {
		if t := s.Status.StartTime; t != nil {
			l.add(moment(*t))
		}
	}},
	{"muster_nodes", gauge, "Nodes of the round.", func(l *lines, s *Snapshot) { l.add(float64(s.Status.Nodes)) }},
	{"muster_world_size", gauge, "Workers of all nodes of the round.", func(l *lines, s *Snapshot) { l.add(float64(s.Status.WorldSize)) }},
	{"muster_round", gauge, "Number of the rendezvous round, from 0.", func(l *lines, s *Snapshot) { l.add(float64(s.Status.Generation)) }},
	{"muster_workers", gauge, "Workers by state: those of this node, of a launcher those of all nodes.", func(l *lines, s *Snapshot) {
		c := &s.Status.Counts
		for _, of := range []struct {
			state string
			n     int
		}{
			{"pending", c.Pending},
			{"creating", c.Creating},
			{"running", c.Running},
			{"terminating", c.Terminating},
			{"succeeded", c.Succeeded},
			{"failed", c.Failed},
			{"stopped", c.Stopped},
			{"unknown", c.Unknown},
		} {
			l.add(float64(of.n), "state", of.state)
		}
	}},
	{"muster_restarts_total", counter, "Restarts of the workers here by reason, requested ones, too.", func(l *lines, s *Snapshot) {
		if a := s.Status.Accounting; a != nil {
			for _, reason := range sorted(a.Restarts) {
				l.add(float64(a.Restarts[reason]), "reason", string(reason))
			}
		}
	}},
	{"muster_replacements_total", counter, "Nodes that the job has lost and gone on without, or replaced.", func(l *lines, s *Snapshot) {
		l.add(float64(s.Status.Replacements))
	}},
	{"muster_wall_seconds_total", counter, "How long the job has lasted.", func(l *lines, s *Snapshot) {
		if a := s.Status.Accounting; a != nil {
			l.add(a.WallSeconds)
		}
	}},
	{
		"muster_time_seconds_total", counter, "What that time went to: the causes add up to muster_wall_seconds_total.",
		func(l *lines, s *Snapshot) {
			if a := s.Status.Accounting; a != nil {
				for _, cause := range slices.Sorted(maps.Keys(a.Seconds)) {
					l.add(a.Seconds[cause], "cause", cause)
				}
			}
		},
	},
	{"muster_goodput_ratio", gauge, "Share of the time that was training which had not been done before.", func(l *lines, s *Snapshot) {
		if a := s.Status.Accounting; a != nil {
			l.add(a.Goodput)
		}
	}},
	{
		"muster_rendezvous_duration_seconds", summary, "How long this node has waited for the nodes of its rounds.",
		func(l *lines, s *Snapshot) { l.durations(s.Measured.Rendezvous) },
	},
	{
		"muster_check_duration_seconds", summary, "How long the checks of nodes have taken.",
		func(l *lines, s *Snapshot) { l.durations(s.Measured.Checks) },
	},
	{"muster_step", gauge, "The last step that the rank has finished, as its program tells.", func(l *lines, s *Snapshot) {
		l.perRank(s, func(r *report.Rank) (float64, bool) {
			return number64(r, func(p *report.Progress) int64 { return p.Step })
		})
	}},
	{"muster_steps_planned", gauge, "How many steps there will be, as the rank's program tells.", func(l *lines, s *Snapshot) {
		l.perRank(s, func(r *report.Rank) (float64, bool) {
			v, known := number64(r, func(p *report.Progress) int64 { return p.Total })
			return v, known && v > 0
		})
	}},
	{
		"muster_step_duration_seconds", histogram, "How long steps of the rank's program took that runs now, by what it tells.",
		func(l *lines, s *Snapshot) {
			for i := range s.Measured.Ranks {
				l.stepHistogram(s, &s.Measured.Ranks[i])
			}
		},
	},
	{
		"muster_progress_timestamp_seconds", gauge, "When the rank's program has told something last, since the epoch.",
		func(l *lines, s *Snapshot) {
			l.perRank(s, func(r *report.Rank) (float64, bool) {
				if r.Progress == nil {
					return 0, false
				}
				return moment(r.Progress.Time), true
			})
		},
	},
	{
		"muster_worker_slowness_ratio", gauge,
		"How many times as long as the median of all ranks the rank takes for what it does by itself in a step.",
		func(l *lines, s *Snapshot) {
			l.perRank(s, func(r *report.Rank) (float64, bool) {
				if r.Slowness == nil {
					return 0, false
				}
				return *r.Slowness, true
			})
		},
	},
	{"muster_value", gauge, "A value that the rank's program has told with its last step, such as loss.", func(l *lines, s *Snapshot) {
		for i := range s.Status.Ranks {
			r := &s.Status.Ranks[i]
			if r.Progress == nil {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(r.Progress.Values)) {
				l.add(r.Progress.Values[name], append(rankLabels(r), "name", name)...)
			}
			for _, name := range r.Progress.NotFinite {
				l.add(math.NaN(), append(rankLabels(r), "name", name)...)
			}
		}
	}},
	{
		"muster_worker_restarts_total", counter, "How often the rank was started again on its node, for whatever reason.",
		func(l *lines, s *Snapshot) {
			l.perRank(s, func(r *report.Rank) (float64, bool) { return float64(r.Restarts), true })
		},
	},
	{"muster_worker_running", gauge, "Whether the rank's process runs.", func(l *lines, s *Snapshot) {
		l.perRank(s, func(r *report.Rank) (float64, bool) { return truth(r.Phase == report.PhaseRunning), true })
	}},
	{
		"muster_worker_cpu_seconds_total", counter, "Processor time of the rank's process and what has descended from it.",
		func(l *lines, s *Snapshot) {
			l.perRank(s, func(r *report.Rank) (float64, bool) { return optional(r.CPUSeconds) })
		},
	},
	{
		"muster_worker_resident_memory_bytes", gauge, "Resident memory of the rank's process and what has descended from it.",
		func(l *lines, s *Snapshot) {
			l.perRank(s, func(r *report.Rank) (float64, bool) { return optional(r.ResidentBytes) })
		},
	},
	{
		"muster_worker_device_memory_bytes", gauge, "Memory in use of an accelerator that the rank has, by whomever.",
		func(l *lines, s *Snapshot) {
			l.perDevice(s, func(d *report.DeviceUse) (float64, bool) { return optional(d.MemoryBytes) })
		},
	},
	{
		"muster_worker_device_memory_total_bytes", gauge, "Memory of an accelerator that the rank has.",
		func(l *lines, s *Snapshot) {
			l.perDevice(s, func(d *report.DeviceUse) (float64, bool) { return optional(d.MemoryTotalBytes) })
		},
	},
	{
		"muster_worker_device_own_memory_bytes", gauge, "Memory that the rank's processes have of an accelerator.",
		func(l *lines, s *Snapshot) {
			l.perDevice(s, func(d *report.DeviceUse) (float64, bool) { return optional(d.OwnMemoryBytes) })
		},
	},
	{
		"muster_worker_device_utilization_ratio", gauge, "Share of the last moments in which an accelerator that the rank has computed.",
		func(l *lines, s *Snapshot) {
			l.perDevice(s, func(d *report.DeviceUse) (float64, bool) { return optional(d.Utilization) })
		},
	},
	{
		"muster_worker_output_timestamp_seconds", gauge, "When the rank has written something last, since the epoch.",
		func(l *lines, s *Snapshot) {
			l.perRank(s, func(r *report.Rank) (float64, bool) {
				if r.LastOutput == nil {
					return 0, false
				}
				return moment(*r.LastOutput), true
			})
		},
	},
	{
		"muster_node_network_receive_bytes_total", counter, "Bytes that an interface of the node has received since the job began.",
		func(l *lines, s *Snapshot) {
			l.perInterface(s, func(t *report.Traffic) uint64 { return t.ReceivedBytes })
		},
	},
	{
		"muster_node_network_transmit_bytes_total", counter, "Bytes that an interface of the node has sent since the job began.",
		func(l *lines, s *Snapshot) { l.perInterface(s, func(t *report.Traffic) uint64 { return t.SentBytes }) },
	},
	{"muster_sidecar_running", gauge, "Whether a process of the sidecar runs.", func(l *lines, s *Snapshot) {
		for i := range s.Status.Sidecars {
			c := &s.Status.Sidecars[i]
			l.add(truth(c.State == report.PhaseRunning), sidecarLabels(c)...)
		}
	}},
	{"muster_sidecar_healthy", gauge, "Whether the sidecar's port takes connections.", func(l *lines, s *Snapshot) {
		for i := range s.Status.Sidecars {
			if c := &s.Status.Sidecars[i]; c.Healthy != nil {
				l.add(truth(*c.Healthy), sidecarLabels(c)...)
			}
		}
	}},
	{"muster_sidecar_restarts_total", counter, "How often its node has started the sidecar again.", func(l *lines, s *Snapshot) {
		for i := range s.Status.Sidecars {
			c := &s.Status.Sidecars[i]
			l.add(float64(c.Restarts), sidecarLabels(c)...)
		}
	}},
	{
		"muster_checkpoint_stall_duration_seconds", summary, "How long saves have kept the rank's program waiting that runs now.",
		func(l *lines, s *Snapshot) {
			for i := range s.Measured.Ranks {
				if r := &s.Measured.Ranks[i]; r.Stalls > 0 {
					labels := []string{"rank", strconv.Itoa(r.Rank), "node", nodeOf(s, r.Rank)}
					l.sample("_sum", r.StallSeconds, labels...)
					l.sample("_count", float64(r.Stalls), labels...)
				}
			}
		},
	},
	{
		"muster_checkpoint_write_duration_seconds", summary, "How long this node has taken to write its parts of checkpoints to disk.",
		func(l *lines, s *Snapshot) { l.durations(s.Measured.Written) },
	},
	{
		"muster_checkpoint_written_bytes_total", counter, "Bytes of checkpoints that this node has written to disk.",
		func(l *lines, s *Snapshot) { l.add(float64(s.Measured.WrittenBytes)) },
	},
	{"muster_store_operations_total", counter, "Requests to the store that this node serves.", func(l *lines, s *Snapshot) {
		if n := s.Measured.StoreOperations; n != nil {
			l.add(float64(*n))
		}
	}},
	{"muster_log_bytes_total", counter, "Bytes that workers here have written.", func(l *lines, s *Snapshot) {
		if n := s.Measured.LogBytes; n != nil {
			l.add(float64(*n))
		}
	}},
	{
		"muster_lost_nodes_total", counter, "Nodes whose heartbeats stood still, as this node has found as coordinator.",
		func(l *lines, s *Snapshot) {
			if n := s.Measured.LostNodes; n != nil {
				l.add(float64(*n))
			}
		},
	},
}

// stepHistogram tells how long the steps of a rank took.
func (l *lines) stepHistogram(s *Snapshot, r *report.MeasuredRank) {
	if len(r.Buckets) != len(r.StepBounds)+1 {
		return
	}
	labels := []string{"rank", strconv.Itoa(r.Rank), "node", nodeOf(s, r.Rank)}
	sum := uint64(0)
	for i, n := range r.Buckets {
		sum += n
		le := "+Inf"
		if i < len(r.StepBounds) {
			le = strconv.FormatFloat(r.StepBounds[i], 'g', -1, 64)
		}
		l.sample("_bucket", float64(sum), append(slices.Clone(labels), "le", le)...)
	}
	l.sample("_sum", r.StepSeconds, labels...)
	l.sample("_count", float64(sum), labels...)
}

func sidecarLabels(c *report.Sidecar) []string {
	return []string{"sidecar", strconv.Itoa(c.Index), "node", c.Node}
}

// perInterface adds a sample for each interface of each node of which something is known.
func (l *lines) perInterface(s *Snapshot, value func(*report.Traffic) uint64) {
	for i := range s.Status.Tasks {
		t := &s.Status.Tasks[i]
		for j := range t.Traffic {
			l.add(float64(value(&t.Traffic[j])), "node", t.Node, "interface", t.Traffic[j].Interface)
		}
	}
}

// perDevice adds a sample for each accelerator of each rank for which there is a value.
func (l *lines) perDevice(s *Snapshot, value func(*report.DeviceUse) (float64, bool)) {
	for i := range s.Status.Ranks {
		r := &s.Status.Ranks[i]
		for j := range r.Devices {
			if v, known := value(&r.Devices[j]); known {
				l.add(v, append(rankLabels(r), "device", strconv.Itoa(r.Devices[j].Index))...)
			}
		}
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// number64 is a number of a rank's progress, false where it tells no steps.
func number64(r *report.Rank, of func(*report.Progress) int64) (float64, bool) {
	if r.Progress == nil {
		return 0, false
	}
	return float64(of(r.Progress)), true
}

func optional[T int64 | float64](v *T) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return float64(*v), true
}
