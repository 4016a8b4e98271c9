package netcheck_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/netcheck"
	"muster/rendezvous/memstore"
)

// TestHostilePlans feeds a node plans that no leader makes: they are refused, and nothing is done for them.
func TestHostilePlans(t *testing.T) {
	for _, text := range []string{
		"", "{", "[]", `{"stage":"verdict"}`, `{"stage":"pairs","pairs":[[1,-1]],"devices":[1,1]}`,
		`{"stage":"pairs","pairs":[[1,7]],"devices":[1,1]}`,
		`{"stage":"verdict","verdict":{"nodes":[]}}`, `{"stage":"verdict","verdict":{"nodes":[{},{}],"links":[{"a":0,"b":9}]}}`,
		`{"stage":"verdict","verdict":{"nodes":[{},{}],"stragglers":[{"node":-1}]}}`,
		`{"stage":"local","nodes":[1],"verdict":{"nodes":[{},{}]}}`,
		`{"stage":"local","nodes":[2]}`, `{"stage":"` + strings.Repeat("x", 9<<20),
	} {
		t.Run(fmt.Sprintf("%.60s", text), func(t *testing.T) {
			space := memstore.NewSpace()
			if err := space.Client().Set(t.Context(), "plan/0", []byte(text)); err != nil && len(text) < 1<<20 {
				t.Fatal(err)
			}
			c := netcheck.New(netcheck.Config{Node: "n1", Addr: "n1", Devices: 1, Rules: netcheck.Rules{Network: true}, Log: zerolog.Nop()})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			r, err := c.Check(ctx,
				netcheck.Round{Board: space.Client(), Rank: 1, Size: 2, Open: func(context.Context) (netcheck.Program, error) {
					t.Error("the check program was started")
					return nil, fmt.Errorf("no")
				}})
			if err == nil || r != nil {
				t.Errorf("taken: %+v", r)
			}
		})
	}
}
