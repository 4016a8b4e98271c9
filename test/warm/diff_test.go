package warm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestWarmLikeCold runs every script of test/testdata/warm with cold and with warm workers: nothing that a script can see or
// do may differ. A .py file is one script; a .txtar archive holds main.py and what stands beside it, and in site/ what
// is installed in the interpreter's user site. The comments in front say how it is run, see warmCase;
// of several ways each run has one, of dialects two, of interpreters the first, and make soak all. Scripts that are
// marked soak, which are second ones of their kind, run in make soak alone.
func TestWarmLikeCold(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	files, err := filepath.Glob(filepath.Join(drive.Root(), "test", "testdata", "warm", "*.*"))
	if err != nil || len(files) < 30 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		cases := readWarmCases(t, file)
		if !testutil.Soak() {
			cases = fewCases(cases)
		}
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.compare(t)
			})
		}
	}
}

// fewCases are those of a script that make test runs.
func fewCases(cases []warmCase) []warmCase {
	cases = slices.DeleteFunc(cases, func(c warmCase) bool { return c.soak || c.python != cases[0].python })
	n := len(cases)
	switch {
	case n < 2:
		return cases
	case cases[0].dialect != cases[1].dialect:
		return []warmCase{cases[0], cases[1+rand.IntN(n-1)]}
	}
	return []warmCase{cases[rand.IntN(n)]}
}

// warmResult is all that one run left behind, with names in the place of what differs between any two runs.
type warmResult struct {
	status int
	exits  []string          // the workers' statuses in the order of ranks, each attempt's
	files  map[string]string // the workers' output and error files
	// stdout and report are what muster printed, without its log.
	stdout, report string

	forked []int // ranks of workers that were forked from the template
	ready  bool  // there was a template
	log    string
}

// parts returns what must be the same in two runs, by name.
func (r *warmResult) parts() map[string]string {
	parts := maps.Clone(r.files)
	parts["stdout of muster"], parts["stderr of muster"] = r.stdout, r.report
	parts["status"] = fmt.Sprintln(r.status, strings.Join(r.exits, ", "))
	return parts
}

func (c *warmCase) compare(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	python := c.interpreter(t)
	c.install(t, dir, python)
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o700); err != nil { // XDG_RUNTIME_DIR
		t.Fatal(err)
	}
	cold := c.run(t, dir, python, "off")
	warm := c.run(t, dir, python, c.warm)
	was, is := cold.parts(), warm.parts()
	for _, re := range c.differs {
		if slices.Equal(cutLines(was, re), cutLines(is, re)) {
			t.Errorf("lines that match %q are known to differ, and do not", re)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if got, there := is[name]; !there {
			t.Errorf("%s is missing under a warm start", name)
		} else if d := diff.Diff("cold "+name, []byte(was[name]), "warm "+name, []byte(got)); d != nil {
			t.Errorf("%s", d)
		}
		delete(is, name)
	}
	for name := range is {
		t.Errorf("%s is there under a warm start only", name)
	}
	if want := c.exits(); want != nil && !slices.Equal(cold.exits, want) {
		t.Errorf("the cold workers' statuses are %v, want %v", cold.exits, want)
	}
	if len(cold.forked) > 0 || cold.ready {
		t.Error("the cold run has a template")
	}
	var every []int
	for i := range c.workers * c.attempt {
		every = append(every, i/c.attempt)
	}
	switch {
	case c.expect == "yes" && (!warm.ready || !slices.Equal(warm.forked, every)):
		t.Errorf("template ready: %v, workers forked from it: %v, want %v", warm.ready, warm.forked, every)
	case c.expect == "no" && len(warm.forked) > 0:
		t.Errorf("workers forked from a template: %v, want none", warm.forked)
	}
	for _, want := range c.says {
		if !strings.Contains(warm.log, want) {
			t.Errorf("muster does not say %q", want)
		}
	}
	if t.Failed() {
		t.Logf("cold:\n%s\nwarm:\n%s", cold.log, warm.log)
	}
}

// cutLines removes the lines that match re from all parts, and returns them.
func cutLines(parts map[string]string, re *regexp.Regexp) []string {
	var cut []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		var kept strings.Builder
		for line := range strings.Lines(parts[name]) {
			if re.MatchString(line) {
				cut = append(cut, line)
			} else {
				kept.WriteString(line)
			}
		}
		parts[name] = kept.String()
	}
	return cut
}

// exits returns the statuses that the workers should have, nil where any will do.
func (c *warmCase) exits() []string {
	if slices.Equal(c.status, []string{"any"}) {
		return nil
	}
	want := c.status
	if want == nil {
		want = slices.Repeat([]string{"0"}, c.workers)
	}
	out := make([]string, min(len(want), c.workers*c.attempt))
	for i, status := range want[:len(out)] {
		out[i] = fmt.Sprintf("rank %d: %s", i/c.attempt, status)
	}
	return out
}

