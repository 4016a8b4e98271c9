package check

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/internal/errhint"
)

func gpu(n int) Subject { return Subject{GPU: &n, BusID: "0000:1b:00.0"} }

// TestJudge is what a policy makes of results: of the worst of them is the node.
func TestJudge(t *testing.T) {
	warn := Result{ID: "pcie-width", Subject: gpu(3), Status: Warn, Reason: "8 of 16 lanes", Source: "L0"}
	fail := Result{ID: "shm-writable", Status: Fail, Reason: "read-only", Source: "L0"}
	skip := Result{ID: "disk-space", Status: Skip, Reason: "kmsg-unreadable", Source: "log"}
	pass := Result{ID: "memlock", Status: Pass, Source: "L0"}
	for name, c := range map[string]struct {
		policy  Policy
		results []Result
		want    Status
	}{
		"nothing":                   {Policy{}, nil, Pass},
		"passed":                    {Policy{}, []Result{pass}, Pass},
		"a warning":                 {Policy{}, []Result{pass, warn}, Warn},
		"a failure":                 {Policy{}, []Result{fail, warn, pass}, Fail},
		"strict":                    {Policy{Strict: true}, []Result{warn}, Fail},
		"skipped":                   {Policy{}, []Result{skip}, Pass},
		"skipped, warn":             {Policy{OnSkip: Warn}, []Result{skip}, Warn},
		"skipped, fail":             {Policy{OnSkip: Fail}, []Result{skip}, Fail},
		"skipped, warn and strict":  {Policy{OnSkip: Warn, Strict: true}, []Result{skip}, Fail},
		"a status of its own":       {Policy{Status: map[string]Status{"pcie-width": Fail}}, []Result{warn}, Fail},
		"no status for what passed": {Policy{Status: map[string]Status{"memlock": Fail}}, []Result{pass}, Pass},
		"milder":                    {Policy{Status: map[string]Status{"shm-writable": Warn}}, []Result{fail}, Warn},
		"milder, strict":            {Policy{Status: map[string]Status{"shm-writable": Warn}, Strict: true}, []Result{fail}, Fail},
		"waived":                    {Policy{Waive: []Waiver{{ID: "shm-writable", GPU: -1}}, Strict: true}, []Result{fail}, Pass},
		"waived here":               {Policy{Waive: []Waiver{{ID: "pcie-width", Node: "node-1", GPU: 3}}}, []Result{warn}, Pass},
		"waived on another GPU":     {Policy{Waive: []Waiver{{ID: "pcie-width", Node: "node-1", GPU: 2}}}, []Result{warn}, Warn},
		"waived on another node":    {Policy{Waive: []Waiver{{ID: "pcie-width", Node: "node-2", GPU: -1}}}, []Result{warn}, Warn},
	} {
		t.Run(name, func(t *testing.T) {
			if r := c.policy.Judge("node-1", c.results); r.Status != c.want {
				t.Errorf("%v, want %v: %+v", r.Status, c.want, r)
			}
		})
	}
}

