package checkpointd

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// oneWord is a board on which there is one text.
type oneWord string

func (s oneWord) Get(context.Context, string) ([]byte, error) { return []byte(s), nil }
func (oneWord) Set(context.Context, string, []byte) error     { return nil }

// A node that has the token and says what no node can is refused, before anything is made of it.
func TestWordsOnTheBoard(t *testing.T) {
	for text, why := range map[string]string{
		`{"lineage":1700000000000000000,"left":[5],"round":7,` +
			`"heads":{"abc1":{"era":5,"step":3},"step 17":{"era":0,"step":-1}},"node":"n","dir":"/d"}`: "",
		`{}`:                             "",
		`{"lineage":-1}`:                 "before 1970",
		`{"left":[-1]}`:                  "before 1970",
		`{"round":18446744073709551615}`: "round 18446744073709551615",
		`{"heads":{"../x":{"step":1}}}`:  "no tracker names",
		`{"heads":{"a":{"step":-7}}}`:    "no step -7",
		`{"node":"` + strings.Repeat("x", textMost+1) + `"}`: "the limit is",
		`[]`: "cannot unmarshal",
	} {
		var n nodeState
		if err := hear(t.Context(), oneWord(text), "key", &n); (err == nil) != (why == "") || err != nil &&
			!strings.Contains(err.Error(), why) {
			t.Errorf("%.60s: %v", text, err)
		}
	}
	for text, why := range map[string]string{
		`{"addr":"127.0.0.1:1/aaaaaaaaaaaaaaaa","lineage":5,"era":1099511627776,"heads":{"abc1":{"era":5,"step":3}}}`: "",
		`{"addr":"a"}`:                  "lineage 0",
		`{"lineage":1,"heads":{"":{}}}`: "no tracker names",
		`{"lineage":1,"apart":"` + strings.Repeat("x", textMost+1) + `"}`: "the limit is",
	} {
		var call roundCall
		if err := hear(t.Context(), oneWord(text), "key", &call); (err == nil) != (why == "") || err != nil &&
			!strings.Contains(err.Error(), why) {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

// FuzzWord: what another node says when a round begins leads to eras that only grow, whatever it is.
func FuzzWord(f *testing.F) {
	f.Add(`{"lineage":1700000000000000000,"left":[5],"round":7,"heads":{"abc1":{"era":5,"step":3}},"node":"n","dir":"/d"}`)
	f.Add(`{"addr":"127.0.0.1:1/aaaaaaaaaaaaaaaa","lineage":5,"era":1099511627776,"heads":{"step 3":{"era":5,"step":3}},"apart":"x"}`)
	f.Add(fmt.Sprintf(`{"round":%d}`, uint64(roundLast)))
	f.Fuzz(func(t *testing.T, text string) {
		var n nodeState
		if readWord([]byte(text), &n) == nil {
			own := nodeState{Round: 3}
			lineage, era, _ := decide([]nodeState{own, n}, time.Now(), 1)
			if era>>roundShift <= max(own.Round, n.Round) || lineage < 1 {
				t.Errorf("era %d of lineage %d behind round %d", era, lineage, n.Round)
			}
			apart([]nodeState{own, n})
		}
		var call roundCall
		_ = readWord([]byte(text), &call)
	})
}
