package launch

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"muster/internal/accel/probe"
	"muster/launch/plan"
	"muster/launch/report"
)

// fakeDevices are three accelerators, of which the i-th is meant for local rank i.
type fakeDevices struct {
	none   bool
	err    error // with which it ends at once
	starts atomic.Int32
	runs   atomic.Bool
}

func (f *fakeDevices) Watchable() bool { return !f.none }

func (f *fakeDevices) DevicesOf(localRank, _ int) []int { return []int{localRank} }

func (f *fakeDevices) Watch(ctx context.Context, every time.Duration, told func([]plan.DeviceUse)) error {
	f.starts.Add(1)
	if f.err != nil {
		return f.err
	}
	f.runs.Store(true)
	defer f.runs.Store(false)
	for {
		time.Sleep(100 * time.Millisecond) // NVML takes its time
		told([]plan.DeviceUse{{Index: 0, Memory: new(int64(5)), Busy: new(0.5)}, {Index: 1}})
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

func deviceWatchOf(f plan.DeviceWatch, log *bytes.Buffer) *deviceWatch {
	return &deviceWatch{
		source: f, workers: func() []*worker { return nil }, procs: 2, log: zerolog.New(log), wake: make(chan struct{}, 1),
		first: make(chan struct{}),
	}
}

// TestDeviceWatch: accelerators are looked at while somebody looks at the job, and an answer waits for the first look alone.
func TestDeviceWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, closed := &fakeDevices{}, make(chan struct{})
		d := deviceWatchOf(f, &bytes.Buffer{})
		go d.run(closed)
		time.Sleep(time.Minute)
		if f.starts.Load() != 0 {
			t.Error("it was looked at without a reason")
		}
		for round := range 2 {
			began := time.Now()
			d.await(t.Context())
			if took := time.Since(began); took != 100*time.Millisecond {
				t.Errorf("round %d: the first answer has waited for %v", round, took)
			}
			ranks := []report.Rank{{PID: 7, Phase: report.PhaseRunning}, {PID: 8, LocalRank: 1, Phase: report.PhaseFailed}}
			d.tell(ranks)
			want := []report.DeviceUse{{MemoryBytes: new(int64(5)), Utilization: new(0.5)}}
			if diff := cmp.Diff(want, ranks[0].Devices); diff != "" || ranks[0].DevicesTime == nil || ranks[1].Devices != nil {
				t.Errorf("round %d: %s %v", round, diff, ranks)
			}
			before := time.Now()
			if d.await(t.Context()); time.Since(before) != 0 {
				t.Errorf("round %d: the next answer has waited", round)
			}
			time.Sleep(devicesFor + 2*time.Second)
			if f.runs.Load() || int(f.starts.Load()) != round+1 {
				t.Errorf("round %d: nobody looks, and it runs: %v, after %d starts", round, f.runs.Load(), f.starts.Load())
			}
		}
		d.want()
		time.Sleep(time.Second)
		close(closed)
		synctest.Wait()
		if f.runs.Load() {
			t.Error("it goes on when the job has ended")
		}
	})
}

// TestDeviceWatchFails: who looks is answered without what the driver does not tell; a driver that hangs is told of.
func TestDeviceWatchFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fake   *fakeDevices
		starts int32
		told   string
	}{
		"no accelerators": {&fakeDevices{none: true}, 0, ""},
		"hangs":           {&fakeDevices{err: probe.ErrHung}, devicesFailures, "warn"},
		"is left behind":  {&fakeDevices{err: errors.Join(probe.ErrHung, probe.ErrAbandoned)}, 1, "warn"},
		"no probe":        {&fakeDevices{err: probe.ErrUnavailable}, 1, "info"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				closed := make(chan struct{})
				d := deviceWatchOf(c.fake, &log)
				done := make(chan struct{})
				go func() {
					defer close(done)
					d.run(closed)
				}()
				for range 20 {
					began := time.Now()
					d.await(t.Context())
					if took := time.Since(began); took != 0 {
						t.Errorf("an answer has waited for %v", took)
					}
					time.Sleep(10 * time.Second)
				}
				close(closed)
				<-done
				if c.fake.starts.Load() != c.starts || !strings.Contains(log.String(), c.told) {
					t.Errorf("%d starts, want %d; the log says %s", c.fake.starts.Load(), c.starts, &log)
				}
			})
		})
	}
}

// TestDeviceUseByProcesses: where the driver tells whose memory it is, that counts and not what is meant for a rank.
func TestDeviceUseByProcesses(t *testing.T) {
	t.Parallel()
	d := deviceWatchOf(&fakeDevices{}, &bytes.Buffer{})
	d.set([]plan.DeviceUse{
		{Index: 0, Memory: new(int64(10)), Processes: map[int]int64{70: 3, 71: 4, 99: 2}},
		{Index: 1, Memory: new(int64(20)), Processes: map[int]int64{71: 5}},
		{Index: 2, Processes: map[int]int64{72: 0}},
	}, map[int]int{70: 7, 71: 7, 72: 9})
	for _, c := range []struct {
		pid, local int
		want       []report.DeviceUse
	}{
		{7, 2, []report.DeviceUse{
			{Index: 0, MemoryBytes: new(int64(10)), OwnMemoryBytes: new(int64(7))},
			{Index: 1, MemoryBytes: new(int64(20)), OwnMemoryBytes: new(int64(5))},
		}},
		{8, 1, []report.DeviceUse{{Index: 1, MemoryBytes: new(int64(20))}}},
		{9, 0, []report.DeviceUse{{Index: 2}}}, // it has some there, and the driver does not tell how much
		{6, 5, nil},
	} {
		d.mu.Lock()
		got := d.useOfLocked(c.pid, c.local)
		d.mu.Unlock()
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("process %d (-want +got):\n%s", c.pid, diff)
		}
	}
}
