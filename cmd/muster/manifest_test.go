package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"muster/cmd/dryrun"
	"muster/cmd/manifest"
)

// manifestArgs is a job of two nodes with two workers each.
func manifestArgs(kind string, more ...string) []string {
	args := append([]string{"manifest", kind, "--nodes", "2", "-n", "2", "--accelerators", "0"}, more...)
	if kind != "slurm" {
		args = append(args, "--image", "train:1")
	}
	return args
}

// written writes a job file by muster manifest.
func written(t *testing.T, args []string) string {
	t.Helper()
	got := muster(t, nil, args...)
	if got.Status != 0 {
		t.Fatalf("%q: status %d\n%s", args, got.Status, got.Stderr)
	}
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(got.Stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What muster manifest writes muster explain reads: the same nodes, workers and command.
func TestManifestExplained(t *testing.T) {
	t.Parallel()
	for _, kind := range manifest.Kinds() {
		if kind == "slurm" {
			continue
		}
		file := written(t, append(manifestArgs(kind, "--queue", "q", "--ckpt-dir", "/data/ckpt"), "--", "python", "train.py", "--lr",
			"0.1"))
		got := muster(t, nil, "explain", "-o", "json", file)
		var e dryrun.Explained
		if err := json.Unmarshal([]byte(got.Stdout), &e); err != nil || got.Status != 0 {
			t.Errorf("%s: status %d, %v\n%s", kind, got.Status, err, got.Stderr)
			continue
		}
		if e.Name != "train" || len(e.Nodes) != map[bool]int{true: 3, false: 2}[kind == "mpijob"] {
			t.Errorf("%s: %q with %d nodes", kind, e.Name, len(e.Nodes))
		}
		if kind == "mpijob" { // its launcher's mpirun says it
			if c := strings.Join(e.Nodes[0].Command, " "); c != "mpirun -np 4 python train.py --lr 0.1" {
				t.Errorf("%s: the launcher runs %q", kind, c)
			}
			continue
		}
		for _, n := range e.Nodes {
			if c := strings.Join(n.Command, " "); c != "python train.py --lr 0.1" {
				t.Errorf("%s: %s runs %q", kind, n.Replica, c)
			}
		}
		settings := map[string]string{}
		for _, s := range e.Settings {
			settings[s.Flag] = s.Value
		}
		for flag, want := range map[string]string{
			"--nproc-per-node": "2", "--nnodes": "2", "--max-restarts": "3", "--grace": "30s", "--ckpt-dir": "/data/ckpt",
		} {
			if settings[flag] != want {
				t.Errorf("%s: %s is %q, want %q", kind, flag, settings[flag], want)
			}
		}
	}
}

// What is wrong is refused with its flag, and nothing is written.
func TestManifestRefuses(t *testing.T) {
	t.Parallel()
	job := []string{"--", "true"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"manifest"}, "name the kind of file"},
		{append([]string{"manifest"}, job...), "name the kind of file"},
		{append([]string{"manifest", "k8sjob", "--image", "a"}, job...), "did you mean k8s-job?"},
		{append([]string{"manifest", "k8s-job", "slurm", "--image", "a"}, job...), `unexpected "slurm"`},
		{[]string{"manifest", "k8s-job", "--image", "a", "true"}, "must stand behind --"},
		{[]string{"manifest", "k8s-job", "--image", "a", "--"}, "the command is missing"},
		{append([]string{"manifest", "k8s-job"}, job...), "--image is missing"},
		{append([]string{"manifest", "k8s-job", "--image", "a", "--partition", "p"}, job...), "cannot use --partition for k8s-job"},
		{append([]string{"manifest", "slurm", "--claim", "a:/b"}, job...), "cannot use --claim for slurm"},
		{append([]string{"manifest", "slurm", "-n", "gpu"}, job...), "--accelerators"},
		{append([]string{"manifest", "slurm", "-n", "none"}, job...), "-n none"},
		{append([]string{"manifest", "slurm", "--nodes", "none"}, job...), "--nodes"},
		{append([]string{"manifest", "slurm", "--flag=--hang-timout=1m"}, job...), "unknown flag --hang-timout"},
	} {
		got := muster(t, nil, c.args...)
		if got.Status != 2 || !strings.Contains(got.Stderr, c.want) || got.Stdout != "" {
			t.Errorf("%q: status %d, %q, want 2 and %q", c.args, got.Status, got.Stderr+got.Stdout, c.want)
		}
	}
}

var lineOfExample = regexp.MustCompile(`(?m)^\$ muster (manifest .*) > (\S+)$`)

// The examples are what the lines in their pages write.
func TestManifestExamples(t *testing.T) {
	t.Parallel()
	found := 0
	for _, dir := range []string{"kubernetes", "slurm"} {
		page, err := os.ReadFile(filepath.Join("../../examples", dir, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lineOfExample.FindAllStringSubmatch(string(page), -1) {
			found++
			want, err := os.ReadFile(filepath.Join("../../examples", dir, m[2]))
			if err != nil {
				t.Fatal(err)
			}
			got := muster(t, nil, strings.Fields(m[1])...)
			if diff := cmp.Diff(string(want), got.Stdout); got.Status != 0 || diff != "" {
				t.Errorf("%s/%s: status %d %s(-want +got; the line in the page writes it anew):\n%s", dir, m[2], got.Status, got.Stderr,
					diff)
			}
		}
	}
	if want := len(manifest.Kinds()); found != want {
		t.Errorf("%d examples, want one for each of %d kinds", found, want)
	}
}
