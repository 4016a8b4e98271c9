package devices

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/testutil"
	"muster/test/drive"
)

// fakeGPUs writes the spec of a fake accelerator with GPUs on these NUMA nodes, and returns its path.
func fakeGPUs(t *testing.T, numa ...string) string {
	t.Helper()
	spec := filepath.Join(t.TempDir(), "gpus.yaml")
	text := fmt.Sprintf("version: 1\ndefaults: {count: %d, numa: [%s]}\n", len(numa), strings.Join(numa, ", "))
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return spec
}

// planned returns the CPUs of each local rank in a dry run.
func planned(t *testing.T, environ []string, args ...string) []string {
	t.Helper()
	got := drive.Run(t, append(slices.Clone(environ), "MUSTER_DRY_RUN=1", "MUSTER_JSON=1"), args...)
	var dry struct {
		Workers []struct {
			CPUs string `json:"cpus"`
		} `json:"workers"`
	}
	if err := json.Unmarshal([]byte(got.Stdout), &dry); err != nil || got.Status != 0 {
		t.Fatalf("status %d, %v\n%s%s", got.Status, err, got.Stdout, got.Stderr)
	}
	var cpus []string
	for _, w := range dry.Workers {
		cpus = append(cpus, w.CPUs)
	}
	return cpus
}

// seen returns what each local rank printed as "on RANK CPUS".
func seen(t *testing.T, got drive.Outcome, workers int) []string {
	t.Helper()
	cpus := make([]string, workers)
	for line := range strings.Lines(got.Stdout) {
		var rank int
		var list string
		if _, after, ok := strings.Cut(line, "on "); !ok {
			continue
		} else if _, err := fmt.Sscanf(after, "%d %s", &rank, &list); err == nil && rank < workers {
			cpus[rank] = list
		}
	}
	if slices.Contains(cpus, "") || got.Status != 0 {
		t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	return cpus
}

// TestNUMABinding lets workers tell the CPUs they may use, on a machine with its own NUMA nodes or with nodes that the
// fake deals out. The dry run says the same.
func TestNUMABinding(t *testing.T) {
	t.Parallel()
	cpus, err := accel.Real().Affinity()
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"MUSTER_LOG_LEVEL=info", "MUSTER_FAKE=" + fakeGPUs(t, "0", "1", "1")}
	for name, args := range map[string][]string{
		"torchrun": {
			"torchrun", "--standalone", "--nproc-per-node", "3", "--numa-binding", "node", "--no-python", "sh", "-c", drive.SayCPUs,
		},
		"run": {"run", "-n", "gpu", "--numa-binding", "node", "--", "sh", "-c", drive.SayCPUs},
	} {
		t.Run(name, func(t *testing.T) {
			want := planned(t, environ, args...)
			got := drive.Run(t, environ, args...)
			if d := cmp.Diff(want, seen(t, got, 3)); d != "" {
				t.Errorf("(-dry run +workers)\n%s%s", d, got.Stderr)
			}
			if !strings.Contains(got.Stderr, "workers are bound to CPUs") {
				t.Errorf("the log does not tell:\n%s", got.Stderr)
			}
			if want[1] != want[2] || len(cpus) > 1 && want[0] == want[1] {
				t.Errorf("local ranks on two nodes are bound to %q", want)
			}
		})
	}
}

// TestNUMABindingWarm forks bound workers from a template, which is bound to one of their sets, and again after a
// restart.
func TestNUMABindingWarm(t *testing.T) {
	t.Parallel()
	dir := drive.WarmDir(t, "script.py", `
import json, os, sys
print("on", os.environ["LOCAL_RANK"], ",".join(map(str, sorted(os.sched_getaffinity(0)))), flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] + os.environ["RANK"] == "01":
    sys.exit(3)
`)
	environ := []string{"MUSTER_FAKE=" + fakeGPUs(t, "0", "1")}
	var want []string
	for _, list := range planned(t, environ, "run", "-n", "2", "--numa-binding", "node", "--", "true") {
		want = append(want, expanded(list))
	}
	if strings.Count(want[0], ",") != strings.Count(want[1], ",") {
		t.Skipf("the nodes have different numbers of CPUs: %q", want)
	}
	got := drive.StartWarm(t, dir, environ, "--numa-binding", "node", "--warm", "json", "--max-restarts", "1").End()
	drive.WantWarm(t, got, 0, 4)
	if d := cmp.Diff(want, seen(t, got, 2)); d != "" {
		t.Errorf("(-dry run +workers)\n%s", d)
	}
	got = drive.StartWarm(t, dir, append(environ, "OMP_PROC_BIND=true"),
		"--numa-binding", "node", "--warm", "json", "--max-restarts", "1").End()
	if d := cmp.Diff(want, seen(t, got, 2)); d != "" {
		t.Errorf("with OMP_PROC_BIND (-dry run +workers)\n%s", d)
	}
	if want[0] != want[1] {
		drive.WantWarm(t, got, 0, 0, "with OMP_PROC_BIND a library may keep those")
	}
}

// expanded writes a list with every number.
func expanded(list string) string {
	var all []string
	for item := range strings.SplitSeq(list, ",") {
		var first, last int
		if n, _ := fmt.Sscanf(item, "%d-%d", &first, &last); n == 1 {
			last = first
		}
		for c := first; c <= last; c++ {
			all = append(all, fmt.Sprint(c))
		}
	}
	return strings.Join(all, ",")
}

