package rehearsal_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
	"muster/internal/errhint"
)

const testdata = "../../../testdata/accel"

var update = flag.Bool("update", false, "rewrite the golden files")

func load(t *testing.T, file, node string) *rehearsal.Fake {
	t.Helper()
	f, err := rehearsal.LoadFake(filepath.Join(testdata, "good", file), node)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFakeDetect(t *testing.T) {
	machine := bridge.With(control, gpuA, allOpen).Root() // none of its GPUs may show through
	for _, c := range []struct {
		file, node string
		numa       []int // of the devices found
		model      string
		shown      []int
	}{
		{"eight.yaml", "", []int{0, 0, 0, 0, 1, 1, 1, 1}, "NVIDIA H100 80GB HBM3", []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"eight.yaml", "elsewhere", []int{0, 0, 0, 0, 1, 1, 1, 1}, "NVIDIA H100 80GB HBM3", []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"eight.yaml", "node-1", []int{0, 0, 0, 0, 1, 1, 1, 1}, "NVIDIA H100 80GB HBM3", []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"eight.yaml", "node-2", []int{0, 0, 0, 0, 1, 1, 1, 1}, "NVIDIA H100 80GB HBM3", []int{0, 1, 2, 3}},
		{"eight.yaml", "node-3", []int{-1, 0}, "NVIDIA A100-SXM4-40GB", []int{0, 1}},
		{"eight.yaml", "node-4", nil, "", nil},
		{"two.json", "", []int{0, 1}, "NVIDIA Fake GPU", []int{0, 1}},
		{"aliases.yaml", "a", []int{-1, -1, -1}, "NVIDIA Fake GPU", []int{1}},
		{"aliases.yaml", "b", []int{-1, -1, -1}, "NVIDIA Fake GPU", []int{1}},
		{"aliases.yaml", "c", []int{-1, -1, -1}, "NVIDIA Fake GPU", []int{0, 1, 2}},
	} {
		t.Run(c.file+" "+c.node, func(t *testing.T) {
			fake := load(t, c.file, c.node)
			inv := fake.Detect(machine, env())
			var numa, shown []int
			for i, d := range inv.Devices {
				numa = append(numa, d.NUMANode)
				if d.Model != c.model || d.Minor != i || d.Index != i || !strings.HasPrefix(d.UUID, "GPU-") {
					t.Errorf("device %d: %+v", i, d)
				}
			}
			for _, d := range inv.Visible {
				shown = append(shown, d.Index)
			}
			if d := cmp.Diff(c.numa, numa) + cmp.Diff(c.shown, shown); d != "" {
				t.Errorf("NUMA nodes or visible devices (-want +got)\n%s", d)
			}
			if inv.Fake != fake.Path() || len(inv.Why) == 0 || inv.Why[0] != fake.Banner() ||
				!strings.HasPrefix(fake.Banner(), "accelerator=fake: ") {
				t.Errorf("not marked as a fake: %+v", inv)
			}
		})
	}
}

func TestFakeBanner(t *testing.T) {
	path := filepath.Join(testdata, "good", "eight.yaml")
	for node, want := range map[string]string{
		"node-3": `2 × NVIDIA A100-SXM4-40GB with 40960 MiB (%s, node "node-3")`,
		"node-4": `this node has none (%s, node "node-4")`,
		"x":      `8 × NVIDIA H100 80GB HBM3 with 81559 MiB (%s, defaults, as it has no node "x")`,
	} {
		want = "accelerator=fake: " + fmt.Sprintf(want, path)
		if got := load(t, "eight.yaml", node).Banner(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// The variables of the spec win over the inherited ones; where it has none, the inherited ones count.
func TestFakeEnv(t *testing.T) {
	machine := tree{}.Root()
	own := load(t, "eight.yaml", "node-2")
	if d := cmp.Diff(map[string]string{"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, own.Env()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if n := own.Detect(machine, env("CUDA_VISIBLE_DEVICES=7")).VisibleCount; n != 4 {
		t.Errorf("%d visible by the spec's mask, want 4", n)
	}
	none := load(t, "eight.yaml", "node-1")
	if n := none.Detect(machine, env("CUDA_VISIBLE_DEVICES=7")).VisibleCount; n != 1 || len(none.Env()) != 0 {
		t.Errorf("%d visible by the inherited mask, want 1; %v", n, none.Env())
	}
}

func TestFakeUUIDsFollowTheSeed(t *testing.T) {
	ids := func(seed int, node string) (ids []string) {
		file := filepath.Join(t.TempDir(), "spec.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "version: 1\nseed: %d\ndefaults: {count: 256}\n", seed), 0o600); err != nil {
			t.Fatal(err)
		}
		fake, err := rehearsal.LoadFake(file, node)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range fake.Detect(tree{}.Root(), env()).Devices {
			ids = append(ids, d.UUID)
		}
		return ids
	}
	first := ids(1, "a")
	seen := map[string]bool{}
	for _, id := range first {
		seen[id] = true
	}
	if len(seen) != 256 {
		t.Errorf("%d different UUIDs of 256 devices", len(seen))
	}
	if d := cmp.Diff(first, ids(1, "a")); d != "" {
		t.Errorf("not repeatable (-first +second)\n%s", d)
	}
	for _, other := range [][]string{ids(2, "a"), ids(1, "b")} {
		for _, id := range other {
			if seen[id] {
				t.Fatalf("UUID %s again for another seed or node", id)
			}
		}
	}
}

// The fake's files replace the machine's accelerators; what is no accelerator stays the machine's.
func TestFakeRoot(t *testing.T) {
	machine := control.With(gpuA, allOpen, tree{"etc/hostname": "real\n", "dev/nvidia9": "node"}).Root()
	machine.CPUs = 5
	root := load(t, "eight.yaml", "node-3").Root(machine)
	if text, err := fs.ReadFile(root, "etc/hostname"); err != nil || string(text) != "real\n" {
		t.Errorf("%q, %v", text, err)
	}
	if n, _ := accel.CPUs(root); n != 5 {
		t.Errorf("%d CPUs, want the machine's 5", n)
	}
	for name, there := range map[string]bool{
		"dev/nvidia0": true, "dev/nvidiactl": true, "dev/nvidia9": false, "dev/nvidia2": false, "etc/hostname": true, "etc/nothing": false,
	} {
		if err := root.Access(name); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := "sys/bus/pci/devices/0000:11:00.0"
	if fi, err := root.Lstat(dir); err != nil || fi.Mode().Type() != fs.ModeSymlink {
		t.Errorf("%v, %v: no link", fi, err)
	}
	if target, err := root.ReadLink(dir + "/driver"); err != nil || filepath.Base(target) != "nvidia" {
		t.Errorf("driver %q, %v", target, err)
	}
	sub, err := fs.Sub(root, "proc/driver")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(sub, "nvidia/version", "nvidia/gpus/0000:11:00.0/information"); err != nil {
		t.Error(err)
	}
}

func TestFakeCheckMachine(t *testing.T) {
	fake := load(t, "two.json", "")
	for node, refused := range map[string]bool{
		"dev/nvidiactl": true, "dev/davinci_manager": true, "dev/mxcd": true, "dev/null": false,
	} {
		machine := tree{node: "node"}.Root()
		err := fake.CheckMachine(machine, false)
		if (err != nil) != refused {
			t.Errorf("%s: %v", node, err)
		}
		if refused && (!strings.Contains(err.Error(), "this machine has a real one (/"+node+")") || errhint.CodeOf(err) != errhint.Usage ||
			!strings.Contains(errhint.Of(err), "--fake-on-real")) {
			t.Errorf("%s: %v, hint %q", node, err, errhint.Of(err))
		}
		if err := fake.CheckMachine(machine, true); err != nil {
			t.Errorf("%s, meant so: %v", node, err)
		}
	}
	if err := fake.CheckMachine(tree{"dev/nvidiactl": "denied"}.Root(), false); err != nil {
		t.Errorf("a GPU that nobody may use: %v", err)
	}
}

func TestMalformedSpecs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testdata, "malformed", "*.yaml"))
	if err != nil || len(files) < 25 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			_, err = rehearsal.ReadSpec(f)
			if err == nil {
				t.Fatal("no error")
			}
			got := err.Error() + "\n"
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if _, err := rehearsal.LoadFake(file, ""); errhint.CodeOf(err) != errhint.Usage ||
				!strings.HasPrefix(err.Error(), fmt.Sprintf("cannot use fake accelerator %q: ", file)) {
				t.Errorf("status %d of %v", errhint.CodeOf(err), err)
			}
		})
	}
}

func TestSpecLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.yaml")
	const head = "version: 1\ndefaults: {count: 256}\n#"
	for size, ok := range map[int]bool{1<<20 - 1: true, 1 << 20: true, 1<<20 + 1: false} {
		if err := os.WriteFile(file, []byte(head+strings.Repeat("x", size-len(head))), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := rehearsal.LoadFake(file, ""); (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	for _, missing := range []string{filepath.Join(t.TempDir(), "none.yaml"), t.TempDir()} {
		if _, err := rehearsal.LoadFake(missing, ""); errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: status %d of %v", missing, errhint.CodeOf(err), err)
		}
	}
}

// References to references grow a document of 20 lines to 10^19 values for a reader that expands them.
func TestSpecWithReferenceBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("version: 1\ndefaults:\n  count: 1\n  numa: &a0 [0]\n")
	for i := range 20 {
		fmt.Fprintf(&b, "  k%d: &a%d [%s]\n", i, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 9), ","))
	}
	start := time.Now()
	_, err := rehearsal.ReadSpec(strings.NewReader(b.String()))
	if err == nil || !strings.Contains(err.Error(), "line 5: defaults: unknown key \"k0\"") || time.Since(start) > time.Minute {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// TestSpecWithManyReferences: what a reference names is read wherever it is used, and counted each time.
func TestSpecWithManyReferences(t *testing.T) {
	list := func(item string, times int) string { return "[" + strings.Repeat(item+",", times-1) + item + "]" }
	names := "[&f {kind: unreachable, peers: " + list("b", 10000) + "}, " + strings.Repeat("*f,", 999) + "]"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := rehearsal.ReadSpec(strings.NewReader("version: 1\ndefaults: {count: 0}\nnodes:\n  b: {}\n  a:\n    faults: &l " + names +
		"\n  c: {faults: *l}\n"))
	if want := "line 6: nodes.a.faults.unreachable.peers: more than 100000 items and keys have been read, what an alias stands for each " +
		"time that it is used"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 200 {
		t.Errorf("%d MiB were allocated", took)
	}
	// Problems of which only a few are told are not all kept.
	text := "version: 1\ndefaults: {count: 0, faults: &l " + list("{kind: x}", 1000) + "}\nnodes:\n"
	for i := range 40 {
		text += fmt.Sprintf("  n%d: {faults: *l}\n", i)
	}
	if _, err := rehearsal.ReadSpec(strings.NewReader(text)); err == nil || !strings.HasSuffix(err.Error(), "\n  and 40990 more") {
		t.Errorf("%v", err)
	}
	// 37 items besides those of the last list, and nine lists of 10000.
	for n, ok := range map[int]bool{100_000 - 90_037: true, 100_000 - 90_036: false} {
		text := "version: 1\ndefaults: {count: 0}\nnodes:\n  b: {}\n  a: {faults: [{kind: unreachable, peers: &p " +
			list("b", 10000) + "}, " +
			strings.Repeat("{kind: unreachable, peers: *p}, ", 8) + "{kind: unreachable, peers: " + list("b", n) + "}]}\n"
		if _, err := rehearsal.ReadSpec(strings.NewReader(text)); (err == nil) != ok {
			t.Errorf("%d peers: %v", n, err)
		}
	}
}

func FuzzReadSpec(f *testing.F) {
	for _, dir := range []string{"good", "malformed"} {
		files, err := filepath.Glob(filepath.Join(testdata, dir, "*"))
		if err != nil || len(files) == 0 {
			f.Fatalf("%d files, %v", len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := rehearsal.ReadSpec(strings.NewReader(text))
		if err != nil && strings.TrimSpace(err.Error()) == "" {
			t.Error("an error without a word")
		}
	})
}
