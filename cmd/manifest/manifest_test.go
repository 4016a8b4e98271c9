package manifest_test

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"muster/cmd/manifest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// plain is the smallest job of a kind, full one that asks for all that it can have.
func plain(kind string) manifest.Spec {
	s := manifest.Spec{
		Kind: kind, Name: "train", Nodes: 2, Procs: "8", Image: "registry.example/train:1", Accelerator: "nvidia.com/gpu",
		Accelerators: 8, SharedMemory: "16Gi", Notice: 30 * time.Second, Grace: 30 * time.Second, MaxRestarts: 3, BackoffLimit: 1,
		Command: []string{"python", "train.py"},
	}
	if kind == "slurm" {
		s.Image = ""
	}
	return s
}

func full(kind string) manifest.Spec {
	s := plain(kind)
	s.Name, s.Nodes, s.Queue, s.Gang = "llama", 4, "research", manifest.DefaultGang(kind)
	s.CPU, s.Memory, s.Topology = "64", "512Gi", "1"
	s.CkptDir, s.NetworkCheck, s.Deadline = "/data/ckpt", true, 12*time.Hour
	s.Env = []string{"NCCL_DEBUG=INFO", "NOTE=a $(date) of 'two' words"}
	s.Flags = []string{"--join-timeout=20m"}
	s.Command = []string{"sh", "-c", "echo $$ \"$RANK\" $(date)", "true", "3", "-x", ""}
	if kind == "slurm" {
		s.Partition, s.Account, s.Image = "gpu", "lab", "registry.example#train:1"
		s.Image = "registry.example/train:1"
		return s
	}
	s.Namespace, s.RDMA, s.Claims = "team", "rdma/hca=1", []string{"data:/data", "sets:/sets"}
	if kind == "mpijob" {
		s.Flags = nil
		return s
	}
	s.TokenSecret, s.Port = "job-token", 7777
	return s
}

// golden compares a file with the one in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", name, diff)
	}
}

func ending(kind string) string {
	if kind == "slurm" {
		return ".sbatch"
	}
	return ".yaml"
}

// Every kind has two golden files, a small job and one with all that can be asked for.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, kind := range manifest.Kinds() {
		for name, s := range map[string]manifest.Spec{kind: plain(kind), kind + "-full": full(kind)} {
			if err := s.Check(); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			golden(t, name+ending(kind), manifest.Write(s))
		}
	}
}

// Every gang is told to the cluster in its own words.
func TestGangs(t *testing.T) {
	t.Parallel()
	for _, gang := range manifest.Gangs {
		s := full("k8s-job")
		s.Gang = gang
		golden(t, "k8s-job-"+gang+".yaml", manifest.Write(s))
	}
}

// docs are the documents of a file.
func docs(t *testing.T, file []byte) (list []map[string]any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(file))
	for {
		var doc map[string]any
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, file)
		}
		list = append(list, doc)
	}
}

