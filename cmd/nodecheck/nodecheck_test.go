package nodecheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"muster/internal/check"
	"muster/internal/errhint"
)

// TestPolicy: flags add to what the file of a policy says, and never take back.
func TestPolicy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("strict: true\non-skip: fail\nwaive: [gpu-node]\nlimits: {open-files: 7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := Config{Policy: file, OnSkip: "warn", Waive: []string{"shm-size@n1:2"}, Limits: []string{"open-files=9"}}
	p, err := f.policy()
	if err != nil || !p.Strict || len(p.Waive) != 2 || p.Limits["open-files"] != 9 {
		t.Errorf("%+v %v", p, err)
	}
	if onSkip, err := check.ParseOnSkip("fail"); err != nil || p.OnSkip != onSkip {
		t.Errorf("on-skip is %v, %v", p.OnSkip, err)
	}
	for want, f := range map[string]Config{
		"--on-skip":    {OnSkip: "never"},
		"--waive":      {OnSkip: "warn", Waive: []string{"no-such-check"}},
		"--limit":      {OnSkip: "warn", Limits: []string{"open-files"}},
		"no such file": {OnSkip: "warn", Policy: file + ".absent"},
		"gpu-nodee":    {OnSkip: "warn", Waive: []string{"gpu-nodee"}},
	} {
		if _, err := f.policy(); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestLinkRules: how many pairs are needed cannot be more than there are, and nothing is given for a test that is not made.
func TestLinkRules(t *testing.T) {
	t.Parallel()
	none := func(string) bool { return false }
	all := func(string) bool { return true }
	f := Links{On: true, Pairs: []string{"0:1,2:4", "5:3"}, MinBandwidth: 5, MinChannels: 3, Given: none}
	if r, err := f.rules(); err != nil || len(r.Pairs) != 3 || r.Pairs[1] != [2]int{2, 4} || r.MinChannels != 3 || r.MinBandwidth != 5 {
		t.Errorf("%+v %v", r, err)
	}
	for want, f := range map[string]Links{
		"--box-pairs:":                 {Pairs: []string{"0:x"}, Given: none},
		"has 1 of the 2 pairs":         {Pairs: []string{"0:1"}, MinChannels: 2, Given: none},
		"from 0 to the number of pair": {Pairs: []string{"0:1"}, MinChannels: 2, Given: all},
		"not below 0":                  {Pairs: []string{"0:1"}, MinBandwidth: -1, Given: none},
	} {
		if _, err := f.rules(); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := (&Links{Given: all}).Needed(); errhint.CodeOf(err) != errhint.Usage ||
		!strings.Contains(errhint.Of(err), "--switchbox-check") {
		t.Error(err)
	}
	if err := (&Links{Given: none}).Needed(); err != nil {
		t.Error(err)
	}
}