// run runs the script with --warm mode.
func (c *warmCase) run(t *testing.T, dir, python, mode string) warmResult {
	t.Helper()
	logs := filepath.Join(t.TempDir(), "logs")
	words, environ := c.command(t, python, logs)
	own := []string{"--warm", mode, "--run-id", "job", "--log-level", "debug", "--log-format", "json", "--success-policy", "none"}
	if !slices.Contains(c.muster, "--fail-policy") {
		own = append(own, "--fail-policy", "none")
	}
	argv := slices.Concat([]string{"muster"}, own, words)
	if c.shell != "" {
		argv = slices.Concat([]string{"sh", "-c", c.shell, "sh"}, argv)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // PyTorch in three processes, on a busy machine
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = slices.Concat(warmEnviron(dir), environ)
	for _, kv := range slices.Concat(c.env, c.envs) {
		cmd.Env = append(cmd.Env, strings.ReplaceAll(kv, "$DIR", dir))
	}
	cmd.Stdin = strings.NewReader(c.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("--warm %s: not ended in time\n%s", mode, stderr.String())
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "run", "muster", "job-*")); len(left) > 0 {
		t.Errorf("--warm %s: left behind: %v", mode, left)
	}
	if left := drive.Processes(t, dir); len(left) > 0 {
		t.Errorf("--warm %s: left behind: %v", mode, left)
	}
	r := warmResult{status: cmd.ProcessState.ExitCode(), files: map[string]string{}, log: stderr.String()}
	r.stdout, r.report = stdout.String(), r.readLog(t, stderr.Bytes())
	names := strings.NewReplacer(r.readFiles(t, logs), "$LOGS", logs, "$LOGS")
	for name, text := range r.files {
		r.files[name] = warmNormal(text, names, filepath.Ext(name) == ".json")
	}
	r.stdout, r.report = byRank(warmNormal(r.stdout, names, false)), byRank(warmNormal(r.report, names, true))
	return r
}

// byRank sorts lines by the prefix of their rank: lines of different ranks meet by chance, those of one keep their
// order.
func byRank(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		return strings.Compare(warmPrefix.FindString(a), warmPrefix.FindString(b))
	})
	return strings.Join(lines, "")
}

// readLog takes from muster's standard error what became of the workers, and returns what is no log.
func (r *warmResult) readLog(t *testing.T, stderr []byte) (report string) {
	t.Helper()
	for text := range bytes.Lines(stderr) {
		var line struct {
			Level, Message string
			Rank           int
			ExitCode       int `json:"exit_code"`
		}
		if json.Unmarshal(text, &line) != nil || line.Level == "" {
			report += string(text)
			continue
		}
		switch line.Message {
		case "worker exited":
			r.exits = append(r.exits, fmt.Sprintf("rank %d: %d", line.Rank, line.ExitCode))
		case "worker forked from the template":
			r.forked = append(r.forked, line.Rank)

		case "template ready":
			r.ready = true
		}
	}
	slices.Sort(r.exits) // the order of ends is chance
	slices.Sort(r.forked)
	return report
}

// readFiles reads what the workers wrote, under names such as "attempt_0/1/stdout.log", and returns the directory of
// this run in logs.
func (r *warmResult) readFiles(t *testing.T, logs string) string {
	t.Helper()
	runs, err := filepath.Glob(filepath.Join(logs, "job_*"))
	if err != nil || len(runs) != 1 {
		t.Fatalf("directories of the run: %q, %v", runs, err)
	}
	err = filepath.WalkDir(runs[0], func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		r.files[strings.TrimPrefix(path, runs[0]+"/")] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return runs[0]
}

// warmVarying is what differs between any two runs: addresses of memory, ports and random names; in reports and error
// files also times and process ids.
var (
	warmPrefix  = regexp.MustCompile(`^(\[default\d\]:|\[\d\] )`)
	warmVarying = []warmName{
		{regexp.MustCompile(`0x[0-9a-f]{4,}`), "0x…"},
		{regexp.MustCompile(`muster-\d+-\d+`), "muster-N"}, // the cgroup
		{regexp.MustCompile(`(MASTER_PORT\W{1,6}(?:b')?)\d+`), "${1}N"},
		{regexp.MustCompile(`(MUSTER_AGENT\W{1,6}(?:b')?)\w+`), "${1}N"},
	}
	warmVaryingReport = []warmName{
		{regexp.MustCompile(`(?m)^(\s+time\s+: ).*`), "${1}T"},
		{regexp.MustCompile(`\(pid: \d+\)`), "(pid: N)"},
		{regexp.MustCompile(`"timestamp": ?"\d+"`), `"timestamp": N`},
	}
)

type warmName struct {
	what *regexp.Regexp
	name string
}

// warmNormal returns text with names in the place of what varies.
func warmNormal(text string, names *strings.Replacer, report bool) string {
	text = names.Replace(text)
	for _, v := range warmVarying {
		text = v.what.ReplaceAllString(text, v.name)
	}
	for _, v := range warmVaryingReport {
		if report {
			text = v.what.ReplaceAllString(text, v.name)
		}
	}
	return text
}
