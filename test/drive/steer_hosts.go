package drive

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/cmd/console"
	"muster/internal/testutil"
	"muster/launch/control"
	"muster/launch/report"
)

// RunOn runs muster on a host, with input, until its end.
func RunOn(t *testing.T, h *testutil.Host, stdin string, args ...string) Outcome {
	t.Helper()
	c := h.Command("muster", args...)
	c.Env = append(append(CleanEnviron(), h.Environ()...), console.FormatVariable+"=text")
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	began := time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	status := c.Status()
	return Outcome{status, out.String(), errs.String(), time.Since(began)}
}

// StatusOn is what muster status says on a host.
func StatusOn(t *testing.T, h *testutil.Host) (a control.Answer) {
	t.Helper()
	if got := RunOn(t, h, "", "status", "-o", "json"); got.Status == 0 {
		if err := json.Unmarshal([]byte(got.Stdout), &a); err != nil {
			t.Fatalf("%v:\n%s", err, got.Stdout)
		}
	}
	return a
}

// UntilRanksOn waits until so many ranks run, as a host knows it, and returns the hosts' names by rank.
func UntilRanksOn(t *testing.T, h *testutil.Host, n int) (on []string) {
	t.Helper()
	testutil.Eventually(t, time.Minute, fmt.Sprintf("%d ranks run", n), func() bool {
		a := StatusOn(t, h)
		on = make([]string, n)
		for _, r := range a.Ranks {
			if r.Phase == report.PhaseRunning && r.Rank < n {
				on[r.Rank] = r.Node
			}
		}
		return a.Phase == report.PhaseRunning && !slices.Contains(on, "")
	})
	return on
}

// RunsOn reports whether a process with an argument runs on a host.
func RunsOn(h *testutil.Host, arg string) bool {
	return slices.ContainsFunc(h.Processes(), func(p testutil.Process) bool { return slices.Contains(p.Args, arg) })
}
