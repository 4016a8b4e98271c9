package accel_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/errhint"
)

// over is env with more variables, which win.
func over(vars []string, more map[string]string) func(string) (string, bool) {
	below := env(vars...)
	return func(name string) (string, bool) {
		if v, ok := more[name]; ok {
			return v, true
		}
		return below(name)
	}
}

// TestShareDevices: a worker with the variables of its share sees, by the rules of its vendor, the one device that was
// the k-th before, whatever the masks were. want has the value for each worker where it is not the device's UUID.
func TestShareDevices(t *testing.T) {
	for _, c := range []struct {
		vendor string
		env    string // with spaces between
		name   string // of the variable
		want   string // its values
	}{
		{"nvidia", "", "CUDA_VISIBLE_DEVICES", "UUID UUID UUID UUID"},
		{"nvidia", "CUDA_VISIBLE_DEVICES=3,1", "CUDA_VISIBLE_DEVICES", "UUID UUID"},
		{"nvidia", "CUDA_VISIBLE_DEVICES=2,7,0", "CUDA_VISIBLE_DEVICES", "UUID"},
		{"metax", "", "MACA_VISIBLE_DEVICES", "0 1 2 3"},
		{"metax", "CUDA_VISIBLE_DEVICES=3,1", "MACA_VISIBLE_DEVICES", "3 1"},
		{"metax", "MACA_VISIBLE_DEVICES=3,1", "CUDA_VISIBLE_DEVICES", "3 1"},
		{"amd", "", "HIP_VISIBLE_DEVICES", "0 1 2 3"},
		{"amd", "CUDA_VISIBLE_DEVICES=3,1", "HIP_VISIBLE_DEVICES", "3 1"},
		{"amd", "HIP_VISIBLE_DEVICES=2 CUDA_VISIBLE_DEVICES=3,1", "CUDA_VISIBLE_DEVICES", "2"},
		{"amd", "ROCR_VISIBLE_DEVICES=3,1", "HIP_VISIBLE_DEVICES", "0 1"},
		{"amd", "ROCR_VISIBLE_DEVICES=3,1,0 HIP_VISIBLE_DEVICES=2,0", "HIP_VISIBLE_DEVICES", "2 0"},
		{"hygon", "HIP_VISIBLE_DEVICES=3,1", "HIP_VISIBLE_DEVICES", "3 1"},
		{"ascend", "ASCEND_RT_VISIBLE_DEVICES=1,3", "ASCEND_RT_VISIBLE_DEVICES", "1 3"},
		{"cambricon", "MLU_VISIBLE_DEVICES=3,1", "MLU_VISIBLE_DEVICES", "3 1"},
		{"mthreads", "MUSA_VISIBLE_DEVICES=3,1", "MUSA_VISIBLE_DEVICES", "3 1"},
		{"iluvatar", "CUDA_VISIBLE_DEVICES=3,1", "CUDA_VISIBLE_DEVICES", "3 1"},
		{"thead", "CUDA_VISIBLE_DEVICES=3,1", "CUDA_VISIBLE_DEVICES", "3 1"},
		{"intel", "", "ZE_AFFINITY_MASK", "0 1 2 3"},
	} {
		t.Run(c.vendor+" "+c.env, func(t *testing.T) {
			fake, vars := fakeOf(t, c.vendor), strings.Fields(c.env)
			inv := fake.Detect(tree{}.Root(), env(vars...))
			shares, err := inv.ShareDevices("auto", len(strings.Fields(c.want)), env(vars...))
			if err != nil {
				t.Fatal(err)
			}
			var values []string
			for i, s := range shares {
				value := s.Vars[c.name]
				if value == s.Device.UUID && value != "" {
					value = "UUID"
				}
				values = append(values, value)
				if s.Device.VisibleIndex != i {
					t.Errorf("local rank %d has device %+v", i, s.Device)
				}
				alone := fake.Detect(tree{}.Root(), over(vars, s.Vars))
				if c.vendor == "intel" {
					continue // only the runtime can resolve its mask
				}
				if alone.VisibleCount != 1 || len(alone.Visible) != 1 || alone.Visible[0].Index != s.Device.Index {
					t.Errorf("local rank %d with %v sees %+v, want device %d (%v)", i, s.Vars, alone.Visible, s.Device.Index,
						alone.Undecided)
				}
			}
			if d := cmp.Diff(c.want, strings.Join(values, " ")); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestShareDevicesRefuses(t *testing.T) {
	two := tree{"proc/driver/nvidia/gpus/0000:1b:00.0/information": "Device Minor: 1\nModel: A\n"}
	pair := control.With(bridge, gpuA, gpuB, allOpen)
	for _, c := range []struct {
		name, word string
		workers    int
		tree       tree
		env        string
		want, hint string
	}{
		{
			"fewer workers", "1", 1, pair, "", "1 worker and 2 GPUs that a worker would see: each is to have one",
			"start 2 workers, or choose 1 device by CUDA_VISIBLE_DEVICES",
		},
		{
			"more workers", "4", 4, ascend, "", "4 workers and 2 NPUs that a worker would see",
			"start 2 workers, or choose 4 devices by ASCEND_RT_VISIBLE_DEVICES",
		},
		{
			"masked away", "2", 2, pair, "CUDA_VISIBLE_DEVICES=",
			`there is no accelerator that a worker would see ` +
				`(found 2 NVIDIA GPUs with a usable device node; CUDA_VISIBLE_DEVICES="": 0 of 2 visible)`, "",
		},
		{"none", "2", 2, tree{}, "", "there is no accelerator that a worker would see", ""},
		{"a tie", "2", 2, pair.With(ascend), "", "cannot choose between 2 nvidia devices and 2 ascend devices", "name the vendor"},
		{"Gaudi's modules", "hpu", 2, gaudi, "", "HABANA_VISIBLE_MODULES names Gaudi's modules, whose numbers no file tells", ""},
		{"an integrated GPU", "xpu", 2, arc, "", "not known beside 0000:00:02.0: it is an integrated GPU", ""},
		{
			"for the runtime to say", "2", 2, arc, "ZE_AFFINITY_MASK=0,1", "that is for the vendor's runtime to resolve",
			"unset ZE_AFFINITY_MASK",
		},
		{
			"names that are not there", "amd", 2, mi210, "ROCR_VISIBLE_DEVICES=0,9",
			"the visibility variables name 2 devices, and only 1 are there", "",
		},
		{"OpenCL's mask", "amd", 2, mi210, "GPU_DEVICE_ORDINAL=1", `GPU_DEVICE_ORDINAL="1" would choose again: unset it`, ""},
		{
			"an order of its own", "2", 2, pair.With(two), "CUDA_DEVICE_ORDER=FASTEST_FIRST",
			`with CUDA_DEVICE_ORDER="FASTEST_FIRST" nobody can tell`, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			lookup := env(strings.Fields(c.env)...)
			shares, err := accel.Detect(c.tree.Root(), lookup).ShareDevices(c.word, c.workers, lookup)
			if err == nil || shares != nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(errhint.Of(err), c.hint) ||
				errhint.CodeOf(err) != errhint.Usage {
				t.Errorf("%v: status %d of %v, hint %q", shares, errhint.CodeOf(err), err, errhint.Of(err))
			}
		})
	}
	// A word chooses where a number does not; a GPU without a UUID goes by its number.
	machine := pair.With(ascend, tree{"proc/driver/nvidia/gpus/0000:1b:00.0/information": "Device Minor: 1\n"})
	for word, want := range map[string]string{"npu": "ASCEND_RT_VISIBLE_DEVICES=0", "nvidia": "CUDA_VISIBLE_DEVICES=0"} {
		shares, err := accel.Detect(machine.Root(), env()).ShareDevices(word, 2, env())
		if err != nil || len(shares) != 2 {
			t.Fatal(shares, err)
		}
		var got []string
		for _, name := range slices.Sorted(maps.Keys(shares[0].Vars)) {
			got = append(got, name+"="+shares[0].Vars[name])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
	mixed := spec(t, "count: 2", "mig: {1: [1g.10gb]}").Detect(tree{}.Root(), env())
	if shares, err := mixed.ShareDevices("2", 2, env()); err == nil || !strings.Contains(err.Error(), "1 of 2 visible GPUs are divided") {
		t.Errorf("mixed: %v, %v", shares, err)
	}
	divided := spec(t, "count: 2", "mig: {0: [1g.10gb, 1g.10gb], 1: [1g.10gb]}").Detect(tree{}.Root(), env())
	if shares, err := divided.ShareDevices("3", 3, env()); err != nil ||
		!strings.HasPrefix(shares[2].Vars["CUDA_VISIBLE_DEVICES"], "MIG-"+divided.Devices[1].UUID) {
		t.Errorf("divided: %v, %v", shares, err)
	}
	if _, err := divided.ShareDevices("2", 2, env()); err == nil || !strings.Contains(err.Error(), "2 workers and 3 MIG instances") ||
		strings.Contains(errhint.Of(err), "VISIBLE") {
		t.Error("two workers got three instances")
	}
}

func TestSharedVars(t *testing.T) {
	for _, c := range []struct {
		vendor, env string
		ordered     bool
		want        string
		asked       bool // OneMaskOfTwo
	}{
		{vendor: "nvidia", want: "map[]"},
		{vendor: "nvidia", ordered: true, want: "map[CUDA_DEVICE_ORDER:PCI_BUS_ID]"},
		{vendor: "nvidia", env: "CUDA_DEVICE_ORDER=FASTEST_FIRST", ordered: true, want: "map[]"},
		{vendor: "nvidia", env: "CUDA_VISIBLE_DEVICES=0", want: "map[]"},
		{vendor: "amd", ordered: true, want: "map[]"},
		{vendor: "metax", ordered: true, want: "map[]"},
		{vendor: "metax", env: "CUDA_VISIBLE_DEVICES=1,0", want: "map[MACA_VISIBLE_DEVICES:1,0]", asked: true},
		{vendor: "metax", env: "MACA_VISIBLE_DEVICES=", want: "map[CUDA_VISIBLE_DEVICES:]", asked: true},
		{vendor: "metax", env: "CUDA_VISIBLE_DEVICES=1 MACA_VISIBLE_DEVICES=1", want: "map[]"},
	} {
		fake, lookup := fakeOf(t, c.vendor), env(strings.Fields(c.env)...)
		inv := fake.Detect(tree{}.Root(), lookup)
		if got := fmt.Sprint(inv.SharedVars("auto", c.ordered, lookup)); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.vendor, c.env, got, c.want)
		}
		if got := accel.OneMaskOfTwo(fake.Root(tree{}.Root()), lookup); got != c.asked {
			t.Errorf("%s %s: asked %v", c.vendor, c.env, got)
		}
	}
}
