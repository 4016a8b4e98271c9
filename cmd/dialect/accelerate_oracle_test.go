package dialect_test

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/cmd/dialect"
	"muster/internal/testutil"
)

// oracleAnswers are what the real accelerate says: testdata/accelerate_oracle.py is asked once for all tests, as
// importing it takes seconds.
type oracleAnswers struct {
	options []theirOption
	scalars []struct{ Text *string }
	cases   []*accelerateCase
	dirs    []string // working directories that the cases had
	answers []accelerateAnswer
}

type theirOption struct {
	Spellings []string
	Word      bool
	Default   *string
	Choices   []string
	Type      string
}

var oracleOnce struct {
	sync.Once
	oracleAnswers
}

// accelerateScalars are documents of YAML that are one value.
func accelerateScalars() []string {
	return append(strings.Fields(`1 0 -1 +7 1_000 010 0x1F 0b101 08 1.0 1. .5 -2.50 1e5 1.0e5 1.0e+5 2.5e-7 1e-4 0.0001 0.00001
		123456789012345678901 1.5e+16 1e16 12345678.9 true True TRUE tRUE yes No on OFF y n t ~ null Null nULL none None '1' "true" 'null'
		"1.0" text 0,1 a-b /path/to=x .1.2 1.2.3 _1 1_ 0x 0xg 100000000.0 1.0e+22 9007199254740993
		-0.0 +.5 .. 3e+2 1.e+2`), "!!str 1", "'-'", "two words")
}

// askAccelerate returns the answers of the real accelerate.
func askAccelerate(t *testing.T) *oracleAnswers {
	t.Helper()
	testutil.Peer(t, "accelerate")
	oracleOnce.Do(func() { oracleOnce.oracleAnswers = runOracle(t) })
	if oracleOnce.answers == nil {
		t.Fatal("the oracle has no answers")
	}
	return &oracleOnce.oracleAnswers
}

func runOracle(t *testing.T) oracleAnswers {
	t.Helper()
	o := oracleAnswers{cases: append(accelerateCases(t), generatedAccelerate(testutil.Count(60, 200))...)}
	var in bytes.Buffer
	ask := func(question any) {
		if err := json.NewEncoder(&in).Encode(question); err != nil {
			t.Fatal(err)
		}
	}
	ask("options")
	scalars := accelerateScalars()
	for _, s := range scalars {
		ask(map[string]string{"yaml": s})
	}
	for _, c := range o.cases {
		dir := t.TempDir()
		o.dirs = append(o.dirs, dir)
		ask(c.question(t, dir))
	}
	oracle, err := filepath.Abs("testdata/accelerate_oracle.py")
	if err != nil {
		t.Fatal(err)
	}
	dir, site := t.TempDir(), testutil.PeerPackages(t, "accelerate")
	out := askForked(t, torchForks(t).With("accelerate.commands.launch", site), []string{
		"PATH=/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir, "CUDA_VISIBLE_DEVICES=", "PYTHONPATH=" + site,
	}, oracle, in.Bytes())
	answers := json.NewDecoder(bytes.NewReader(out))
	read := func(to any) {
		if err := answers.Decode(to); err != nil {
			t.Fatal(err)
		}
	}
	read(&o.options)
	o.scalars = make([]struct{ Text *string }, len(scalars))
	for i := range scalars {
		read(&o.scalars[i])
	}
	o.answers = make([]accelerateAnswer, len(o.cases))
	for i := range o.cases {
		read(&o.answers[i])
	}
	return o
}

// TestAccelerateOptions holds our table against the real parser: the same options, spellings, types, defaults and
// choices.
func TestAccelerateOptions(t *testing.T) {
	ours := map[string]dialect.AccelerateOption{}
	for _, o := range dialect.AccelerateOptions() {
		ours[o.Spellings[len(o.Spellings)-1]] = o
	}
	options := askAccelerate(t).options
	for _, o := range options {
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
	if len(options) < 100 {
		t.Errorf("only %d options", len(options))
	}
}

func plainly(spelling string) string { return strings.ReplaceAll(spelling, "_", "-") }

// TestAccelerateScalars holds how we read values of configuration files against PyYAML, which knows another YAML than
// our library.
func TestAccelerateScalars(t *testing.T) {
	theirs := askAccelerate(t).scalars
	for i, s := range accelerateScalars() {
		ours, err := dialect.PythonText(s)
		if diff := cmp.Diff(theirs[i].Text, ours); err != nil || diff != "" {
			t.Errorf("%s: %v (-PyYAML +muster):\n%s", s, err, diff)
		}
	}
}
