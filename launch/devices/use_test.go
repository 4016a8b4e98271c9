package devices_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/accel/acceltest"
	"muster/internal/accel/nvline"
	"muster/launch/devices"
	"muster/launch/job"
	"muster/launch/plan"
)

// TestUse: what NVML tells is told by the numbers that the node's devices have, of those alone that are here.
func TestUse(t *testing.T) {
	t.Parallel()
	fake := acceltest.FakeOf(t, "nvidia", "")
	none := func(string) (string, bool) { return "", false }
	inv := fake.Detect(accel.Real(), none)
	n := devices.New(devices.Config{
		Job: &job.Job{}, Near: fake.Root(accel.Real()), Lookup: none, Log: zerolog.Nop(),
		Detect: func() accel.Inventory { return inv },
		WatchUse: func(_ context.Context, gpus int, _ time.Duration, told func([]nvline.Use)) error {
			if gpus != len(inv.Devices) {
				t.Errorf("%d GPUs, and there are %d", gpus, len(inv.Devices))
			}
			told([]nvline.Use{
				{Index: 0, UUID: "GPU-of-another"},
				{
					Index: 1, BDF: inv.Devices[2].BusID, MemUsed: new(uint64(7)), MemTotal: new(uint64(9)), Busy: new(50),
					Processes: []nvline.Process{{PID: 4, Mem: new(uint64(3))}, {PID: 5}},
				},
				{Index: 2, UUID: inv.Devices[1].UUID, RC: nvline.GPULost},
				{Index: 3, UUID: inv.Devices[3].UUID},
			})
			return nil
		},
	})
	if !n.Watchable() {
		t.Fatal("four GPUs cannot be watched")
	}
	var got []plan.DeviceUse
	if err := n.Watch(t.Context(), time.Second, func(use []plan.DeviceUse) { got = use }); err != nil {
		t.Fatal(err)
	}
	want := []plan.DeviceUse{
		{Index: 2, Memory: new(int64(7)), MemoryTotal: new(int64(9)), Busy: new(0.5), Processes: map[int]int64{4: 3, 5: 0}},
		{Index: 3},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other, _ := on(t, "amd", &job.Job{})
	if other.Watchable() {
		t.Error("nobody tells what AMD's are used for")
	}
}

// TestDevicesOf: a rank has the device that is its own, or the one of its local rank among the visible ones.
func TestDevicesOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job     job.Job
		environ []string
		workers int
		want    [][]int // by local rank
	}{
		"all visible":      {job.Job{}, nil, 2, [][]int{{0}, {1}}},
		"some visible":     {job.Job{}, []string{"CUDA_VISIBLE_DEVICES=3,1"}, 2, [][]int{{3}, {1}}},
		"more than there":  {job.Job{}, []string{"CUDA_VISIBLE_DEVICES=3"}, 2, [][]int{nil, nil}},
		"one of their own": {job.Job{Isolate: true}, []string{"CUDA_VISIBLE_DEVICES=2,0"}, 2, [][]int{{2}, {0}}},
	} {
		n, _ := on(t, "nvidia", &c.job, c.environ...)
		if _, err := n.Assign("2", c.workers); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for local, want := range c.want {
			if got := n.DevicesOf(local, c.workers); !slices.Equal(got, want) {
				t.Errorf("%s: local rank %d has %v, want %v", name, local, got, want)
			}
		}
	}
}
