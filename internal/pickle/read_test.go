package pickle_test

import (
	"encoding/base64"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"muster/internal/pickle"
	"muster/internal/testutil"
)

// plain are values of each kind, in Python's words and as they are read.
var plain = []struct {
	python string
	want   any
}{
	{"None", nil},
	{"[True, False]", &pickle.List{Items: []any{true, false}}},
	{"(0, 255, 256, 65536, -1, 2**31, -2**63, 2**63-1)", pickle.Tuple{
		int64(0), int64(255), int64(256), int64(65536), int64(-1), int64(1 << 31), int64(-1 << 63), int64(1<<63 - 1),
	}},
	{
		"(1.5, 'ü', 'x'*300, b'', b'\\xff\\x00', ())",
		pickle.Tuple{1.5, "ü", strings.Repeat("x", 300), []byte{}, []byte{0xff, 0}, pickle.Tuple{}},
	},
	{"{'a': [1], 2: {}}", &pickle.Dict{Pairs: []pickle.Pair{
		{Key: "a", Value: &pickle.List{Items: []any{int64(1)}}},
		{Key: int64(2), Value: &pickle.Dict{}},
	}}},
	{"{7}", &pickle.Set{Items: []any{int64(7)}}},
	{"[['x', 'x']]*2", &pickle.List{Items: []any{
		&pickle.List{Items: []any{"x", "x"}}, &pickle.List{Items: []any{"x", "x"}},
	}}},
}

// TestPlainValues: what Python writes, by each protocol, is read as it was.
func TestPlainValues(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		testutil.Missing(t, err.Error())
	}
	script := "import base64, pickle\nfor protocol in range(2, 6):\n"
	for _, p := range plain {
		script += "    print(base64.b64encode(pickle.dumps(" + p.python + ", protocol)).decode())\n"
	}
	out, err := exec.Command(python, "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	if len(lines) != 4*len(plain) {
		t.Fatalf("%d pickles", len(lines))
	}
	for i, line := range lines {
		p := plain[i%len(plain)]
		data, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pickle.Read(data)
		if err != nil {
			t.Errorf("%s by protocol %d: %v", p.python, 2+i/len(plain), err)
		} else if diff := cmp.Diff(p.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s by protocol %d (-want +got):\n%s", p.python, 2+i/len(plain), diff)
		}
	}
}

// TestClasses: a class that is named may be made or called as it says, and no other.
func TestClasses(t *testing.T) {
	point := &pickle.Class{Module: "geo", Name: "Point"}
	double := &pickle.Class{Module: "geo", Name: "double", Call: func(args pickle.Tuple) (any, error) { return args[0].(int64) * 2, nil }}
	made := "\x80\x04cgeo\nPoint\n)\x81}\x8c\x01xK\x01sb."
	called := "\x80\x04cgeo\ndouble\nK\x15\x85R."
	got, err := pickle.Read([]byte(made), point, double)
	if o, is := got.(*pickle.Object); err != nil || !is || o.Class != point || len(o.Attrs) != 1 ||
		o.Attrs[0] != (pickle.Pair{Key: "x", Value: int64(1)}) {
		t.Errorf("Read = %v, %v", got, err)
	}
	if got, err := pickle.Read([]byte(called), point, double); err != nil || got != int64(42) {
		t.Errorf("Read = %v, %v; want 42", got, err)
	}
	for name, p := range map[string]struct{ data, want string }{
		"no such class":          {"\x80\x04cgeo\nLine\n.", `global "geo.Line" is not allowed`},
		"a class is called":      {"\x80\x04cgeo\nPoint\n)R.", "cannot call this with a tuple of 0"},
		"a function is no class": {"\x80\x04cgeo\ndouble\n)\x81.", "cannot make this object with a tuple of 0"},
		"with arguments":         {"\x80\x04cgeo\nPoint\nK\x01\x85\x81.", "cannot make this object with a tuple of 1"},
	} {
		if got, err := pickle.Read([]byte(p.data), point, double); err == nil || !strings.Contains(err.Error(), p.want) {
			t.Errorf("%s: Read = %v, %v; want %q", name, got, err, p.want)
		}
	}
}

// FuzzRead: whatever comes, nothing is done but reading.
func FuzzRead(f *testing.F) {
	f.Add([]byte("\x80\x04]\x94(K\x01h\x00e."))
	f.Add([]byte("\x80\x02c__builtin__\nset\n]K\x01a\x85R."))
	f.Fuzz(func(_ *testing.T, data []byte) {
		if v, err := pickle.Read(data); err == nil {
			_ = pickle.Describe(v)
		}
	})
}
