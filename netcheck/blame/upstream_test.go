package blame_test

import (
	"fmt"
	"strings"
	"testing"

	"muster/internal/testutil"
	"muster/netcheck/blame/blamesim"
)

// TestUpstream compares our rule with DLRover's, over all sets of one to three bad nodes with two healthy ones or more.
// It logs the table of docs/network-check.md. The figures wanted of upstream are those of dlrover.md 2.9, found there
// with another program.
func TestUpstream(t *testing.T) {
	testutil.Long(t)
	want := map[[2]int]string{
		{4, 1}: "0 %", {5, 1}: "40 %", {6, 1}: "0 %", {7, 1}: "0 %", {8, 1}: "0 %", {9, 1}: "0 %",
		{4, 2}: "33 %", {5, 2}: "70 %", {6, 2}: "80 %", {7, 2}: "76 %", {8, 2}: "0 %", {9, 2}: "50 %",
		{12, 2}: "0 %", {16, 2}: "0 %", {32, 2}: "0 %", {33, 2}: "0 %",
		{8, 3}: "29 %", {9, 3}: "74 %", {12, 3}: "0 %", {16, 3}: "0 %", {32, 3}: "0 %", {33, 3}: "0 %",
	}
	var table strings.Builder
	for _, n := range []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 32, 33} {
		for k := 1; k <= min(3, n-2); k++ {
			ours, theirs, err := blamesim.Compare(n, k)
			if err != nil {
				t.Fatal(err)
			}
			percent := func(s *blamesim.Score, n int) string { return fmt.Sprintf("%.0f %%", s.Percent(n)) }
			got := percent(&theirs, theirs.Healthy)
			if figure, known := want[[2]int{n, k}]; known && figure != got {
				t.Errorf("%d of %d nodes bad: upstream blames a healthy one in %s of the sets, want %s", k, n, got, figure)
			}
			if ours.Healthy > 0 || ours.Found < ours.Worlds {
				t.Errorf("%d of %d nodes bad: we blame a healthy one in %d of %d sets, and find all bad ones in %d", k, n, ours.Healthy,
					ours.Worlds, ours.Found)
			}
			fmt.Fprintf(&table, "| %d | %d | %d | %s | %s | %s | %s | %d | %d |\n", n, k, ours.Worlds, got, percent(&ours, ours.Healthy),
				percent(&theirs, theirs.Found), percent(&ours, ours.Found), theirs.Rounds, ours.Rounds)
		}
	}
	t.Logf("\n| nodes | bad | sets | healthy blamed: DLRover | muster | all bad found: DLRover | muster | rounds: DLRover | muster |\n%s",
		table.String())
}
