package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChooseFigures(t *testing.T) {
	table := []figure{{name: "a"}, {name: "b"}, {name: "c"}}
	for only, want := range map[string][]string{"": {"a", "b", "c"}, "b": {"b"}, "c,a": {"a", "c"}, "a,x": nil, ",": nil} {
		got, err := choose(table, only)
		var names []string
		for _, f := range got {
			names = append(names, f.name)
		}
		if diff := cmp.Diff(want, names); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%q: error %v, figures (-want +got):\n%s", only, err, diff)
		}
	}
}
