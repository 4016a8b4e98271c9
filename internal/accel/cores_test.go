package accel_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/errhint"
)

func TestShareCPUs(t *testing.T) {
	files := numaTree{
		Nodes: map[int]string{0: "0-3,8-11", 1: "4-7,12-15", 2: ""},
		Cores: []string{"0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"},
	}.Files(t)
	for _, c := range []struct {
		allowed, list string
		workers       int
		want          []string // of each worker
	}{
		{"0-15", "", 2, []string{"0-3", "4-7"}},
		{"0-15", "", 3, []string{"0-1", "2-3", "4-5"}},
		{"2,8-12", "", 2, []string{"8-9", "2,11"}}, // one of each core that may be used
		{"0-15", "1,3-5,8", 2, []string{"1,3", "4-5"}},
		{"0-15", "7", 1, []string{"7"}},
		{"0-15", "1-3", 4, nil},
		{"0-3", "2-4", 1, nil},
		{"0-1", "", 3, nil},
		{"0-15", "x", 1, nil},
	} {
		got, err := accel.ShareCPUs(boundRoot{Root: files.Root(), Allowed: list(t, c.allowed)}, c.list, c.workers)
		if c.want == nil {
			if errhint.CodeOf(err) != errhint.Usage || err == nil {
				t.Errorf("%+v: %v, %v", c, got, err)
			}
			continue
		}
		var texts []string
		for _, cpus := range got {
			texts = append(texts, accel.FormatList(cpus))
		}
		if diff := cmp.Diff(c.want, texts); err != nil || diff != "" {
			t.Errorf("%+v: %v (-want +got)\n%s", c, err, diff)
		}
	}
}

func TestNUMANodes(t *testing.T) {
	for want, nodes := range map[int]map[int]string{1: {0: "0-3"}, 2: {0: "0-1", 1: "2-3", 2: ""}} {
		if n, why, err := accel.NUMANodes(numaTree{Nodes: nodes}.Files(t).Root()); n != want || err != nil {
			t.Errorf("%v: %d (%s), %v", nodes, n, why, err)
		}
	}
	if n, _, err := accel.NUMANodes(tree{}.Root()); n != 1 || err != nil {
		t.Errorf("a machine without NUMA: %d, %v", n, err)
	}
}