// find is what stands at a path of fields and indices.
func find(v any, path ...any) any {
	for _, p := range path {
		switch at := v.(type) {
		case map[string]any:
			key, ok := p.(string)
			if !ok {
				return nil
			}
			v = at[key]
		case []any:
			i, ok := p.(int)
			if !ok || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}

// The words of a command arrive as they were given, whatever they hold: Kubernetes replaces $(NAME), and $$ is a dollar
// sign.
func TestCommandWords(t *testing.T) {
	t.Parallel()
	words := []string{
		"yes", "no", "1", "0x1f", "1e3", "~", "null", "", " ", "-", "--", "- a", "#", "a #b", "a: b", "{a}", "[a]", "*a", "&a", "!a", "%a",
		"@a", "'", "\"", "\\", "a\nb", "\t", "ü", "$", "$$", "$(HOME)", "$$(HOME)", "$HOME", "2001-01-01", "1:30", ".5", "=", "<<", "<a>&",
		"\x7f",
	}
	s := plain("k8s-job")
	s.Command = append([]string{"x"}, words...)
	job := docs(t, manifest.Write(s))[1]
	command, _ := find(job, "spec", "template", "spec", "containers", 0, "command").([]any)
	var got []string
	for _, w := range command {
		text, ok := w.(string)
		if !ok {
			t.Errorf("%v is a %T", w, w)
		}
		got = append(got, text)
	}
	i := slices.Index(got, "--")
	if i < 0 {
		t.Fatalf("%q", got)
	}
	var want []string
	for _, w := range s.Command {
		if strings.Contains(w, "$$") || strings.Contains(w, "$(") {
			w = strings.ReplaceAll(w, "$", "$$")
		}
		want = append(want, w)
	}
	if diff := cmp.Diff(want, got[i+1:]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What is wrong is refused, with the flag named, and all of it at once.
func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flag   string
		change func(*manifest.Spec)
	}{
		{"--name", func(s *manifest.Spec) { s.Name = "Train" }},
		{"--name", func(s *manifest.Spec) { s.Name = "" }},
		{"--name", func(s *manifest.Spec) { s.Name = strings.Repeat("a", 41) }},
		{"--namespace", func(s *manifest.Spec) { s.Namespace = "a b" }},
		{"--nodes", func(s *manifest.Spec) { s.Nodes = 0 }},
		{"--nodes", func(s *manifest.Spec) { s.Nodes = 10_001 }},
		{"--image", func(s *manifest.Spec) { s.Image = "" }},
		{"--image", func(s *manifest.Spec) { s.Image = "a b" }},
		{"--queue", func(s *manifest.Spec) { s.Queue = "a\nb" }},
		{"--gang", func(s *manifest.Spec) { s.Gang = "yunikorn" }},
		{"--accelerator ", func(s *manifest.Spec) { s.Accelerator = "gpu" }},
		{"--accelerators", func(s *manifest.Spec) { s.Accelerators = -1 }},
		{"--gang", func(s *manifest.Spec) { s.Gang = "kueue" }},
		{"--topology", func(s *manifest.Spec) { s.Gang, s.Topology = "volcano", "rack" }},
		{"--flag", func(s *manifest.Spec) { s.Flags = []string{"\xff"} }},
		{"--env", func(s *manifest.Spec) { s.Env = []string{"A=\xff"} }},
		{"--rdma", func(s *manifest.Spec) { s.RDMA = "rdma/hca" }},
		{"--rdma", func(s *manifest.Spec) { s.RDMA = "rdma/hca=0" }},
		{"--shm", func(s *manifest.Spec) { s.SharedMemory = "16GB" }},
		{"--cpu", func(s *manifest.Spec) { s.CPU = "-1" }},
		{"--memory", func(s *manifest.Spec) { s.Memory = "lots" }},
		{"--topology", func(s *manifest.Spec) { s.Topology = "a b" }},
		{"--token-secret", func(s *manifest.Spec) { s.TokenSecret = "A" }},
		{"--http", func(s *manifest.Spec) { s.Port, s.TokenSecret = 70000, "a" }},
		{"--token-secret", func(s *manifest.Spec) { s.Port = 7777 }},
		{"--claim", func(s *manifest.Spec) { s.Claims = []string{"data"} }},
		{"--ckpt-dir", func(s *manifest.Spec) { s.CkptDir = "ckpt" }},
		{"--env", func(s *manifest.Spec) { s.Env = []string{"A"} }},
		{"--max-restarts", func(s *manifest.Spec) { s.MaxRestarts = -1 }},
		{"--backoff-limit", func(s *manifest.Spec) { s.BackoffLimit = -1 }},
		{"--notice", func(s *manifest.Spec) { s.Notice = time.Millisecond }},
		{"--grace", func(s *manifest.Spec) { s.Grace = -time.Second }},
		{"--deadline", func(s *manifest.Spec) { s.Deadline = time.Second }},
		{"command", func(s *manifest.Spec) { s.Command = nil }},
		{"command", func(s *manifest.Spec) { s.Command = []string{"a\x00"} }},
	} {
		s := plain("k8s-job")
		c.change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), c.flag) || strings.Contains(err.Error(), "2 errors") {
			t.Errorf("%s: %v", c.flag, err)
		}
	}
	s := plain("slurm")
	s.CPU, s.Name = "500m", "T"
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "--cpu") || !strings.Contains(err.Error(), "--name") {
		t.Errorf("two of them: %v", err)
	}
}