// TestNUMABindingRefused compares the error of a machine without accelerators with the real torchrun's, and tries what
// else cannot be bound.
func TestNUMABindingRefused(t *testing.T) {
	t.Parallel()
	const words = "No accelerator available for NUMA binding"
	none := fakeGPUs(t)
	got := drive.Run(t, []string{"MUSTER_FAKE=" + none}, "torchrun", "--standalone", "--numa-binding", "node", "--no-python", "true")
	if got.Status != 2 || !strings.Contains(got.Stderr, "cannot use --numa-binding node: "+words) {
		t.Errorf("status %d\n%s", got.Status, got.Stderr)
	}
	got = drive.Run(t, []string{"MUSTER_FAKE=" + none, "MUSTER_NUMA_FALLBACK=1"}, "torchrun", "--standalone", "--numa-binding", "node",
		"--no-python", "echo", "here")
	if got.Status != 0 || got.Stdout != "here\n" || !strings.Contains(got.Stderr, "workers are not bound to CPUs") ||
		!strings.Contains(got.Stderr, words) {
		t.Errorf("with fallback: status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	got = drive.Run(t, []string{"MUSTER_NUMA_BINDING=node", "MUSTER_FAKE=" + fakeGPUs(t, "0")},
		"torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", "true")
	if got.Status != 2 || !strings.Contains(got.Stderr, "2 workers and 1 accelerator visible: local rank 1 has none") {
		t.Errorf("more workers than GPUs: status %d\n%s", got.Status, got.Stderr)
	}
	if devices, _ := filepath.Glob("/dev/nvidia*"); len(devices) == 0 {
		theirs := drive.Torchrun(t, nil, "--standalone", "--numa-binding", "node", "--no-python", "true")
		if theirs.Status == 0 || !strings.Contains(theirs.Stderr, words) {
			t.Errorf("torchrun: status %d\n%s", theirs.Status, theirs.Stderr)
		}
	}
}

// torchrunOnFakes is the real torchrun on a machine with two accelerators at NUMA node 0.
const torchrunOnFakes = `
import torch.numa.binding as b
b._get_device_count = lambda: 2
b._get_numa_node_index_for_device_index = lambda *, device_index: 0
from torch.distributed.run import main
main()
`

// TestNUMABindingLikeTorchrun compares the CPUs of workers with those that the real torchrun's have on this machine,
// where taskset stands in for numactl.
func TestNUMABindingLikeTorchrun(t *testing.T) {
	t.Parallel()
	forks := testutil.ForksOf(testutil.Torch(t), "torch.distributed.run,torch.numa.binding", "")
	bin := t.TempDir()
	numactl := "#!/bin/sh\nlist=${1#--physcpubind=}\nshift\nexec taskset -c $list \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "numactl"), []byte(numactl), 0o755); err != nil {
		t.Fatal(err)
	}
	environ := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "MUSTER_FAKE=" + fakeGPUs(t, "0", "0"), "MUSTER_FAKE_ON_REAL=1"}
	bound := 0
	for _, mode := range []string{"node", "socket", "exclusive", "core-complex"} {
		args := []string{"--standalone", "--nproc-per-node", "2", "--numa-binding", mode, "--no-python", "sh", "-c", drive.SayCPUs}
		theirs := drive.CommandOf(t, forks, environ, append([]string{"-c", torchrunOnFakes}, args...)...)
		ours := drive.Run(t, environ, append([]string{"torchrun"}, args...)...)
		if theirs.Status != 0 { // one core for two, or a machine that tells nothing of its caches
			t.Logf("%s: %s", mode, ours.Stderr)
			if ours.Status != 2 {
				t.Errorf("%s: status %d, and torchrun fails\n%s\n%s", mode, ours.Status, ours.Stdout, theirs.Stderr)
			}
			continue
		}
		bound++
		if d := cmp.Diff(seen(t, theirs, 2), seen(t, ours, 2)); d != "" {
			t.Errorf("%s (-torchrun +muster)\n%s", mode, d)
		}
	}
	if bound == 0 {
		t.Error("torchrun bound no worker in any mode")
	}
}

// TestFakeCPUs rehearses the CPUs of another machine: they are counted, and those of this one stand for them.
func TestFakeCPUs(t *testing.T) {
	t.Parallel()
	cpus, err := accel.Real().Affinity()
	if err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(t.TempDir(), "cpus.yaml")
	text := "version: 1\ndefaults: {count: 2, numa: [0, 1], cpus: {sockets: 2, cores_per_node: 16, threads: 2}}\n"
	if err := os.WriteFile(spec, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"MUSTER_LOG_LEVEL=info", "MUSTER_FAKE=" + spec}
	// Half of the fake's 32 cores are on each node, and so is half of what is here.
	n := len(cpus)
	want := []string{accel.FormatList(cpus[:max(15*n/32+1, n/2)]), accel.FormatList(cpus[n/2:])}
	args := []string{"run", "-n", "gpu", "--numa-binding", "node", "--", "sh", "-c", drive.SayCPUs}
	if diff := cmp.Diff(want, planned(t, environ, args...)); diff != "" {
		t.Errorf("planned (-want +got)\n%s", diff)
	}
	got := drive.Run(t, environ, args...)
	if diff := cmp.Diff(want, seen(t, got, 2)); diff != "" {
		t.Errorf("bound (-want +got)\n%s", diff)
	}
	if !strings.Contains(got.Stderr, `"fake_cpus":"16-31,48-63"`) {
		t.Errorf("it does not tell of them:\n%s", got.Stderr)
	}
	if got := drive.Run(t, environ, "devices", "--json"); !strings.Contains(got.Stdout, `"cpus": 64`) {
		t.Errorf("%s%s", got.Stdout, got.Stderr)
	}
}
