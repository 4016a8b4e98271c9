package accel_test

import (
	"strings"
	"testing"

	"muster/internal/accel"
	"muster/internal/errhint"
)

func TestWorkers(t *testing.T) {
	none := accel.Detect(tree{}.Root(), env())
	masked := accel.Detect(control.With(gpuA, gpuB, allOpen).Root(), env("CUDA_VISIBLE_DEVICES=1"))
	hidden := accel.Detect(control.With(gpuA, gpuB, allOpen).Root(), env("CUDA_VISIBLE_DEVICES="))
	mig := accel.Detect(control.With(gpuA, gpuB, allOpen).Root(), env("CUDA_VISIBLE_DEVICES=MIG-1"))
	for _, c := range []struct {
		word string
		inv  accel.Inventory
		n    int
		want string // why, or the error
		hint string
	}{
		{"cpu", masked, 6, "6 CPUs allowed", ""},
		{"cpu", mig, 6, "6 CPUs allowed", ""},
		{"auto", none, 6, "6 CPUs allowed, and no accelerator that a worker would see", ""},
		{"auto", hidden, 6, "6 CPUs allowed, and no accelerator that a worker would see", ""},
		{"auto", masked, 1, "1 of 2 nvidia devices visible", ""},
		{"gpu", masked, 1, "1 of 2 nvidia devices visible", ""},
		{"cuda", masked, 1, "1 of 2 nvidia devices visible", ""},
		{"nvidia", masked, 1, "1 of 2 nvidia devices visible", ""},
		{
			"gpu", none, 0, "cannot start one worker per GPU: Cuda is not available (no NVIDIA GPU was found in /sys/bus/pci/devices)",
			"to train on CPUs say --nproc-per-node cpu or --nproc-per-node N",
		},
		{
			"gpu", hidden, 0,
			`cannot start one worker per GPU: Cuda is not available ` +
				`(found 2 NVIDIA GPUs with a usable device node; CUDA_VISIBLE_DEVICES="": 0 of 2 visible)`,
			"to train on CPUs say --nproc-per-node cpu or --nproc-per-node N",
		},
		{
			"gpu", mig, 0, "cannot start one worker per GPU: cannot count the MIG instances that CUDA_VISIBLE_DEVICES names",
			"say how many workers to start: --nproc-per-node N",
		},
		{
			"auto", mig, 0, "cannot start one worker per GPU: cannot count the MIG instances that CUDA_VISIBLE_DEVICES names",
			"say how many workers to start: --nproc-per-node N",
		},
		{
			"xpu", masked, 0, "cannot start one worker per XPU: Xpu is not available",
			"this node has 1 visible nvidia device: --nproc-per-node nvidia; to train on CPUs say --nproc-per-node cpu or " +
				"--nproc-per-node N",
		},
		{
			"npu", none, 0, "cannot start one worker per NPU: npu is not available",
			"to train on CPUs say --nproc-per-node cpu or --nproc-per-node N",
		},
		{
			"ascend", none, 0, "cannot start one worker per NPU: Ascend NPU is not available",
			"to train on CPUs say --nproc-per-node cpu or --nproc-per-node N",
		},
		{"mps", masked, 0, "cannot count mps devices: muster knows none of that name", "say how many workers to start: --nproc-per-node N"},
		{"foo", masked, 0, "Unsupported nproc_per_node value: foo", "give a number, or one of auto, cpu, gpu"},
		{"", masked, 0, "Unsupported nproc_per_node value: ", "give a number, or one of auto, cpu, gpu"},
		{"GPU", masked, 0, "Unsupported nproc_per_node value: GPU", "give a number, or one of auto, cpu, gpu"},
	} {
		n, why, err := accel.Workers(c.word, c.inv, 6)
		got := why
		if err != nil {
			got = err.Error()
			if errhint.CodeOf(err) != errhint.Usage {
				t.Errorf("%q: status %d", c.word, errhint.CodeOf(err))
			}
		}
		if n != c.n || got != c.want || errhint.Of(err) != c.hint || (err != nil) != (c.hint != "") {
			t.Errorf("%q: got %d, %q, hint %q\nwant %d, %q, hint %q", c.word, n, got, errhint.Of(err), c.n, c.want, c.hint)
		}
	}
}

