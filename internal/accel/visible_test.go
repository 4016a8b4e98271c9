package accel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"muster/internal/accel"
	"muster/internal/testutil"
)

var fourGPUs = []string{"GPU-aa11-0000", "GPU-aa22-0000", "GPU-bb33-0000", "GPU-cc44-0000"}

func TestResolveCUDA(t *testing.T) {
	for _, c := range []struct {
		mask string
		want []int
	}{
		{"", nil},
		{"-1", nil},
		{"0", []int{0}},
		{"3,1", []int{3, 1}},
		{"0,-1,1", []int{0}},
		{"0,2,-1,1", []int{0, 2}},
		{"0,-1,0", []int{0}},
		{"0,0", nil},
		{"0,00", nil},
		{"7", nil},
		{"0,9,1", []int{0}},
		{"0,9,0", nil},
		{"0,1gpu2", []int{0, 1}},
		{"+1", []int{1}},
		{"-0", []int{0}},
		{"0x1", []int{0}},
		{" 1 ,\t2", []int{1, 2}},
		{"1,,2", []int{1}},
		{"٢,1", []int{2, 1}},
		{"0，1", []int{0}}, // a full-width comma separates nothing
		{"1,99999999999999999999999,2", []int{1}},
		{"99999999999999999999999,99999999999999999999999", nil},
		{"GPU-aa", nil},
		{"GPU-", nil},
		{"GPU-aa1", []int{0}},
		{"GPU-bb,GPU-aa2", []int{2, 1}},
		{"GPU-bb, GPU-cc", []int{2}},
		{"GPU-bb,GPU-bb", nil},
		{"GPU-bb,GPU-bb33", nil},
		{"GPU-bb,0,GPU-cc", []int{2}},
		{"GPU-bb,GPU-zz,GPU-cc", []int{2}},
		{"GPU-bb,GPU-aa,GPU-cc", []int{2}},
		{"0,GPU-bb", []int{0}},
		{" GPU-bb", nil},
		{"MIG-x,MIG-x", nil},
		{"all", nil},
		{"none", nil},
		{"void", nil},
		{"NoDevFiles", nil},
	} {
		t.Run(c.mask, func(t *testing.T) {
			got, err := accel.ResolveCUDA(c.mask, true, fourGPUs)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestResolveCUDAErrors(t *testing.T) {
	hidden := slices.Clone(fourGPUs)
	hidden[3] = ""
	for _, c := range []struct {
		mask  string
		uuids []string
		want  string
	}{
		{"+", fourGPUs, `cannot read CUDA_VISIBLE_DEVICES="+": element "+": a sign without a number`},
		{"0,-a", fourGPUs, `cannot read CUDA_VISIBLE_DEVICES="0,-a": element "-a": a sign without a number`},
		{"1²", fourGPUs, `cannot read CUDA_VISIBLE_DEVICES="1²": element "1²": '²' is no decimal digit`},
		{"MIG-x", fourGPUs, "cannot count the MIG instances that CUDA_VISIBLE_DEVICES names"},
		{"GPU-aa1", hidden, `cannot resolve CUDA_VISIBLE_DEVICES="GPU-aa1": the driver does not tell every GPU's UUID`},
	} {
		got, err := accel.ResolveCUDA(c.mask, true, c.uuids)
		if err == nil || err.Error() != c.want || len(got) != 0 {
			t.Errorf("%q: got %v, %v\nwant %s", c.mask, got, err, c.want)
		}
	}
}

func TestResolveCUDAUnset(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 200} {
		got, err := accel.ResolveCUDA("", false, make([]string, n))
		if err != nil || len(got) != min(n, 64) {
			t.Errorf("%d devices: got %d, %v", n, len(got), err)
		}
	}
}

// maskCase is one question to both implementations.
type maskCase struct {
	Mask  *string  `json:"mask"` // nil: not set
	UUIDs []string `json:"uuids"`
	// ROCm asks a ROCm build of PyTorch, for which these variables count too.
	ROCm bool    `json:"rocm"`
	HIP  *string `json:"hip"`
	ROCR *string `json:"rocr"`
}

// maskAnswer is what a process sees: device positions, or Ask (the CUDA library decides) or Bad (ValueError).
type maskAnswer struct {
	Shown []int `json:"shown"`
	Ask   bool  `json:"ask"`
	Bad   bool  `json:"bad"`
	Count int   `json:"count"` // of ROCm: all that is compared; -1 asks the HIP library
}

// torchMasks answers through the installed PyTorch's own functions, with NVML replaced by the case's devices.
const torchMasks = `
import json, os, sys
import torch
import torch.cuda as c
out = []
for case in json.load(sys.stdin):
    for key, name in ("mask", "CUDA"), ("hip", "HIP"), ("rocr", "ROCR"):
        os.environ.pop(name + "_VISIBLE_DEVICES", None)
        if case[key] is not None:
            os.environ[name + "_VISIBLE_DEVICES"] = case[key]
    uuids = case["uuids"] or []
    c._raw_device_count_nvml = c._raw_device_count_amdsmi = lambda: len(uuids)
    c._raw_device_uuid_nvml = lambda: uuids
    c._raw_device_uuid_amdsmi = lambda: None
    torch.version.hip = "7.0" if case["rocm"] else None
    try:
        if case["rocm"]:
            out.append({"count": c._device_count_amdsmi()})
            continue
        n = c._device_count_nvml()
        shown = []
        if n > 0:
            shown = c._parse_visible_devices()
            if isinstance(shown[0], str):
                shown = c._transform_uuid_to_ordinals(shown, uuids)
            assert len(shown) >= n, (case, shown, n)
        out.append({"shown": shown[:max(n, 0)], "ask": n < 0})
    except (ValueError, RuntimeError):
        out.append({"bad": True})
json.dump(out, sys.stdout)
`

func TestResolveCUDAAgreesWithPyTorch(t *testing.T) {
	python := testutil.Torch(t)
	cases := generatedMasks()
	in, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-c", torchMasks)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var want []maskAnswer
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	if len(want) != len(cases) {
		t.Fatalf("%d answers to %d questions", len(want), len(cases))
	}
	seen := map[string]int{}
	for i, c := range cases {
		if c.ROCm {
			got := maskAnswer{}
			var ask, bad bool
			if got.Count, ask, bad = accel.CountROCm(c.lookup, len(c.UUIDs)); ask {
				got.Count = -1
			}
			got.Bad = bad
			if fmt.Sprint(got) != fmt.Sprint(want[i]) {
				t.Errorf("%v on %d devices: got %+v, PyTorch says %+v", c.words(), len(c.UUIDs), got, want[i])
			}
			seen[fmt.Sprintf("rocm %d %v", min(want[i].Count, 3), want[i].Bad)]++
			continue
		}
		mask := "(unset)"
		if c.Mask != nil {
			mask = *c.Mask
		}
		shown, err := accel.ResolveCUDA(strings.TrimPrefix(mask, "(unset)"), c.Mask != nil, c.UUIDs)
		got := maskAnswer{Shown: shown, Ask: accel.IsMIG(err), Bad: err != nil && !accel.IsMIG(err)}
		if fmt.Sprint(got) != fmt.Sprint(want[i]) {
			t.Errorf("%.200q on %v: got %+v, PyTorch says %+v", mask, c.UUIDs, got, want[i])
		}
		switch {
		case want[i].Ask:
			seen["ask"]++
		case want[i].Bad:
			seen["bad"]++
		default:
			seen[fmt.Sprint(min(len(want[i].Shown), 3))]++
		}
	}
	t.Logf("%d values: %v", len(cases), seen)
	for _, kind := range []string{
		"ask", "bad", "0", "1", "2", "3", "rocm -1 false", "rocm 0 true", "rocm 0 false", "rocm 1 false",
		"rocm 2 false", "rocm 3 false",
	} {
		if seen[kind] < 20 {
			t.Errorf("only %d values of kind %q: the generator has lost its variety", seen[kind], kind)
		}
	}
}

// generatedMasks returns masks put together from the words that matter, the same ones in every run.
func generatedMasks() []maskCase {
	rng := rand.New(rand.NewPCG(1, 2))
	numbers := []string{
		"0", "1", "2", "3", "4", "7", "9", "-1", "-0", "+1", "+", "-", "-a", "+-1", "", " ", "  2 ", "1gpu2", "0x1", "00", "001", "abc",
		"99999999999999999999", "0\u00a0", "\x1c1", "\u20031", "\u200b1", "1 2", "٣", "２", "𝟛", "²", "1①", "GPU-aa", "MIG-a", "1.5", "1e3",
		"1_0", "0，1",
	}
	ids := []string{
		"GPU-", "GPU-aa", "GPU-aa1", "GPU-aa11-0000", "GPU-aa11-0000x", "GPU-aa2", "GPU-bb", "GPU-bb33", "GPU-cc", "GPU-zz",
		" GPU-cc", "GPU-cc ",
		"gpu-cc", "0", "", "MIG-a",
	}
	migs := []string{"MIG-a", "MIG-b", "MIG-GPU-aa/1/0", "MIG-", "GPU-aa", "0", ""}
	devices := [][]string{
		nil, fourGPUs[:1], fourGPUs[:2], fourGPUs,
		{"GPU-aa11-0000", "GPU-aa11-0000x", "GPU-bb33", "GPU-bb33-1", "GPU-cc"},
		make([]string, 70),
	}
	for i := range devices[5] {
		devices[5][i] = fmt.Sprintf("GPU-%02d", i)
	}
	var cases []maskCase
	for _, d := range devices {
		cases = append(cases, maskCase{UUIDs: d})
		for _, words := range [][]string{numbers, ids, migs} {
			for _, w := range words {
				cases = append(cases, maskCase{Mask: &w, UUIDs: d})
			}
		}
	}
	for _, length := range []int{4300, 4301} {
		long, zeros := strings.Repeat("9", length), strings.Repeat("0", length)
		cases = append(cases, maskCase{Mask: &long, UUIDs: fourGPUs}, maskCase{Mask: &zeros, UUIDs: fourGPUs})
	}
	for len(cases) < 2200 {
		words := [][]string{numbers, numbers[:7], ids, ids[3:9], migs}[rng.IntN(5)]
		elems := make([]string, 1+rng.IntN(5))
		for i := range elems {
			elems[i] = words[rng.IntN(len(words))]
		}
		mask := strings.Join(elems, ",")
		cases = append(cases, maskCase{Mask: &mask, UUIDs: devices[rng.IntN(len(devices))]})
	}
	for len(cases) < 3400 {
		c := maskCase{ROCm: true, UUIDs: devices[rng.IntN(len(devices))]}
		for _, to := range []**string{&c.Mask, &c.HIP, &c.ROCR} {
			if rng.IntN(2) == 0 {
				continue
			}
			words := [][]string{numbers, numbers[:4], numbers[:5], ids}[rng.IntN(4)]
			elems := make([]string, 1+rng.IntN(4))
			for i := range elems {
				elems[i] = words[rng.IntN(len(words))]
			}
			text := strings.Join(elems, ",")
			*to = &text
		}
		cases = append(cases, c)
	}
	return cases
}

// lookup answers with the case's variables.
func (c maskCase) lookup(name string) (string, bool) {
	text := map[string]*string{"CUDA_VISIBLE_DEVICES": c.Mask, "HIP_VISIBLE_DEVICES": c.HIP, "ROCR_VISIBLE_DEVICES": c.ROCR}[name]
	if text == nil {
		return "", false
	}
	return *text, true
}

func (c maskCase) words() (words []string) {
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"} {
		if text, ok := c.lookup(name); ok {
			words = append(words, fmt.Sprintf("%s=%.200q", name, text))
		}
	}
	return words
}

// Every decimal digit that Unicode has stands in a run of tens that begins with a zero, which digits are read by.
func TestResolveCUDADigitsOfAllScripts(t *testing.T) {
	uuids := make([]string, 10)
	next := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !unicode.Is(unicode.Nd, r) {
			if next != 0 {
				t.Fatalf("digits end before %U in the middle of a ten", r)
			}
			continue
		}
		got, err := accel.ResolveCUDA(string(r), true, uuids)
		if err != nil || len(got) != 1 || got[0] != next {
			t.Errorf("%U: %v, %v; want %d", r, got, err, next)
		}
		next = (next + 1) % 10
	}
}

// The longest variable that Linux passes on has 128 KiB: its numbers must not be compared each with each.
func TestResolveCUDALongMask(t *testing.T) {
	numbers, ids := make([]string, 20_000), make([]string, 10_000)
	for i := range numbers {
		numbers[i] = fmt.Sprint(i)
	}
	for i := range ids {
		ids[i] = fmt.Sprintf("GPU-%05d", i)
	}
	for _, mask := range []string{strings.Join(numbers, ","), strings.Join(ids, ",")} {
		got, err := accel.ResolveCUDA(mask, true, ids[:3])
		if d := cmp.Diff([]int{0, 1, 2}, got); d != "" || err != nil {
			t.Errorf("%v (-want +got)\n%s", err, d)
		}
	}
	_, err := accel.ResolveCUDA(strings.Repeat("1", 5000), true, ids[:3])
	if err == nil || len(err.Error()) > 300 || !strings.Contains(err.Error(), "a number of 5000 digits exceeds the limit of 4300") {
		t.Errorf("%.400v", err)
	}
}

func FuzzResolveCUDA(f *testing.F) {
	for _, s := range []string{"", "0,1", "-1", "+", "GPU-aa1,GPU-bb", "MIG-a,MIG-b", "٣,²", "0,9,0", "\xff,1"} {
		f.Add(s, 4)
	}
	f.Fuzz(func(t *testing.T, mask string, n int) {
		if n < 0 || n > 100 {
			return
		}
		uuids := make([]string, n)
		for i := range uuids {
			uuids[i] = fmt.Sprintf("GPU-%d", i)
		}
		shown, err := accel.ResolveCUDA(mask, true, uuids)
		if err != nil && len(shown) > 0 {
			t.Errorf("both %v and %v", shown, err)
		}
		seen := map[int]bool{}
		for _, i := range shown {
			if i < 0 || i >= n || seen[i] {
				t.Errorf("%v on %d devices", shown, n)
			}
			seen[i] = true
		}
	})
}
