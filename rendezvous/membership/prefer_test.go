package membership

import (
	"slices"
	"testing"
)

func TestPreferred(t *testing.T) {
	for name, c := range map[string]struct {
		order, wanted, kept, want []int
	}{
		"nobody asks":                  {[]int{2, 0, 1}, []int{-1, -1, -1}, nil, []int{2, 0, 1}},
		"all ask":                      {[]int{2, 0, 1}, []int{0, 1, 2}, nil, []int{0, 1, 2}},
		"one asks":                     {[]int{2, 0, 1}, []int{-1, 0, -1}, nil, []int{1, 2, 0}},
		"two ask for the same":         {[]int{2, 0, 1}, []int{0, 0, 1}, nil, []int{0, 2, 1}},
		"there is no such rank":        {[]int{1, 0}, []int{7, 0}, nil, []int{1, 0}},
		"a survivor keeps its rank":    {[]int{0, 1}, []int{-1, 0}, []int{0}, []int{0, 1}},
		"a survivor asks for another":  {[]int{0, 1, 2}, []int{2, 0, 1}, []int{0}, []int{0, 2, 1}},
		"survivors with the same wish": {[]int{0, 1}, []int{1, 1}, []int{0, 1}, []int{0, 1}},
	} {
		got := preferred(c.order, c.wanted, func(_, i int) bool { return slices.Contains(c.kept, i) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