func TestCPUs(t *testing.T) {
	v2 := tree{
		"proc/self/cgroup": "0::/kube/pod:1/job\n",
		"proc/self/mountinfo": "22 1 0:20 / /proc rw - proc proc rw\n" +
			"31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
	}
	v1 := tree{
		"proc/self/cgroup": "9:name=systemd:/\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/docker/abc\n0::/\n",
		"proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" +
			"32 23 0:29 / /sys/fs/cgroup/cpu\\040x rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
	}
	const v1dir = "sys/fs/cgroup/cpu x/"
	for _, c := range []struct {
		name string
		tree tree
		n    int
		why  string
	}{
		{"no cgroup", tree{}, 8, "8 CPUs in the affinity mask"},
		{"no mountinfo", tree{"proc/self/cgroup": "0::/\n"}, 8, "8 CPUs in the affinity mask"},
		{"v2 none", v2.With(tree{"sys/fs/cgroup/kube/pod:1/job/cpu.max": "max 100000\n"}), 8, "8 CPUs in the affinity mask"},
		{
			"v2 rounded up", v2.With(tree{"sys/fs/cgroup/kube/pod:1/job/cpu.max": "210000 100000\n"}), 3,
			"3 CPUs by the quota in /sys/fs/cgroup/kube/pod:1/job/cpu.max (the affinity mask has 8)",
		},
		{
			"v2 exact", v2.With(tree{"sys/fs/cgroup/kube/pod:1/job/cpu.max": "200000 100000\n"}), 2,
			"2 CPUs by the quota in /sys/fs/cgroup/kube/pod:1/job/cpu.max (the affinity mask has 8)",
		},
		{
			"v2 below one", v2.With(tree{"sys/fs/cgroup/kube/pod:1/job/cpu.max": "1000 100000\n"}), 1,
			"1 CPU by the quota in /sys/fs/cgroup/kube/pod:1/job/cpu.max (the affinity mask has 8)",
		},
		{
			"v2 ancestor",
			v2.With(tree{
				"sys/fs/cgroup/kube/pod:1/job/cpu.max": "400000 100000\n", "sys/fs/cgroup/kube/cpu.max": "250000 50000\n",
				"sys/fs/cgroup/kube/pod:1/cpu.max": "100000 50000\n",
			}), 2,
			"2 CPUs by the quota in /sys/fs/cgroup/kube/pod:1/cpu.max (the affinity mask has 8)",
		},
		{"v2 more than the mask", v2.With(tree{"sys/fs/cgroup/kube/cpu.max": "6400000 100000\n"}), 8, "8 CPUs in the affinity mask"},
		{
			"v2 path of another namespace", v2.With(tree{
				"proc/self/cgroup":      "0::/../../job\n",
				"sys/fs/cgroup/cpu.max": "100000 100000\n",
			}),
			1, "1 CPU by the quota in /sys/fs/cgroup/cpu.max (the affinity mask has 8)",
		},
		{"v2 mount shows a part", v2.With(tree{
			"proc/self/mountinfo":       "31 23 0:28 /kube/pod:1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/job/cpu.max": "300000 100000\n",
		}), 3, "3 CPUs by the quota in /sys/fs/cgroup/job/cpu.max (the affinity mask has 8)"},
		{
			"v2 garbage", v2.With(tree{"sys/fs/cgroup/kube/cpu.max": "lots\n", "sys/fs/cgroup/cpu.max": "100000 0\n"}), 8,
			"8 CPUs in the affinity mask",
		},
		{
			"v1 none", v1.With(tree{v1dir + "docker/abc/cpu.cfs_quota_us": "-1\n", v1dir + "docker/abc/cpu.cfs_period_us": "100000\n"}), 8,
			"8 CPUs in the affinity mask",
		},
		{"v1 on a hybrid system", v1.With(tree{
			v1dir + "docker/abc/cpu.cfs_quota_us": "350000\n", v1dir + "docker/abc/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/unified/cpu.max": "100000 100000\n",
		}), 4, "4 CPUs by the quota in /sys/fs/cgroup/cpu x/docker/abc/cpu.cfs_quota_us (the affinity mask has 8)"},
		{"v1 path outside of the container's mount", v1.With(tree{
			"proc/self/mountinfo":                "32 23 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
		}), 3, "3 CPUs by the quota in /sys/fs/cgroup/cpu/cpu.cfs_quota_us (the affinity mask has 8)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := c.tree.Root()
			root.CPUs = 8
			if n, why := accel.CPUs(root); n != c.n || why != c.why {
				t.Errorf("got %d, %q\nwant %d, %q", n, why, c.n, c.why)
			}
		})
	}
	if n, _ := accel.CPUs(tree{}.Root()); n < 1 {
		t.Errorf("%d CPUs where the affinity cannot be read", n)
	}
	n, why := accel.CPUs(accel.Real())
	if n < 1 || !strings.Contains(why, "affinity mask") {
		t.Errorf("here: %d, %s", n, why)
	}
}
