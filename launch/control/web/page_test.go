package web

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/job"
	"muster/launch/report"
)

// eventful gives a job a past: a check, checkpoints, two restarts, one of them because a worker has failed.
func eventful(w *world) {
	at := time.Now().Add(-50 * time.Minute)
	phase := func(after time.Duration, p report.Phase, round, restarts int, reason job.Reason, message string) {
		w.events.Add(control.Event{
			Type: control.PhaseChanged, Time: at.Add(after), RunID: "train-7", Node: "node-0", Phase: p, Generation: round,
			RestartCount: restarts,
			Reason:       reason, Message: message,
		})
	}
	saved := func(from, to int) {
		for i := from; i < to; i++ {
			step := int64(1500 * (i + 1))
			w.events.Add(control.Event{
				Type: control.CheckpointCommitted, Time: at.Add(time.Duration(i*5+4) * time.Minute), RunID: "train-7", Node: "node-0",
				Generation: i / 3, Step: &step,
			})
		}
	}
	phase(0, report.PhaseCreating, 0, 0, "", "")
	phase(4*time.Second, report.PhaseRunning, 0, 0, "", "")
	code := 1
	rank := 1
	w.events.Add(control.Event{
		Type: control.WorkerExited, Time: at.Add(12 * time.Minute), RunID: "train-7", Node: "node-0", Rank: &rank, PID: 3981,
		ExitCode: &code,
	})
	phase(12*time.Minute, report.PhaseRestarting, 0, 1, job.ReasonRequested, "rank 1 on node-0 ended with status 1")
	saved(0, 2)
	phase(13*time.Minute, report.PhaseRunning, 1, 1, "", "")
	saved(2, 6)
	phase(31*time.Minute, report.PhaseRestarting, 1, 2, job.ReasonRequested, "somebody has asked for it")
	phase(33*time.Minute, report.PhaseRunning, 2, 2, "", "")
	saved(6, 9)
	takes, not := true, false
	w.status.Sidecars = []report.Sidecar{
		{
			Node: "node-0", Command: "tensorboard --logdir runs --port 6006", State: report.PhaseRunning, PID: 3702, Port: 6006,
			Healthy: &takes,
		},
		{
			Node: "node-0", Index: 1, Command: "python3 watch.py", State: report.PhaseRunning, PID: 3990, Restarts: 2, Port: 8080,
			Healthy: &not, LastExit: &report.RankExit{PID: 3703, ExitCode: 1, Time: at.Add(13 * time.Minute).UTC()},
		},
	}
	w.status.RootCause = &report.Cause{
		Host: "node-0", Rank: 1, LocalRank: 1, PID: 3981, Time: at.Add(12 * time.Minute).UTC(), ExitCode: 1,
		Cause: "The worker raised an error of Python.", LastLines: []string{
			"Traceback (most recent call last):", `  File "train.py", line 212, in step`, "    loss.backward()",
			"RuntimeError: CUDA error: an illegal memory access was encountered",
		},
	}
}

// remember gives the server a history of an hour.
func remember(s *Server, ranks float32) {
	h := &s.picture.history
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.samples = nil, nil
	for i := range 300 {
		age := 3000 - i*10
		wave := float32(i%17) / 17
		step := sample{
			cpu: ranks * (0.85 + wave*0.1), memory: ranks * 2.5e9 * (1 - 0.2/float32(i+1)), step: float32(i) * 41,
			stepMedian: 0.21 + wave*0.01,
			stepWorst:  0.24 + wave*0.06, running: ranks,
		}
		if i > 72 && i < 78 || i > 186 && i < 198 {
			step.cpu, step.memory, step.running = ranks*0.1, ranks*1e8, 0
		}
		h.at, h.samples = append(h.at, time.Now().Unix()-int64(age)), append(h.samples, step)
	}
}

