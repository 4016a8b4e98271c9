package job_test

import (
	"testing"

	"muster/launch/job"
)

// TestFileAll: all output goes to files where nobody has said which; who has said that nothing does is heard.
func TestFileAll(t *testing.T) {
	flag := job.Source{Kind: job.FromFlag, Name: "--tee"}
	for _, c := range []struct {
		name    string
		sources job.Sources
		all     bool
	}{
		{"nobody has said", job.Sources{"log-dir": flag}, true},
		{"by default", job.Sources{"tee": {Name: "default"}}, true},
		{"tee", job.Sources{"tee": flag}, false},
		{"a variable", job.Sources{"redirects": {Kind: job.FromVariable, Name: "MUSTER_REDIRECTS"}}, false},
	} {
		j := job.Job{Sources: c.sources}
		if j.FileAll(); j.Logs.Tee.Any() != c.all {
			t.Errorf("%s: all output to files: %v, want %v", c.name, j.Logs.Tee.Any(), c.all)
		}
	}
}
