package steer

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
	"muster/test/drive"
)

// stepping is a training that tells its steps, 50 ms each, and goes on where the one before it has saved one: each
// fifth. Rank 0 fails after the steps that FAIL names, once each. How many steps a rank has told since it began lies
// beside that when it has done all; then it waits for the file that HOLD names.
const stepping = `
import os, sys, time
import muster
rank, marks = int(os.environ["RANK"]), os.environ["MARKS"]
at = os.path.join(marks, "saved")
begin = int(open(at).read()) if os.path.exists(at) else 0
time.sleep(float(os.environ.get("IMPORT", "0")))
for n in range(begin + 1, int(os.environ.get("STEPS", "100000")) + 1):
    time.sleep(0.05)
    muster.progress.step(n, total=100000, loss=1/n, bad=float("nan"))
    if rank == 0 and n % 5 == 0:
        open(at + "~", "w").write(str(n))
        os.rename(at + "~", at)
    mark = os.path.join(marks, "failed %d" % n)
    if rank == 0 and str(n) in os.environ.get("FAIL", "").split() and not os.path.exists(mark):
        open(mark, "w")
        sys.exit(7)
told = os.path.join(marks, "told %d %s" % (rank, os.environ["TORCHELASTIC_RESTART_COUNT"]))
open(told + "~", "w").write(str(n - begin))
os.rename(told + "~", told)
while not os.path.exists(os.environ.get("HOLD", "/")):
    time.sleep(0.1)
`

// untilSteps waits until all of n ranks have told of so many steps.
func untilSteps(t *testing.T, runtimeDir string, n int, step int64) control.Answer {
	t.Helper()
	var a control.Answer
	testutil.Eventually(t, time.Minute, fmt.Sprintf("%d ranks are at step %d", n, step), func() bool {
		a, _ = drive.StatusOf(t, runtimeDir)
		there := 0
		for _, r := range a.Ranks {
			if p := r.Progress; p != nil && p.Step >= step && p.StepSeconds != nil {
				there++
			}
		}
		return there == n && a.Phase == report.PhaseRunning
	})
	return a
}

// TestSeeSteps sees how far workers have come, anew after a restart, and nothing where they tell nothing.
func TestSeeSteps(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte(stepping), 0o600); err != nil {
		t.Fatal(err)
	}
	j := drive.Start(t, []string{"MARKS=" + t.TempDir()}, "run", "-n", "2", "--ckpt", "on", "--", "python3", script)
	a := untilSteps(t, j.RuntimeDir, 2, 20)
	for _, r := range a.Ranks {
		p := r.Progress
		if p.Total != 100000 || *p.StepSeconds < 0.05 || *p.StepSeconds > 5 || p.Section != "" || p.Values["loss"] != 1/float64(p.Step) ||
			len(p.Values) != 1 || len(p.NotFinite) != 1 || time.Since(p.Time) > time.Minute {
			t.Errorf("%+v", p)
		}
	}
	drive.Beside(t, j.RuntimeDir, "status").Expect(t, 0, "STEP TIME\n", "/100000  ")
	drive.Beside(t, j.RuntimeDir, "status", "-o", "wide").Expect(t, 0, "VALUES", "bad=nan", "loss=0.0")
	drive.Beside(t, j.RuntimeDir, "restart").Expect(t, 0)
	testutil.Eventually(t, time.Minute, "the workers begin anew", func() bool {
		b, _ := drive.StatusOf(t, j.RuntimeDir)
		return len(b.Ranks) == 2 && b.Generation == 1 &&
			(b.Ranks[0].Progress == nil || b.Ranks[0].Progress.StepSeconds == nil || b.Ranks[0].PID != a.Ranks[0].PID)
	})
	untilSteps(t, j.RuntimeDir, 2, a.Ranks[0].Progress.Step)
	drive.Beside(t, j.RuntimeDir, "pause").Expect(t, 0)
	testutil.Eventually(t, time.Minute, "the job has paused for a second", func() bool {
		b, _ := drive.StatusOf(t, j.RuntimeDir)
		return b.Phase == report.PhasePaused && b.Accounting.Seconds["pause"] > 1
	})
	drive.Beside(t, j.RuntimeDir, "resume").Expect(t, 0)
	b := untilSteps(t, j.RuntimeDir, 2, a.Ranks[0].Progress.Step).Accounting
	if b.Seconds["pause"] < 1 || b.Seconds["good"] < 1 || b.Seconds["import"] < 0.1 || b.Restarts[job.ReasonRequested] != 1 {
		t.Errorf("%+v", b)
	}
	drive.Beside(t, j.RuntimeDir, "stop").Expect(t, 0)
	j.End().Expect(t, 143)
	j.NothingLeft(j.RuntimeDir)
}

