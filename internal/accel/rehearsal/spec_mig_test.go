package rehearsal_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
)

// TestFakeMIG: the instances of a spec are found where real ones are, by their nodes, and each worker has one.
func TestFakeMIG(t *testing.T) {
	fake := spec(t, "count: 3", "mig: {0: [3g.40gb, 1g.10gb+me], 2: [7g.80gb]}")
	inv := fake.Detect(tree{}.Root(), env())
	var got []string
	for _, d := range inv.Devices {
		for _, in := range d.Instances {
			got = append(got, fmt.Sprintf("%d %d/%d %s %s", d.Index, in.GPUInstance, in.ComputeInstance, in.Node, in.WhyNot))
			if want := fmt.Sprintf("MIG-%s/%d/%d", d.UUID, in.GPUInstance, in.ComputeInstance); in.Mask != want {
				t.Errorf("mask %q, want %q", in.Mask, want)
			}
		}
	}
	// The numbers are those of a real machine's mig-minors: gpu0/gi1/ci0 is 13.
	want := []string{
		"0 1/0 /dev/nvidia-caps/nvidia-cap13 ", "0 2/0 /dev/nvidia-caps/nvidia-cap22 ",
		"2 1/0 /dev/nvidia-caps/nvidia-cap283 ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if n, _, err := accel.Workers("auto", inv, 6); n != 0 || err == nil ||
		!strings.Contains(err.Error(), "2 of 3 visible GPUs are divided") {
		t.Errorf("mixed: %d, %v", n, err)
	}
	if n, _, err := accel.Workers("gpu", inv, 6); n != 3 || err != nil {
		t.Errorf("gpu: %d, %v", n, err)
	}
	if shares, err := inv.ShareInstances(); shares != nil || err != nil {
		t.Errorf("mixed: %v, %v", shares, err)
	}
	inv = fake.Detect(tree{}.Root(), env("CUDA_VISIBLE_DEVICES=2,0"))
	n, _, err := accel.Workers("auto", inv, 6)
	shares, err2 := inv.ShareInstances()
	if n != 3 || err != nil || err2 != nil || len(shares) != 3 {
		t.Fatalf("%d, %v, %v, %v", n, err, shares, err2)
	}
	for i, gpu := range []int{2, 0, 0} { // in the order of the mask
		d := inv.Devices[gpu]
		if s := shares[i]; s.Device.UUID != d.UUID || !strings.HasPrefix(s.Vars["CUDA_VISIBLE_DEVICES"], "MIG-"+d.UUID+"/") {
			t.Errorf("share %d: %+v, want one of GPU %d", i, s, gpu)
		}
	}
	for _, line := range []string{`"mig":true`, `"mig":false`} {
		if !strings.Contains(string(fake.NVML(0).Lines), line) {
			t.Errorf("NVML does not say %s", line)
		}
	}
}
