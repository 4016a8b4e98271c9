package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/launch/report"
)

// full is a job of which everything is known.
func full() Snapshot {
	began, median, cpu, resident := time.UnixMilli(1767225600123), 0.25, 12.5, int64(1<<30)
	operations, written, lost := uint64(77), int64(4096), int64(1)
	return Snapshot{
		Status: report.Status{
			RunID: "a\\b\n\"c\"", Name: "train \xff.py", Phase: report.PhaseRunning, StartTime: &began, Nodes: 2, WorldSize: 4,
			Generation:   3,
			Replacements: 1, Counts: report.Counts{Running: 2},
			Accounting: &report.Accounting{
				WallSeconds: 100, Goodput: 0.5, Seconds: map[string]float64{"good": 50, "import": 50},
				Restarts: map[job.Reason]int{job.ReasonRequested: 2, "WorkerFailed": 3},
			},
			Tasks:    []report.Task{{Node: "n1", Traffic: []report.Traffic{{Interface: "eth0", ReceivedBytes: 7, SentBytes: 1 << 40}}}},
			Sidecars: []report.Sidecar{{Node: "n1", Index: 1, State: report.PhaseRunning, Restarts: 2, Healthy: new(false)}},
			Ranks: []report.Rank{
				{
					Node: "n1", Rank: 0, Phase: report.PhaseRunning, Restarts: 1, Slowness: new(1.5), CPUSeconds: &cpu,
					ResidentBytes: &resident,
					LastOutput:    &began, Devices: []report.DeviceUse{{
						Index: 3, MemoryBytes: new(int64(7)), MemoryTotalBytes: new(int64(9)), OwnMemoryBytes: new(int64(5)),
						Utilization: new(0.5),
					}},
					Progress: &report.Progress{
						Step: 7, Total: 100, StepSeconds: &median, Values: map[string]float64{"loss": 2.5, "lr\n\"": 1e-9},
						NotFinite: []string{"norm"}, Time: began,
					},
				},
				{Node: "n1", Rank: 1, Phase: report.PhaseFailed},
			},
		},
		Measured: report.Measured{
			Ranks: []report.MeasuredRank{
				{Rank: 0, StepBounds: []float64{0.1, 1}, Buckets: []uint64{1, 2, 4}, StepSeconds: 9.5, Stalls: 2, StallSeconds: 0.5},
				{Rank: 1, StepBounds: []float64{0.1, 1}, Buckets: []uint64{1}},
			},
			Rendezvous: report.Durations{Count: 4, Seconds: 8}, Checks: report.Durations{Count: 1, Seconds: 2},
			Written: report.Durations{Count: 3, Seconds: 6}, WrittenBytes: 1 << 40, StoreOperations: &operations, LogBytes: &written,
			LostNodes: &lost,
		},
	}
}

// read is what Prometheus' own parser makes of a snapshot.
func read(t *testing.T, text io.Reader) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func labels(m *dto.Metric) string {
	var list []string
	for _, l := range m.GetLabel() {
		list = append(list, l.GetName()+"="+l.GetValue())
	}
	return strings.Join(list, ",")
}

// Prometheus' own parser reads what is written, and each metric is there with its kind.
func TestWrite(t *testing.T) {
	var b bytes.Buffer
	if err := write(&b, full()); err != nil {
		t.Fatal(err)
	}
	got := read(t, bytes.NewReader(b.Bytes()))
	for _, f := range Families() {
		m := got[f.Name]
		if m == nil {
			t.Errorf("%s is missing", f.Name)
			continue
		}
		if strings.ToLower(m.GetType().String()) != f.Kind || m.GetHelp() != f.Help || !strings.HasSuffix(f.Help, ".") {
			t.Errorf("%s: %v, %q", f.Name, m.GetType(), m.GetHelp())
		}
		if (f.Kind == counter) != strings.HasSuffix(f.Name, "_total") {
			t.Errorf("%s is a %s", f.Name, f.Kind)
		}
	}
	if len(got) != len(Families()) {
		t.Errorf("%d of %d", len(got), len(Families()))
	}
	if l := labels(got["muster_job_info"].Metric[0]); l != "run_id=a\\b\n\"c\",name=train \uFFFD.py" {
		t.Errorf("%q", l)
	}
	values := map[string]float64{}
	for _, m := range got["muster_value"].Metric {
		values[labels(m)] = m.GetGauge().GetValue()
	}
	if values["rank=0,node=n1,name=loss"] != 2.5 || values["rank=0,node=n1,name=lr\n\""] != 1e-9 ||
		!math.IsNaN(values["rank=0,node=n1,name=norm"]) || len(values) != 3 {
		t.Errorf("%v", values)
	}
	steps := got["muster_step_duration_seconds"].Metric
	h := steps[0].GetHistogram()
	if len(steps) != 1 || h.GetSampleCount() != 7 || h.GetSampleSum() != 9.5 || len(h.Bucket) != 3 ||
		h.Bucket[1].GetCumulativeCount() != 3 ||
		h.Bucket[1].GetUpperBound() != 1 || !math.IsInf(h.Bucket[2].GetUpperBound(), 1) {
		t.Errorf("%v", steps)
	}
	if s := got["muster_checkpoint_stall_duration_seconds"].Metric; len(s) != 1 || s[0].GetSummary().GetSampleCount() != 2 ||
		s[0].GetSummary().GetSampleSum() != 0.5 {
		t.Errorf("%v", s)
	}
	running := 0.
	for _, m := range got["muster_job_phase"].Metric {
		if running += m.GetGauge().GetValue(); m.GetGauge().GetValue() == 1 && labels(m) != "phase=Running" {
			t.Errorf("%v", m)
		}
	}
	if running != 1 || got["muster_checkpoint_written_bytes_total"].Metric[0].GetCounter().GetValue() != 1<<40 ||
		got["muster_job_start_time_seconds"].Metric[0].GetGauge().GetValue() != 1767225600.123 {
		t.Errorf("%v", got)
	}

	// What is not known is not there.
	b.Reset()
	if err := write(&b, Snapshot{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"muster_goodput_ratio", "muster_step", "muster_store_operations_total", "muster_job_start_time_seconds"} {
		if m := read(t, bytes.NewReader(b.Bytes())); m[name] != nil || m["muster_nodes"] == nil {
			t.Errorf("%s: %v", name, m[name])
		}
	}
}

// The handler says what it has written, and why it has written nothing.
func TestHandler(t *testing.T) {
	var err error
	h := Handler(func(context.Context) (Snapshot, error) { return full(), err })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != string(expfmt.NewFormat(expfmt.TypeTextPlain)) {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	read(t, w.Body)
	for why, code := range map[error]int{
		errors.New("broken"): http.StatusInternalServerError,
		errhint.Code(errors.New("later"), errhint.TryAgain): http.StatusServiceUnavailable,
	} {
		err, w = why, httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != code || w.Body.String() != why.Error()+"\n" {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	s := full()
	for i := range 4096 {
		r := s.Status.Ranks[0]
		r.Rank = i
		s.Status.Ranks = append(s.Status.Ranks, r)
	}
	for b.Loop() {
		if err := write(io.Discard, s); err != nil {
			b.Fatal(err)
		}
	}
}