// TestSeeStepsOfOtherNodes sees on each of two nodes how far the workers of both have come.
func TestSeeStepsOfOtherNodes(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte(stepping), 0o600); err != nil {
		t.Fatal(err)
	}
	flags, _ := drive.StaticFlags(t, 2)
	m := drive.NewMeet(t, "exec python3 "+script, append(flags, "--nproc-per-node=2")...)
	m.Env, m.Native = []string{"MARKS=" + t.TempDir(), "MUSTER_CKPT=on"}, true
	one, zero := m.Start(1, "--node-rank=1"), m.Start(0, "--node-rank=0")
	for _, j := range []*drive.Job{one, zero} {
		a := untilSteps(t, j.RuntimeDir, 4, 10)
		far := a.Ranks[3*(1-a.GroupRank)].Progress // of the other node
		testutil.Eventually(t, time.Minute, "what is known of the other node goes on", func() bool {
			b, _ := drive.StatusOf(t, j.RuntimeDir)
			return len(b.Ranks) == 4 && b.Ranks[3*(1-b.GroupRank)].Progress.Step >= far.Step+20
		})
	}
	drive.Beside(t, one.RuntimeDir, "stop").Expect(t, 0)
	m.Ends(one, 143)
	m.Ends(zero, 143)
}

// TestTimeAddsUp runs a training with three failures, whose time adds up to what passed here, with each cause as long
// as the program says. Its metrics are asked for when all its steps are done, so that their number is known.
func TestTimeAddsUp(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte(stepping), 0o600); err != nil {
		t.Fatal(err)
	}
	file, marks := filepath.Join(t.TempDir(), "status"), t.TempDir()
	hold := filepath.Join(marks, "go on")
	j := drive.Start(t, []string{"MARKS=" + marks, "STEPS=200", "FAIL=38 84 139", "IMPORT=0.5", "HOLD=" + hold, drive.EndAtOnce},
		"run", "-n", "2", "--ckpt", "on",
		"--max-restarts", "3", "--restart-delay", "0", "--status-file", file, "--summary", file+".end", "--", "python3", script)
	var told [2]uint64
	testutil.Eventually(t, drive.JobLimit, "both ranks have done all their steps", func() bool {
		for rank := range told {
			text, _ := os.ReadFile(filepath.Join(marks, fmt.Sprintf("told %d 3", rank)))
			told[rank], _ = strconv.ParseUint(string(text), 10, 64)
		}
		return told[0] > 0 && told[1] > 0
	})
	last := drive.Beside(t, j.RuntimeDir, "metrics")
	last.Expect(t, 0)
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := j.End()
	got.Expect(t, 0)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d report.Status
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	a := d.Accounting
	if a == nil {
		t.Fatalf("%s", text)
	}
	sum := 0.
	for _, s := range a.Seconds {
		sum += s
	}
	// The process of muster lives a little longer than the job: it starts, and cleans up, on a busy machine for seconds.
	if wall := got.Elapsed.Seconds(); sum < 0.99*a.WallSeconds || sum > 1.01*a.WallSeconds || a.WallSeconds > wall ||
		a.WallSeconds < 0.99*wall-5 {
		t.Errorf("%v s by cause, %v s in all, %v s passed", sum, a.WallSeconds, wall)
	}
	// 200 steps of 50 ms; steps 36 to 38, 81 to 84 and 136 to 139 are done twice, but for the first of each, which ends
	// an import; four imports of 0.5 s and a step.
	s := a.Seconds
	slack := max(0, got.Elapsed.Seconds()-12) // of a busy machine: all that the program does not ask for may go to one cause
	for cause, least := range map[string]float64{"good": 9.3, "repeated": 0.35, "import": 2.2} {
		if s[cause] < least || s[cause] > 3*least+slack {
			t.Errorf("%s: %v s, at least %v s were to be", cause, s[cause], least)
		}
	}
	if a.Restarts["WorkerFailed"] != 3 || len(a.Restarts) != 1 || s["restart"] <= 0 || s["pause"] != 0 || s["checkpoint"] != 0 {
		t.Errorf("%+v", a)
	}
	t.Logf("%+v, %v", a, got.Elapsed)

	var end report.Summary
	if text, err = os.ReadFile(file + ".end"); err != nil || json.Unmarshal(text, &end) != nil || end.Phase != report.PhaseSucceeded ||
		end.RestartCount != 3 || len(end.Rounds) != 1 || end.Rounds[0].WorldSize != 2 || len(end.Slowest) != 2 ||
		end.Accounting.Seconds["good"] != s["good"] || end.Slowest[0].Step != 200 || end.Slowest[0].StepSeconds < 0.05 {
		t.Errorf("%v\n%s", err, text)
	}

	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(last.Stdout))
	if err != nil {
		t.Fatalf("%v\n%s", err, last.Stdout)
	}
	sum = 0
	for _, m := range families["muster_time_seconds_total"].GetMetric() {
		sum += m.GetCounter().GetValue()
	}
	wall := families["muster_wall_seconds_total"].GetMetric()[0].GetCounter().GetValue()
	if sum < 0.99*wall || sum > 1.01*wall || wall < 5 {
		t.Errorf("%v s by cause, %v s in all", sum, wall)
	}
	if m := families["muster_restarts_total"].GetMetric(); len(m) != 1 || m[0].GetCounter().GetValue() != 3 {
		t.Errorf("%v", m)
	}
	steps := families["muster_step_duration_seconds"].GetMetric()
	if len(steps) != len(told) || told[0] != 200-135 {
		t.Fatalf("rank 0 has told %d steps: %v", told[0], steps)
	}
	for rank, m := range steps { // the first step that a program tells has no beginning, and no duration
		h := m.GetHistogram()
		if h.GetSampleCount() != told[rank]-1 || h.GetSampleSum() < 0.05*float64(told[rank]-1) {
			t.Errorf("rank %d has told %d steps: %v", rank, told[rank], m)
		}
	}
	for _, name := range []string{
		"muster_store_operations_total", "muster_log_bytes_total", "muster_rendezvous_duration_seconds",
		"muster_value",
	} {
		if len(families[name].GetMetric()) == 0 {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestTrace tells a collector of a job with a restart, and Kubeflow's Trainer how far it has come.
func TestTrace(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	names := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		req := &collector.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, req)
		}
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range req.ResourceSpans {
			for _, s := range of.ScopeSpans[0].Spans {
				names[s.Name]++
				if s.EndTimeUnixNano < s.StartTimeUnixNano || (s.Name == "job") != (len(s.ParentSpanId) == 0) {
					t.Errorf("%v", s)
				}
			}
		}
	}))
	defer server.Close()
	mark := filepath.Join(t.TempDir(), "mark")
	got := drive.Run(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "KUBEFLOW_TRAINER_STATUS_URL=https://127.0.0.1:1/status"},
		"run", "-n", "1",
		"--max-restarts", "1", "--", "sh", "-c", "[ -e "+mark+" ] || { touch "+mark+"; exit 3; }")
	got.Expect(t, 0)
	want := map[string]int{"job": 1, "start": 1, "rendezvous": 2, "round": 2, "spawn": 2, "restart": 1, "stop": 1}
	delete(names, "stop")
	delete(want, "stop") // of a job whose workers have all ended there may be nothing to stop
	if !maps.Equal(names, want) {
		t.Errorf("%v, want %v\n%s", names, want, got.Stderr)
	}
}

// TestSectionTakesTooLong hears of a section that takes longer than its timeout, once.
func TestSectionTakesTooLong(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte("import muster, time\nwith muster.progress.section('eval', timeout=0.1): time.sleep(12)\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	got := drive.Run(t, nil, "run", "-n", "1", "--ckpt", "on", "--", "python3", script)
	got.Expect(t, 0, `"section":"eval"`)
	if n := strings.Count(got.Stderr, "takes longer than it says"); n != 1 {
		t.Errorf("%d times:\n%s", n, got.Stderr)
	}
}
