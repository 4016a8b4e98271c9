package accel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/testutil"
)

// bindCase is one question to both implementations.
type bindCase struct {
	Files   map[string]string `json:"files"`
	Allowed []int             `json:"allowed"`
	Bus     []string          `json:"bus"` // PCI addresses of the GPUs that workers see
	Mode    string            `json:"mode"`
	Workers int               `json:"workers"`

	root boundRoot
	inv  accel.Inventory
}

// bindAnswer is what PyTorch says of one local rank.
type bindAnswer struct {
	CPUs  []int  `json:"cpus"`
	Error string `json:"error"`
}

// torchBinds answers through the installed PyTorch's own functions. What they ask is the case's: files, the affinity,
// the GPUs; and numactl is there.
const torchBinds = `
import io, json, posixpath, sys
import torch.numa.binding as b

class Module:
    def __init__(self, **names):
        self.__dict__.update(names)

def properties(bus):
    def get(index):
        assert 0 <= index < len(bus), "Invalid device id"
        domain, number, rest = bus[index].split(":")
        return Module(pci_domain_id=int(domain, 16), pci_bus_id=int(number, 16), pci_device_id=int(rest.split(".")[0], 16))
    return Module(get_device_properties=get)

def answer(case):
    files = case["files"]
    def fake_open(path):
        if path.lstrip("/") not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[path.lstrip("/")])
    def listdir(path):
        prefix = path.lstrip("/") + "/"
        found = {name[len(prefix):].split("/")[0] for name in files if name.startswith(prefix)}
        if not found:
            raise FileNotFoundError(path)
        return sorted(found, reverse=True)
    b.open = fake_open
    b.os = Module(path=posixpath, listdir=listdir, sched_getaffinity=lambda _: set(case["allowed"]))
    b.shutil = Module(which=lambda _: "/usr/bin/numactl")
    b.torch = Module(
        accelerator=Module(is_available=lambda: bool(case["bus"]), device_count=lambda: len(case["bus"]),
                           current_accelerator=lambda: "cuda"),
        get_device_module=lambda _: properties(case["bus"]))
    options = b.NumaOptions(affinity_mode=b.AffinityMode(case["mode"]))
    for rank in range(case["workers"]):
        try:
            yield {"cpus": sorted(b._get_validated_logical_cpus_to_bind_to(device_index=rank, numa_options=options))}
        except Exception as e:
            yield {"error": "%s: %s" % (type(e).__name__, e)}

json.dump([list(answer(case)) for case in json.load(sys.stdin)], sys.stdout)
`

// lenient are errors of PyTorch in the mode socket that are none of ours: nodes without a CPU for us, or not there at
// all.
var lenient = []string{"ValueError: min()", "RuntimeError: Could not determine CPUs"}

func TestBindAgreesWithPyTorch(t *testing.T) {
	python := testutil.Torch(t)
	cases := generatedBinds(t, 400)
	in, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", torchBinds)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var answers [][]bindAnswer
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	if len(answers) != len(cases) {
		t.Fatalf("%d answers to %d questions", len(answers), len(cases))
	}
	seen := map[string]int{}
	for i, c := range cases {
		bound, err := accel.Bind(c.root, c.inv, accel.BindMode(c.Mode), c.Workers)
		kind := "bound"
		for rank, want := range answers[i] {
			switch {
			case want.Error == "" && err == nil:
				if d := cmp.Diff(want.CPUs, bound.CPUs[rank]); d != "" {
					t.Errorf("case %d, %s, local rank %d (-PyTorch +muster)\n%s%v", i, c.Mode, rank, d, c.Files)
				}
			case want.Error == "":
			case err != nil:
				kind = "refused"
			case c.Mode == "socket" && (strings.HasPrefix(want.Error, lenient[0]) || strings.HasPrefix(want.Error, lenient[1])):
				kind = "lenient"
			default:
				t.Errorf("case %d, %s: %v, and PyTorch says for local rank %d: %s", i, c.Mode, bound.CPUs, rank, want.Error)
			}
		}
		if err != nil && kind != "refused" {
			t.Errorf("case %d, %s: %v, and PyTorch has no error: %v\n%v", i, c.Mode, err, answers[i], c.Files)
		}
		seen[c.Mode+" "+kind]++
	}
	t.Logf("%d questions: %v", len(cases), seen)
	for _, mode := range []string{"node", "socket", "exclusive", "core-complex"} {
		for _, kind := range []string{"bound", "refused"} {
			if seen[mode+" "+kind] < 30 {
				t.Errorf("only %d of %s: the generator has lost its variety", seen[mode+" "+kind], mode+" "+kind)
			}
		}
	}
	if seen["socket lenient"] < 20 {
		t.Errorf("only %d lenient", seen["socket lenient"])
	}
}

