package python

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCommand(t *testing.T) {
	t.Parallel()
	type words = []string
	for _, c := range []struct {
		args words
		want Command
		err  string
	}{
		{args: words{"train.py", "-u", "--lr=1"}, want: Command{Script: "train.py", Args: words{"-u", "--lr=1"}}},
		{
			args: words{"-u", "-W", "ignore", "-Xdev", "train.py"},
			want: Command{Options: words{"-u", "-W", "ignore", "-Xdev"}, Script: "train.py", Args: words{}},
		},
		{args: words{"-um", "pkg.train", "-c", "x"}, want: Command{Options: words{"-u"}, Module: "pkg.train", Args: words{"-c", "x"}}},
		{args: words{"-mpkg"}, want: Command{Module: "pkg", Args: words{}}},
		{
			args: words{"-OBuX", "dev", "-c", "print(1)", "a"},
			want: Command{Options: words{"-OBuX", "dev"}, Code: "print(1)", Args: words{"a"}},
		},
		{args: words{"-Wonce", "x.py"}, want: Command{Options: words{"-Wonce"}, Script: "x.py", Args: words{}}},
		{
			args: words{"--check-hash-based-pycs", "always", "--", "-x.py", "a"},
			want: Command{Options: words{"--check-hash-based-pycs", "always", "--"}, Script: "-x.py", Args: words{"a"}},
		},
		{
			args: words{"--check-hash-based-pycs=never", "x.py"},
			want: Command{Options: words{"--check-hash-based-pycs=never"}, Script: "x.py", Args: words{}},
		},
		{args: nil, err: "it reads its program from standard input"},
		{args: words{"-u"}, err: "it reads its program from standard input"},
		{args: words{"-u", "-"}, err: "it reads its program from standard input"},
		{args: words{"--"}, err: "it names no program"},
		{args: words{"-m"}, err: "-m has no value"},
		{args: words{"-uV"}, err: "-V runs no program"},
		{args: words{"--version"}, err: "--version runs no program"},
	} {
		got, err := ParseCommand(c.args)
		switch {
		case c.err != "" && (err == nil || err.Error() != c.err):
			t.Errorf("ParseCommand(%q) = %+v, %v, want error %q", c.args, got, err, c.err)
		case c.err == "" && err != nil:
			t.Errorf("ParseCommand(%q): %v", c.args, err)
		case c.err == "":
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("ParseCommand(%q), -want +got:\n%s", c.args, diff)
			}
		}
	}
}
