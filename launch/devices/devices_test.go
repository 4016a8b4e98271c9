package devices_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"muster/internal/accel"
	"muster/internal/accel/acceltest"
	"muster/internal/errhint"
	"muster/launch/devices"
	"muster/launch/job"
	"muster/launch/plan"
)

// on returns the devices of a node with four of a vendor, for a job, and how often they were looked at.
func on(t *testing.T, vendor string, j *job.Job, environ ...string) (*devices.Devices, *int) {
	t.Helper()
	fake := acceltest.FakeOf(t, vendor, "cpus: {sockets: 2, cores_per_node: 8, threads: 1}")
	lookup := fake.Lookup(func(name string) (string, bool) {
		for _, kv := range environ {
			if value, is := strings.CutPrefix(kv, name+"="); is {
				return value, true
			}
		}
		return "", false
	})
	looked := new(int)
	return devices.New(devices.Config{
		Job: j, Near: fake.Root(accel.Real()), Lookup: lookup, Log: zerolog.Nop(),
		Detect: func() accel.Inventory {
			*looked++
			return fake.Detect(accel.Real(), lookup)
		},
	}), looked
}

// TestCount: workers are counted by what they would see, without accelerators by what the process may use; a list of slots
// counts all devices but those that it leaves out. Nothing is looked at twice.
func TestCount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules   job.DeviceRules
		word    string
		environ []string
		want    int
		why     string // contained in it
	}{
		"all":            {job.DeviceRules{}, "gpu", nil, 4, "4 of 4"},
		"masked":         {job.DeviceRules{}, "gpu", []string{"CUDA_VISIBLE_DEVICES=2,0"}, 2, "2 of 4"},
		"listed":         {job.DeviceRules{List: true}, "auto", nil, 4, "4 of 4"},
		"one left out":   {job.DeviceRules{List: true, Except: []int{1}}, "auto", nil, 3, "3 of 4 devices"},
		"two NUMA nodes": {job.DeviceRules{List: true}, "numa", nil, 2, "NUMA nodes"},
		"one of two":     {job.DeviceRules{List: true, Except: []int{0}}, "numa", nil, 1, "NUMA nodes with CPUs less 1"},
	} {
		n, looked := on(t, "nvidia", &job.Job{Devices: c.rules}, c.environ...)
		if *looked != 0 {
			t.Errorf("%s: devices were looked at before anybody asked", name)
		}
		got, why, err := n.Count(c.word)
		if err != nil || got != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: %d (%s), %v; want %d (%s)", name, got, why, err, c.want, c.why)
		}
		if visible := n.Visible(); visible != 4 && c.environ == nil || *looked != 1 {
			t.Errorf("%s: %d visible, looked at %d times", name, visible, *looked)
		}
	}
	for _, c := range []struct {
		except []int
		word   string
		says   string
	}{{[]int{0, 1, 2, 3}, "auto", "no device is left of 4"}, {[]int{0, 1}, "numa", "nothing is left: "}} {
		n, _ := on(t, "nvidia", &job.Job{Devices: job.DeviceRules{List: true, Except: c.except}})
		if _, _, err := n.Count(c.word); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v left out: %v", c.except, err)
		}
	}
}

