package probe_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unicode"

	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
)

const healthy = `{"t":"hello","v":1,"go_nvml":"0.13.3-0"}
{"t":"at","call":"nvmlInit_v2","gpu":-1}
{"t":"sys","driver":"550.54.15","nvml":"12.550.54.15","cuda":12040}
{"t":"count","n":2}
{"t":"at","call":"nvmlDeviceGetHandleByIndex_v2","gpu":0}
{"t":"gpu","i":0,"uuid":"GPU-0","bdf":"0000:1b:00.0","nvlink":[1,0,-1],"processes":[]}
{"t":"na","gpu":1,"field":"mig","why":"symbol"}
{"t":"gpu","i":1,"rc":15,"processes":null}
`

const reading = `{"t":"sample","ms":1000,"gpu":1,"pcie_replays":3}` + "\n"

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		out      string
		complete bool
		problem  string
		gpus     int
	}{
		"healthy":            {healthy + "{\"t\":\"done\"}\n", true, "", 2},
		"cut off":            {healthy, false, "ended early", 2},
		"cut off in the end": {healthy + `{"t":"done"}`, false, "ended early", 2},
		"unknown kind":       {healthy + "{\"t\":\"later\",\"x\":1}\n{\"t\":\"done\"}\n", true, "", 2},
		"unknown field":      {strings.Replace(healthy, `"i":0,`, `"i":0,"later":{"x":[]},`, 1) + "{\"t\":\"done\"}\n", true, "", 2},
		"readings":           {healthy + reading + reading + "{\"t\":\"done\"}\n", true, "", 2},
		"a reading of no GPU": {
			healthy + strings.Replace(reading, `"gpu":1`, `"gpu":2`, 1) + "{\"t\":\"done\"}\n", false,
			"not in its language", 2,
		},
		"endless readings": {healthy + strings.Repeat(reading, 65) + "{\"t\":\"done\"}\n", false, "not in its language", 2},
		"not JSON":         {healthy + "NVRM: bad\n{\"t\":\"done\"}\n", false, "not in its language (\"NVRM: bad\")", 2},
		"empty line":       {healthy + "\n{\"t\":\"done\"}\n", false, "not in its language", 2},
		"after the end":    {healthy + "{\"t\":\"done\"}\n{\"t\":\"count\",\"n\":3}\n", false, "not in its language", 2},
		"a GPU twice":      {strings.Replace(healthy, `"i":1`, `"i":0`, 1) + "{\"t\":\"done\"}\n", false, "not in its language", 1},
		"a GPU too many":   {strings.Replace(healthy, `"i":1`, `"i":2`, 1) + "{\"t\":\"done\"}\n", false, "not in its language", 1},
		"a GPU too few":    {strings.Replace(healthy, `"n":2`, `"n":3`, 1) + "{\"t\":\"done\"}\n", false, "described 2 of 3 GPUs", 2},
		"a number out of range": {
			strings.Replace(healthy, `"n":2`, `"n":1000000000`, 1) + "{\"t\":\"done\"}\n", false,
			"not in its language", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := probe.Parse([]byte(c.out))
			if err != nil {
				t.Fatal(err)
			}
			if r.Complete != c.complete || !strings.Contains(r.Problem, c.problem) || len(r.GPUs) != c.gpus ||
				(r.Culprit == nil) != c.complete {
				t.Errorf("complete %v, problem %q, culprit %v, %d GPUs", r.Complete, r.Problem, r.Culprit, len(r.GPUs))
			}
		})
	}
}

func TestNormalBDF(t *testing.T) {
	for in, want := range map[string]string{
		"00000000:1B:00.0": "0000:1b:00.0", "0000:1B:00.0": "0000:1b:00.0", "00010002:0A:00.0": "10002:0a:00.0",
		"00000001:AF:00.0": "0001:af:00.0", "": "", "AF:00.0": "af:00.0",
	} {
		if got := nvline.NormalBDF(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// The release that the probe says it has is the one that go.mod pins.
func TestGoNVMLVersion(t *testing.T) {
	b, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/NVIDIA/go-nvml v" + nvline.GoNVML + "\n"; !strings.Contains(string(b), want) {
		t.Errorf("go.mod does not say %q", want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(healthy))
	f.Add([]byte(healthy + "{\"t\":\"done\"}\n"))
	f.Add([]byte("{\"t\":\"hello\",\"v\":1}\n{\"t\":\"fatal\",\"call\":\"nvmlInit_v2\",\"rc\":18}\n{\"t\":\"done\"}\n"))
	f.Add([]byte("{\"t\":\"hello\",\"v\":1}\n{\"t\":\"at\",\"call\":\"\\u001b[2J\",\"gpu\":-7}\n"))
	f.Add([]byte("hello there"))
	f.Fuzz(func(t *testing.T, out []byte) {
		r, err := probe.Parse(out)
		if err != nil {
			if r != nil || strings.ContainsFunc(err.Error(), unicode.IsControl) || errors.Unwrap(err) == nil {
				t.Fatalf("%+v, %q", r, err)
			}
			return
		}
		if r.Complete == (r.Err() != nil) || r.Complete && (r.Culprit != nil || r.Fatal == nil && len(r.GPUs) != r.Count) {
			t.Fatalf("%+v", r)
		}
		texts := []string{r.Problem, r.GoNVML, r.Sys.Driver, r.Sys.NVML}
		if r.Culprit != nil {
			texts = append(texts, r.Culprit.String(), r.Err().Error())
		}
		if r.Fatal != nil {
			texts = append(texts, r.Fatal.String())
		}
		for _, g := range r.GPUs {
			if g.Index < 0 || g.Index >= r.Count {
				t.Fatalf("GPU %d of %d", g.Index, r.Count)
			}
			texts = append(texts, g.UUID, g.Name, g.BDF, g.Call)
		}
		for _, s := range texts {
			if len(s) > 2000 || strings.ContainsFunc(s, unicode.IsControl) {
				t.Fatalf("unfit for a terminal: %q", s)
			}
		}
	})
}
