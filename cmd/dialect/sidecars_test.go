package dialect_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSidecarSettings(t *testing.T) {
	env := []string{"MUSTER_SIDECAR=from a\nvariable"}
	content := map[string]string{"conf.yaml": "sidecar: [watch one, 'watch two']\n"}
	own := []string{"--config", "conf.yaml", "--sidecar", "tensorboard --logdir 'my runs' --port=6006", "--sidecar=sh -c \"sleep 1\""}
	want := [][]string{
		{"watch", "one"},
		{"watch", "two"},
		{"from", "a"},
		{"variable"},
		{"tensorboard", "--logdir", "my runs", "--port=6006"},
		{"sh", "-c", "sleep 1"},
	}
	native, err := files(content, env, append(append([]string{"run"}, own...), "--", "prog")...)
	if err != nil {
		t.Fatal(err)
	}
	torchrun, err := files(content, env, append(own, "torchrun", "t.py")...)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range [][][]string{native.Job.Sidecars, torchrun.Job.Sidecars} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	many := []string{"run"}
	for range 17 {
		many = append(many, "--sidecar", "x")
	}
	for want, c := range map[string]struct {
		env   []string
		words []string
	}{
		"give a command, such as 'tensorboard": {nil, []string{"run", "--sidecar", "", "prog"}},
		"cannot use --sidecar: give a command": {nil, []string{"run", "--sidecar", " ", "prog"}},
		"a quote ' is not closed":              {nil, []string{"run", "--sidecar", "sh -c 'x", "prog"}},
		"cannot use MUSTER_SIDECAR=a 'b":       {[]string{"MUSTER_SIDECAR=a 'b"}, []string{"run", "--sidecar", "x", "prog"}},
		"a job has 16 at the most":             {nil, append(many, "prog")},
		"it has no effect on an elastic horovodr": {nil, []string{
			"--sidecar", "x", "horovodrun", "--min-np", "1", "-np", "2",
			"--host-discovery-script", "/bin/true", "prog",
		}},
	} {
		_, err := files(nil, c.env, c.words...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", c.words, err, want)
		} else if strings.Count(err.Error(), "cannot use") != 1 {
			t.Errorf("%q: it is said more than once: %v", c.words, err)
		}
	}
}
