package output

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/launch/job"
)

// The output of horovodrun: prefixes that tell the stream, with the time in front, and a folder for each rank.
func TestHorovodsOutput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	r := newRig(t, job.LogRules{
		Prefix: "[${rank}]<${stream}>:", PrefixAll: true, Stamp: true, Tee: job.StreamMap{Default: job.Both}, RankFiles: dir, RankDigits: 4,
	})
	r.run(t, 0, shell("echo to out; echo to err >&2"))
	stdout, stderr := r.close(t, true)
	for text, stream := range map[string]string{stdout: "out", stderr: "err"} {
		want := `^[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9]\d \d\d:\d\d:\d\d \d{4}\[100\]<std` + stream + `>:to ` + stream + "\n$"
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("%q, want %s", text, want)
		}
		file, err := os.ReadFile(filepath.Join(dir, "rank.0100", "std"+stream))
		if diff := cmp.Diff("to "+stream+"\n", string(file)); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}

	// Without files too, and where both streams go to the same place.
	r = newRig(t, job.LogRules{Dir: os.DevNull, Prefix: "[${rank}]<${stream}>:", PrefixAll: true})
	r.run(t, 0, shell("echo to out; echo to err >&2"))
	if stdout, stderr = r.close(t, true); stdout != "[100]<stdout>:to out\n" || stderr != "[100]<stderr>:to err\n" {
		t.Errorf("%q %q", stdout, stderr)
	}
}
