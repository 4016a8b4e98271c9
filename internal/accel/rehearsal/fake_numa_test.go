package rehearsal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/accel/rehearsal"
)

// A fake whose GPUs lie on nodes that the machine has not deals the machine's cores among these nodes.
func TestFakeNodes(t *testing.T) {
	laptop := numaTree{
		Nodes: map[int]string{0: "0-7"}, Cores: []string{"0-1", "2-3", "4-5", "6-7"}, Caches: []string{"0-7"},
	}.Files(t)
	for _, c := range []struct {
		name, numa string
		machine    tree
		allowed    string
		mode       accel.BindMode
		want       string
	}{
		{"the machine's own nodes", "[0, 0, -1]", laptop, "0-7", "node", "0-7 0-7 0-7"},
		{"two nodes", "[0, 0, 1, 1]", laptop, "0-7", "node", "0-3 0-3 4-7 4-7"},
		{"two nodes, exclusive", "[0, 0, 1, 1]", laptop, "0-7", "exclusive", "0-1 2-3 4-5 6-7"},
		{"a node by another number", "[5]", laptop, "1-4", "node", "1-4"},
		{"cores are not torn", "[0, 1, 2]", laptop, "0-7", "node", "0-1 2-3 4-7"},
		{"more nodes than cores", "[0, 1, 2]", laptop, "0-3", "node", "0-1 2-3 0-1"},
		{"one socket", "[0, 1]", laptop, "0-7", "socket", "0-7 0-7"},
		{"a machine that tells nothing", "[0, 1]", tree{}, "0-1", "node", "0 1"},
		{"a real machine of two nodes", "[1, 3]", duo.Files(t), "0-15", "node", "2-3,10-11 6-7,14-15"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "spec.yaml")
			spec := fmt.Sprintf("version: 1\ndefaults: {count: %d, numa: %s}\n", strings.Count(c.numa, ",")+1, c.numa)
			if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
				t.Fatal(err)
			}
			fake, err := rehearsal.LoadFake(file, "")
			if err != nil {
				t.Fatal(err)
			}
			machine := boundRoot{Root: c.machine.Root(), Allowed: list(t, c.allowed)}
			inv := fake.Detect(machine, env())
			bound, err := accel.Bind(fake.Root(machine), inv, c.mode, inv.VisibleCount)
			var got []string
			for _, cpus := range bound.CPUs {
				got = append(got, accel.FormatList(cpus))
			}
			if d := cmp.Diff(strings.Fields(c.want), got); d != "" || err != nil {
				t.Errorf("%v (-want +got)\n%s", err, d)
			}
		})
	}
}