// TestReportText is what people read, and JSON what programs do.
func TestReportText(t *testing.T) {
	p := Policy{Waive: []Waiver{{ID: "memlock", GPU: -1}}}
	r := p.Judge("node-1", []Result{
		{ID: "shm-size", Status: Pass, Source: "L0"},
		{ID: "disk-space", Status: Skip, Reason: "the kernel log cannot be read", Source: "log"},
		{ID: "pcie-width", Subject: gpu(3), Status: Warn, Reason: "8 of 16 lanes", Source: "L0"},
		{ID: "memlock", Status: Warn, Reason: "64 KiB", Source: "L0"},
		{ID: "shm-writable", Status: Fail, Reason: "read-only", Try: "--ipc=host", Source: "L0"},
	})
	var out bytes.Buffer
	if err := r.Write(&out, false); err != nil {
		t.Fatal(err)
	}
	want := `FAIL  shm-writable                        read-only; try: --ipc=host
WARN  pcie-width    gpu 3 (0000:1b:00.0)  8 of 16 lanes
SKIP  disk-space                          the kernel log cannot be read
PASS  memlock                             64 KiB (waived)
node-1: FAIL: 2 passed, 1 warned, 1 failed, 1 skipped
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Error(diff)
	}
}

func TestLoadPolicy(t *testing.T) {
	load := func(text string) (Policy, error) {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return LoadPolicy(path)
	}
	got, err := load("strict: true\non-skip: warn\nstatus: {pcie-width: fail, memlock: PASS}\nwaive: [gpu-lost@node-1:2, disk-space]\n" +
		"limits: {remap-many: 256}\nxids: {109: PASS, 63: fail}\nremap-models: [H100]\necc-models: []\n")
	if err != nil {
		t.Fatal(err)
	}
	want := Policy{
		Strict: true, OnSkip: Warn, Status: map[string]Status{"pcie-width": Fail, "memlock": Pass},
		Waive:  []Waiver{{"gpu-lost", "node-1", 2}, {"disk-space", "", -1}},
		Limits: map[string]int64{"remap-many": 256}, XIDs: map[int]Status{109: Pass, 63: Fail}, RemapModels: []string{"H100"},
		ECCModels: []string{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := load(""); err != nil {
		t.Errorf("an empty file: %v", err)
	}
	for text, words := range map[string]string{
		"strikt: true":               `line 1: unknown key "strikt" (known: strict,`,
		"strict: 7":                  "line 1: strict: true or false",
		"on-skip: perhaps":           `line 1: on-skip: "perhaps" is not ignore, warn or fail`,
		"\nstatus: {pcie: FAIL}":     `line 2: there is no check "pcie"`,
		"status: {disk-space: skip}": `line 1: disk-space: "skip" is not PASS, WARN or FAIL`,
		"waive: [memlock@]":          "the name of the node is missing",
		"waive: [memlock@n:x]":       `"x" is no index of a GPU`,
		"waive: [nothing]":           `line 1: cannot waive "nothing": there is no check "nothing"`,
		"[1]":                        "line 1: a policy is a mapping",
		"waive: all":                 "line 1: waive: a list of checks",
		"status: [1]":                "line 1: status: a mapping",
		"[1, 2":                      "cannot use the check policy",
		"limits: {memlock: 3}":       `line 1: the check "memlock" has no limit`,
		"limits: {nothing: 3}":       `line 1: there is no check "nothing"`,
		"limits: {gpu-busy: -3}":     `line 1: gpu-busy: "-3" is no whole number of MiB`,
		"limits: 3":                  "line 1: limits: a mapping",
		"xids: {x: FAIL}":            `line 1: xids: "x" is no error number`,
		"xids: {79: perhaps}":        `line 1: 79: "perhaps" is not PASS, WARN or FAIL`,
		"ecc-models: H100":           "line 1: ecc-models: a list",
		"remap-models: [[H100]]":     "line 1: remap-models: a part of",
		"strict: true\nstrict: true": `line 2: the key "strict" is given twice (first on line 1)`,
		strings.Repeat("#", 2<<20):   "limit of 1048576 bytes",
	} {
		_, err := load(text)
		if err == nil || !strings.Contains(err.Error(), words) || errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	if _, err := LoadPolicy("no-such-file"); errhint.CodeOf(err) != errhint.Usage {
		t.Error(err)
	}
}

func TestLimit(t *testing.T) {
	var p Policy
	if got := p.Limit("remap-many"); got != 512 {
		t.Errorf("%d by default", got)
	}
	if err := p.ParseLimit("remap-many=7"); err != nil || p.Limit("remap-many") != 7 || p.Limit("gpu-busy") != 1024 {
		t.Errorf("%v, %+v", err, p)
	}
	for text, words := range map[string]string{
		"remap-many": "CHECK=NUMBER", "memlock=1": "has no limit", "none=1": "no check",
		"gpu-busy=much": "MiB",
	} {
		if err := p.ParseLimit(text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Where there is no GPU most checks are skipped for the same reason, and one line has them all.
func TestSkippedTogether(t *testing.T) {
	var p Policy
	r := p.Judge("node-1", []Result{
		{ID: "ecc-off", Status: Skip, Reason: "no GPU"},
		{ID: "memlock", Status: Skip, Reason: "no RDMA"},
		{ID: "xid", Status: Skip, Reason: "no GPU"},
		{ID: "gpu-busy", Subject: gpu(1), Status: Skip, Reason: "no GPU"},
	})
	var out bytes.Buffer
	if err := r.Write(&out, false); err != nil {
		t.Fatal(err)
	}
	want := `SKIP  2 checks                        no GPU: ecc-off, xid
SKIP  memlock                         no RDMA
SKIP  gpu-busy  gpu 1 (0000:1b:00.0)  no GPU
node-1: PASS: 0 passed, 0 warned, 0 failed, 4 skipped
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestIDs: every check has a name of its own, a known scope, and a text.
func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range IDs() {
		if seen[id.Name] || id.Text == "" || id.Default <= Pass || !strings.Contains(" gpu pair node edge ", " "+id.Scope+" ") {
			t.Errorf("%+v", id)
		}
		seen[id.Name] = true
	}
}