// TestPictures draws the page with 2, 64 and 4,096 ranks in a real browser, and leaves pictures of it under build/. The
// page complains of nothing, and shows what there is. Half of the pictures are drawn in a soak test only.
func TestPictures(t *testing.T) {
	testutil.Long(t)
	for _, c := range []struct {
		ranks, width, height int
		dark                 bool
		name                 string
		soak                 bool
	}{
		{2, 1280, 1500, false, "2", false},
		{64, 1280, 1500, false, "64", false},
		{4096, 1280, 1600, false, "4096", true},
		{64, 390, 2600, false, "64-phone", true},
		{4096, 390, 2600, true, "4096-phone-dark", false},
		{64, 1280, 1500, true, "64-dark", true},
	} {
		if c.soak && !testutil.Soak() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.ranks)
			eventful(w)
			var lines strings.Builder
			for i := range 40 {
				fmt.Fprintf(&lines, "step %d  loss %.3f  lr 3.0e-04  212 ms\n", 11990+i, 2.31-float64(i)/100)
			}
			w.writes(t, 1, lines.String())
			if c.ranks > 2 {
				slow := 0.52
				w.status.Ranks[21].Progress.StepSeconds = &slow
				w.status.Ranks[37].Phase = report.PhaseFailed
				w.status.Ranks[37].LastExit = &report.RankExit{PID: 4037, ExitCode: 137, Signal: "SIGKILL", Time: time.Now().UTC()}
			}
			s := serve(t, Config{Served: w, Muster: control.Muster{Role: control.Agent}, Token: []byte("0123456789abcdef0123")})
			remember(s, float32(c.ranks))
			b := openBrowser(t, c.width, c.height)
			b.open("about:blank")
			metrics := map[string]any{"width": c.width, "height": c.height, "deviceScaleFactor": 1, "mobile": c.width < 500}
			b.call("Emulation.setDeviceMetricsOverride", metrics, nil)
			scheme := map[bool]string{false: "light", true: "dark"}[c.dark]
			b.call("Emulation.setEmulatedMedia",
				map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
			b.open(s.URL() + "?token=0123456789abcdef0123")
			b.until(`performance.getEntriesByName("drawn").length > 2`)
			var running string
			b.eval(`document.querySelector("#facts dd").textContent`, &running)
			if want := fmt.Sprintf("of %d run", c.ranks); !strings.Contains(running, want) {
				t.Errorf("workers: %q", running)
			}
			var beside string
			b.eval(`document.querySelector("#sidecars").innerText`, &beside)
			for _, want := range []string{
				"Sidecar 0 on node-0 (tensorboard --logdir runs --port 6006): Running · process 3702 · port 6006 takes connections · 0 " +
					"restarts",
				"port 8080 takes no connections · 2 restarts · last exit status 1",
			} {
				if !strings.Contains(beside, want) {
					t.Errorf("sidecars: %q, want %q", beside, want)
				}
			}
			b.eval(`(() => { document.querySelector("#rank").value = 1; `+
				`document.querySelector("#rank").dispatchEvent(new Event("change")); return true })()`, new(bool))
			b.until(`document.querySelector("#logs").textContent.includes("step 12029")`)
			b.until(`!document.querySelector("#steer").hidden`)
			var overflow float64
			b.eval(`document.documentElement.scrollWidth - innerWidth`, &overflow)
			if overflow > 0 {
				t.Errorf("the page is %v pixels wider than the window", overflow)
			}
			b.picture(c.name)
			b.clean()
		})
	}
}

// TestFirstPaint: 4,096 ranks are drawn within a second, and ten times a second after that.
func TestFirstPaint(t *testing.T) {
	testutil.Long(t)
	w := newWorld(4096)
	s := serve(t, Config{Served: w, Muster: control.Muster{Role: control.Agent}, Every: 100 * time.Millisecond})
	b := openBrowser(t, 1280, 1500)
	b.open(s.URL())
	b.until(`performance.getEntriesByName("drawn").length > 0`)
	var first float64
	b.eval(`performance.getEntriesByName("drawn")[0].startTime`, &first)
	b.until(`performance.getEntriesByName("drawn").length > 12`)
	var rate float64
	b.eval(`(() => { const d = performance.getEntriesByName("drawn"); `+
		`return (d.length - 1) / (d[d.length - 1].startTime - d[0].startTime) * 1000 })()`, &rate)
	t.Logf("first picture after %.0f ms, then %.1f a second", first, rate)
	b.clean()
}
