package dialect_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/cmd/dialect"
	"muster/internal/testutil"
)

// askAccelerate runs testdata/accelerate_oracle.py with the real accelerate and decodes each line that it prints.
func askAccelerate[T any](t *testing.T, in []byte, args ...string) []T {
	t.Helper()
	oracle, err := filepath.Abs("testdata/accelerate_oracle.py")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(testutil.Peer(t, "accelerate"), "python"), append([]string{oracle}, args...)...)
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, bytes.NewReader(in), new(bytes.Buffer)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "CUDA_VISIBLE_DEVICES="}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the oracle: %v\n%s", err, cmd.Stderr)
	}
	var answers []T
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a T
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatalf("%v in %s", err, lines.Bytes())
		}
		answers = append(answers, a)
	}
	return answers
}

// TestAccelerateOptions holds our table against the real parser: the same options, spellings, types, defaults and choices.
func TestAccelerateOptions(t *testing.T) {
	type theirs struct {
		Spellings []string
		Word      bool
		Default   *string
		Choices   []string
		Type      string
	}
	ours := map[string]dialect.AccelerateOption{}
	for _, o := range dialect.AccelerateOptions() {
		ours[o.Spellings[len(o.Spellings)-1]] = o
	}
	real := askAccelerate[theirs](t, nil, "options")
	for _, o := range real {
		slices.SortFunc(o.Spellings, func(a, b string) int { return strings.Compare(plainly(a), plainly(b)) })
		name := ""
		for _, s := range o.Spellings {
			if strings.HasPrefix(s, "--") && !strings.Contains(s[2:], "-") {
				name = s
			}
		}
		mine, ok := ours[name]
		if !ok {
			t.Errorf("accelerate has %s, we do not", name)
			continue
		}
		delete(ours, name)
		sort := cmpopts.SortSlices(strings.Compare)
		if diff := cmp.Diff(o.Spellings, mine.Spellings, sort); diff != "" {
			t.Errorf("%s: spellings (-accelerate +muster):\n%s", name, diff)
		}
		if diff := cmp.Diff(o.Choices, mine.Choices, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: choices (-accelerate +muster):\n%s", name, diff)
		}
		if o.Word != mine.TakesWord {
			t.Errorf("%s takes a word: accelerate %v, we %v", name, o.Word, mine.TakesWord)
		}
		if !mine.TakesWord {
			continue
		}
		kinds := map[string]string{"int": "int", "float": "float"}
		if got := mine.Type; got != kinds[o.Type] {
			t.Errorf("%s is of type %s in accelerate, %q here", name, o.Type, got)
		}
		switch {
		case (o.Default == nil) != (mine.Default == nil):
			t.Errorf("%s has the default %v in accelerate, %v here", name, o.Default, mine.Default)
		case o.Default != nil && !strings.EqualFold(strings.Trim(strings.ReplaceAll(*o.Default, " ", ""), "()"), *mine.Default):
			t.Errorf("%s has the default %q in accelerate, %q here", name, *o.Default, *mine.Default)
		}
	}
	for name := range ours {
		t.Errorf("we have %s, accelerate does not", name)
	}
	if len(real) < 100 {
		t.Errorf("only %d options", len(real))
	}
}

func plainly(spelling string) string { return strings.ReplaceAll(spelling, "_", "-") }

// TestAccelerateScalars holds how we read values of configuration files against PyYAML, which knows another YAML than our
// library.
func TestAccelerateScalars(t *testing.T) {
	scalars := strings.Fields(`1 0 -1 +7 1_000 010 0x1F 0b101 08 1.0 1. .5 -2.50 1e5 1.0e5 1.0e+5 2.5e-7 1e-4 0.0001 0.00001 123456789012345678901 1.5e+16
		1e16 12345678.9 true True TRUE tRUE yes No on OFF y n t ~ null Null nULL none None '1' "true" 'null' "1.0" text 0,1 a-b /path/to=x .1.2 1.2.3 _1 1_ 0x 0xg
		!!str:1 100000000.0 1.0e+22 9007199254740993 -0.0 +.5 .. - 3e+2 1.e+2`)
	var in bytes.Buffer
	for i, s := range scalars {
		scalars[i] = strings.Replace(s, "!!str:", "!!str ", 1)
		if scalars[i] == "-" {
			scalars[i] = "'-'"
		}
		if err := json.NewEncoder(&in).Encode(scalars[i]); err != nil {
			t.Fatal(err)
		}
	}
	theirs := askAccelerate[*string](t, in.Bytes(), "scalars")
	for i, s := range scalars {
		ours, err := dialect.PythonText(s)
		if diff := cmp.Diff(theirs[i], ours); err != nil || diff != "" {
			t.Errorf("%s: %v (-PyYAML +muster):\n%s", s, err, diff)
		}
	}
}