// TestDevices: of a node's devices the file says what its command does with them.
func TestDevices(t *testing.T) {
	t.Parallel()
	s := plain("pytorchjob")
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{nil, "each worker sees all, and takes that of its local"}, // the comment may go on in a next line
		{[]string{"--isolate-devices=false"}, "each worker sees all, and takes that of its local"},
		{[]string{"--isolate-devices"}, "muster gives each worker its own."},
		{[]string{"--join-timeout=20m", "--isolate-devices=true"}, "muster gives each worker its own."},
	} {
		s.Flags = c.flags
		if text := manifest.Write(s); !bytes.Contains(text, []byte("# Devices of the node")) || !bytes.Contains(text, []byte(c.want)) {
			t.Errorf("%q: the file lacks %q:\n%s", c.flags, c.want, text)
		}
	}
}

// The script is one that bash reads, also with words that mean something to it.
func TestSlurmSyntax(t *testing.T) {
	t.Parallel()
	for _, s := range []manifest.Spec{plain("slurm"), full("slurm")} {
		c := exec.CommandContext(t.Context(), "bash", "-n")
		c.Stdin = bytes.NewReader(manifest.Write(s))
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// TestVolcanoDeadline: a job of Volcano has a limit of time, and is not started again when that is over.
func TestVolcanoDeadline(t *testing.T) {
	t.Parallel()
	s := manifest.Spec{
		Kind: "volcano", Name: "train", Image: "a", Nodes: 2, Procs: "1", Command: []string{"true"}, SharedMemory: "1Gi",
		Notice: 30 * time.Second, Grace: 30 * time.Second, Deadline: time.Hour, BackoffLimit: 1,
	}
	text := string(manifest.Write(s))
	if !strings.Contains(text, "--active-deadline=3600s") || !strings.Contains(text, "exitCode: 124") {
		t.Error(text)
	}
	if s.Deadline = 0; strings.Contains(string(manifest.Write(s)), "124") {
		t.Error("there is a rule for a limit that the job has not")
	}
}

// TestVolcanoStarts: Volcano's maxRetry counts the first start, too, and 0 of it is 3. A job that has no new start has no
// policy that asks for one.
func TestVolcanoStarts(t *testing.T) {
	t.Parallel()
	s := manifest.Spec{
		Kind: "volcano", Name: "train", Image: "a", Nodes: 2, Procs: "1", Command: []string{"true"}, SharedMemory: "1Gi",
		Notice: 30 * time.Second, Grace: 30 * time.Second, Deadline: time.Hour,
	}
	for limit, want := range []string{"AbortJob", "RestartJob", "RestartJob"} {
		s.BackoffLimit = limit
		var job struct {
			Spec struct {
				MaxRetry int `yaml:"maxRetry"`
				Tasks    []struct {
					Policies []struct{ Event, Action string }
				}
			}
		}
		text := manifest.Write(s)
		if err := yaml.Unmarshal(text, &job); err != nil {
			t.Fatal(err)
		}
		last := job.Spec.Tasks[0].Policies[len(job.Spec.Tasks[0].Policies)-1]
		if job.Spec.MaxRetry != limit+1 || last.Event != "PodFailed" || last.Action != want ||
			strings.Contains(string(text), "Restart") != (limit > 0) {
			t.Errorf("%d new starts:\n%s", limit, text)
		}
		if !strings.Contains(string(text), "2 nodes with 1 worker each") {
			t.Errorf("one worker each:\n%.200s", text)
		}
	}
}