// generatedBinds returns all modes for each of n machines, the same ones in every run.
func generatedBinds(t *testing.T, n int) []bindCase {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 8))
	one := func(in int) bool { return rng.IntN(in) == 0 }
	var cases []bindCase
	for range n {
		m := numaTree{Nodes: map[int]string{}, Sockets: map[int]int{}}
		nodes, cores, threads := 1+rng.IntN(4), 1+rng.IntN(5), 1+rng.IntN(2)
		together, behind, far := 1+rng.IntN(4), 1+rng.IntN(cores), one(2) // nodes of a socket, cores of a cache, siblings far
		step := 1 + rng.IntN(2)                                           // of node numbers
		cpu := func(core, thread int) int {
			if far {
				return core + thread*nodes*cores
			}
			return core*threads + thread
		}
		var all []int
		for k := range nodes {
			var mine, sharers []string
			for c := range cores {
				var siblings []string
				for thread := range threads {
					all = append(all, cpu(k*cores+c, thread))
					siblings = append(siblings, fmt.Sprint(cpu(k*cores+c, thread)))
				}
				m.Cores = append(m.Cores, strings.Join(siblings, ","))
				mine = append(mine, siblings...)
				sharers = append(sharers, siblings...)
				if (c+1)%behind == 0 || c == cores-1 {
					m.Caches = append(m.Caches, strings.Join(sharers, ","))
					sharers = nil
				}
			}
			m.Nodes[k*step], m.Sockets[k*step] = strings.Join(mine, ","), k/together
		}
		if one(6) {
			m.Caches = nil
		}
		if one(6) {
			m.Nodes[nodes*step] = "" // memory
		}
		if one(6) {
			m.Virtual = []int{20}
		}
		for range 1 + rng.IntN(6) {
			node := rng.IntN(nodes) * step
			switch {
			case one(20):
				node = -1
			case one(40):
				node = nodes * step
			}
			m.GPUs = append(m.GPUs, node)
		}
		allowed := all
		if one(3) {
			allowed = nil
			for _, c := range all {
				if !one(3) {
					allowed = append(allowed, c)
				}
			}
		}
		allowed = list(t, strings.Trim(strings.ReplaceAll(fmt.Sprint(allowed), " ", ","), "[]"))
		files := m.Files(t)
		root := boundRoot{Root: files.Root(), Allowed: allowed}
		environ := env()
		if one(4) {
			environ = env("CUDA_VISIBLE_DEVICES=" +
				strings.Trim(strings.ReplaceAll(fmt.Sprint(rng.Perm(len(m.GPUs))[:1+rng.IntN(len(m.GPUs))]), " ", ","), "[]"))
		}
		inv := accel.Detect(root, environ)
		var bus []string
		for _, d := range inv.Visible {
			bus = append(bus, d.BusID)
			files["sys/bus/pci/devices/"+d.BusID+"/numa_node"] = files["sys/devices/pci0000:00/"+d.BusID+"/numa_node"]
		}
		workers := len(bus)
		if one(20) {
			workers++
		}
		for _, mode := range []string{"node", "socket", "exclusive", "core-complex"} {
			cases = append(cases, bindCase{Files: files, Allowed: allowed, Bus: bus, Mode: mode, Workers: workers, root: root, inv: inv})
		}
	}
	return cases
}