// TestListed: the variable that lists devices is the vendor's, unless the job names one. What was inherited stays where
// the job lists nothing of its own.
func TestListed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		vendor  string
		rules   job.DeviceRules
		environ []string
		want    string // empty: none
	}{
		"no list":   {"nvidia", job.DeviceRules{}, nil, ""},
		"one each":  {"nvidia", job.DeviceRules{List: true}, nil, "CUDA_VISIBLE_DEVICES=0,1"},
		"inherited": {"nvidia", job.DeviceRules{List: true}, []string{"CUDA_VISIBLE_DEVICES=3,2"}, ""},
		"asked for": {
			"nvidia",
			job.DeviceRules{List: true, Only: []int{3, 1}},
			[]string{"CUDA_VISIBLE_DEVICES=0"},
			"CUDA_VISIBLE_DEVICES=3,1",
		},
		"left out":         {"nvidia", job.DeviceRules{List: true, Except: []int{0, 2}}, nil, "CUDA_VISIBLE_DEVICES=1,3"},
		"NPUs":             {"ascend", job.DeviceRules{List: true}, nil, "ASCEND_RT_VISIBLE_DEVICES=0,1"},
		"another variable": {"ascend", job.DeviceRules{List: true, Variable: "X"}, nil, "X=0,1"},
	} {
		n, _ := on(t, c.vendor, &job.Job{Devices: c.rules}, c.environ...)
		got := ""
		if v, ok := n.Listed(2); ok {
			got = v.Name + "=" + v.Value
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAssign: with --isolate-devices each worker sees devices of its own, and is bound near them.
func TestAssign(t *testing.T) {
	t.Parallel()
	j := &job.Job{Isolate: true, Bind: job.BindRules{Mode: "node"}}
	n, _ := on(t, "nvidia", j)
	vars, err := n.Assign("4", 4)
	if err != nil {
		t.Fatal(err)
	}
	var masks []string
	for _, own := range vars.Own {
		for _, v := range own {
			if v.Name == "CUDA_VISIBLE_DEVICES" {
				masks = append(masks, v.Value)
			}
			if !strings.HasPrefix(v.Source.Name, "--isolate-devices: ") {
				t.Errorf("%s is said to be from %v", v.Name, v.Source)
			}
		}
	}
	if len(masks) != 4 || len(slices.Compact(slices.Sorted(slices.Values(masks)))) != 4 {
		t.Errorf("masks %q of %+v", masks, vars)
	}
	cpus, err := n.Bind("node", 4)
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) != 4 || !slices.Equal(cpus[0], cpus[1]) || !slices.Equal(cpus[2], cpus[3]) || slices.Equal(cpus[0], cpus[2]) {
		t.Errorf("devices near nodes 0, 0, 1 and 1 are bound to %v", cpus)
	}
	shared, _ := on(t, "nvidia", &job.Job{})
	if vars, err := shared.Assign("4", 4); err != nil || cmp.Diff(plan.DeviceVars{}, vars) != "" {
		t.Errorf("without it: %+v, %v", vars, err)
	}
	if _, err := n.Assign("5", 5); err == nil || !strings.Contains(err.Error(), "cannot use --isolate-devices") {
		t.Errorf("five workers of four devices: %v", err)
	}
}

// TestBindStandIns: where CPUs of this machine stand for those of a fake, workers are bound to these, or not at all.
func TestBindStandIns(t *testing.T) {
	t.Parallel()
	fake := acceltest.FakeOf(t, "nvidia", "cpus: {sockets: 2, cores_per_node: 8, threads: 1}")
	none := func(string) (string, bool) { return "", false }
	var failure error
	n := devices.New(devices.Config{
		Job: &job.Job{Bind: job.BindRules{Mode: "node"}}, Near: fake.Root(accel.Real()), Lookup: none, Log: zerolog.Nop(),
		Detect:   func() accel.Inventory { return fake.Detect(accel.Real(), none) },
		StandIns: func(cpus []int) ([]int, error) { return cpus[:1], failure },
	})
	if got, err := n.Bind("node", 4); err != nil || cmp.Diff([][]int{{0}, {0}, {8}, {8}}, got) != "" {
		t.Errorf("%v, %v", got, err)
	}
	failure = errors.New("there is one CPU here")
	if _, err := n.Bind("node", 4); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
}

// TestPairsFit: pairs are of devices that a worker would see; where files show none torch may find some.
func TestPairsFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		visible int
		pair    [2]int
		refused bool
	}{{4, [2]int{0, 3}, false}, {4, [2]int{4, 1}, true}, {0, [2]int{6, 7}, false}} {
		err := devices.PairsFit([][2]int{c.pair}, accel.Inventory{Family: accel.Family{VisibleCount: c.visible}})
		if (err != nil) != c.refused || err != nil && errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%v of %d devices: %v", c.pair, c.visible, err)
		}
	}
}
