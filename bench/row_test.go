package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTableShowsVerdictsAndNotes(t *testing.T) {
	noted := compare("start", "ms", 12.34, 1234, "≤ 1/50", ratioAtMost(1.0/50))
	noted.Note = "first run 2600 ms"
	rows := []row{
		noted,
		compare("pipe", "MB/s", 300, 100, "≥ 5 ×", func(_, ratio float64) bool { return ratio >= 5 }),
		compare("jobs", "%", 100, 0, "all", func(ours, _ float64) bool { return ours == 100 }),
		{Figure: "size", Ours: 7.5, Unit: "MB", Budget: "≤ 10 MB", Pass: true},
		{Figure: "lost", Ours: 2.5, Unit: "s", PeerText: "> 30 s", Budget: "≤ 10 s", Pass: true},
		{Figure: "crowd", Unit: "s", Budget: "≤ 1 ×", Skip: "too few descriptors"},
	}
	var out bytes.Buffer
	if err := printTable(&out, rows); err != nil {
		t.Fatal(err)
	}
	want := `figure  ours      peer      ratio   budget   verdict
start   12.3 ms   1234 ms   1/100   ≤ 1/50   PASS
pipe    300 MB/s  100 MB/s  3.00 ×  ≥ 5 ×    FAIL
jobs    100 %     0 %       –       all      PASS
size    7.5 MB    –         –       ≤ 10 MB  PASS
lost    2.5 s     > 30 s    –       ≤ 10 s   PASS
crowd   –         –         –       ≤ 1 ×    SKIP
start: first run 2600 ms
crowd: not measured: too few descriptors
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestOnlyWhatWasMeasuredMissesABudget(t *testing.T) {
	for want, r := range map[bool]row{true: {Pass: false}, false: {Pass: false, Skip: "no descriptors"}} {
		if got := r.missed(); got != want {
			t.Errorf("%+v: missed is %v, want %v", r, got, want)
		}
	}
	if (row{Pass: true}).missed() {
		t.Error("a row that passes misses its budget")
	}
}

func TestJSONHoldsEveryRow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "build", "bench.json")
	rows := []row{
		compare("start", "ms", 10, 1000, "≤ 1/50", ratioAtMost(1.0/50)),
		{Figure: "size", Ours: 7.5, Unit: "MB", Budget: "≤ 10 MB", Pass: true},
	}
	if err := writeJSON(path, thisMachine(), rows); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Rows []row }
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rows, got.Rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestMedianIgnoresOutliers(t *testing.T) {
	for want, values := range map[float64][]float64{3: {900, 3, 1}, 5: {5}, 2: {2, 1}} {
		if got := median(values); got != want {
			t.Errorf("median(%v) = %v, want %v", values, got, want)
		}
	}
}
