package rehearsal

import (
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"

	"muster/internal/lazyregexp"
	"muster/internal/wording"
)

// migProfile is the name of a GPU instance with one compute instance in it, such as 1g.10gb: slices of the GPU and
// memory.
var migProfile = lazyregexp.New(`^([1-7])g\.[1-9]\d{0,2}gb(\+me)?$`)

// migSlices is how many slices a GPU has.
const migSlices = 7

// mig reads the instances of each GPU that is divided: {0: [1g.10gb, 2g.20gb]}.
func (r *specReader) mig(n *yaml.Node, where string, count int) map[int][]string {
	where += ".mig"
	divided := map[int][]string{}
	for _, e := range r.entries(n, where) {
		gpu, err := strconv.Atoi(e.key)
		if err != nil || strconv.Itoa(gpu) != e.key || gpu < 0 || gpu >= count {
			r.add(e.line, "%s: %s is none of %s, which are numbered from 0", where, quote(e.key), wording.Plural(count, "GPU"))
			continue
		}
		at := fmt.Sprintf("%s.%d", where, gpu)
		slices, before := 0, r.found
		var profiles []string
		for i, item := range r.sequence(e.value, at, migSlices) {
			profile := r.formed(item, fmt.Sprintf("%s[%d]", at, i), migProfile, "a profile such as 1g.10gb")
			if form := migProfile().FindStringSubmatch(profile); form != nil {
				own, _ := strconv.Atoi(form[1]) // one digit
				slices += own
			}
			profiles = append(profiles, profile)
		}
		switch {
		case slices > migSlices:
			r.add(e.line, "%s takes %d slices, and a GPU has %d", at, slices, migSlices)
		case profiles == nil && r.found == before:
			r.add(e.line, "%s names no instance: leave out GPUs that are not divided", at)
		}
		divided[gpu] = profiles
	}
	return divided
}

// The numbers of MIG's device nodes as the driver gives them (/proc/driver/nvidia-caps/mig-minors): 0 to 2 are of the
// whole machine, and each GPU has room for 15 instances with a node of their own and 8 compute instances each.
const (
	migFirst    = 3
	migInstance = 1 + 8
	migGPU      = 15 * migInstance
)

// migFiles writes the instances of GPU i and their device nodes, which are for reading only.
func (f *Fake) migFiles(t fakeTree, i int) {
	for k := range f.spec.mig[i] {
		gi := k + 1 // instance 0 is the whole GPU
		dir := fmt.Sprintf("%s/gpu%d/mig/gi%d", nvidiaCapabilities, i, gi)
		minor := migFirst + i*migGPU + gi*migInstance
		t.put(dir+"/access", fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor))
		t.put(dir+"/ci0/access", fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor+1))
		for _, n := range []int{minor, minor + 1} {
			t.node(fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", n), 0o444)
		}
	}
}
