package mixed

import (
	"fmt"
	"math"
	"testing"
)

// Ranks that cannot be are refused, also those that are so large that sums of them begin anew.
func TestImpossibleRanks(t *testing.T) {
	for text, fits := range map[string]bool{
		"[0, 4, 0, 4]": true, "[2, 4, 0, 2]": true,
		"[3, 4, 0, 2]": false, "[-1, 4, 0, 4]": false, "[0, 4, 0, 5]": false, "[0, 4]": false, "{}": false,
		fmt.Sprintf("[%d, 4, 0, 4]", math.MaxInt): false, fmt.Sprintf("[0, 4, %d, 4]", math.MaxInt): false,
		fmt.Sprintf("[0, %d, 0, 4]", math.MaxInt): false, "[0, 4, 0, 4, 5]": false,
	} {
		if v, err := readRanks([]byte(text), 2); (err == nil) != fits {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
}

func FuzzWords(f *testing.F) {
	f.Add([]byte("[0, 4, 0, 4]"))
	f.Add([]byte(`{"role":"default","rank":1,"local_world_size":2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if v, err := readRanks(text, 2); err == nil && (v[0] < 0 || v[0]+2 > v[1] || v[2] < 0 || v[2]+2 > v[3] || v[3] > v[1]) {
			t.Errorf("%q: %v", text, v)
		}
		if b, err := readBrings(text); err == nil && (b.Local < 1 || b.Local > maxLocal) {
			t.Errorf("%q: %+v", text, b)
		}
	})
}
