package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// theirFlags are flags on our pages that belong to other programs, which the pages name beside them.
var theirFlags = map[string][]string{
	"a platform's or a tool's": {
		"--am", "--api-key", "--app", "--count-ecc", "--from-literal", "--gpus", "--gpus-per-node", "--init", "--ipc", "--kill-on-bad-exit",
		"--no-kill", "--ntasks-per-node", "--query-gpu", "--requeue", "--shm-size", "--switches", "--wait",
		"--deepspeed", "--time", "--token", "--ulimit",
	},
	"Megatron's": {
		"--async-save", "--ckpt-format", "--ckpt-step", "--exit-on-missing-checkpoint", "--finetune", "--load",
		"--no-load-rng", "--no-save-optim", "--save", "--save-retain-interval", "--verify-integrity",
	},
	"mpirun's, which is refused": {
		"--bind-to-core", "--bynode", "--cpu-set", "--cpus-per-proc", "--display-allocation", "--display-map",
		"--merge-stderr-to-stdout", "--path", "--prefix", "--preload-binary", "--rankfile", "--report-bindings", "--show-state",
		"--timeout", "--timestamp-output", "--tune", "--use-hwthread-cpus", "--xterm",
	},
	"pip's, docker's and sha256sum's": {
		"--check", "--find-links", "--force-reinstall", "--from", "--no-cache-dir", "--no-index", "--target", "--user",
	},
	"Trainer's and our examples'": {"--fail-at", "--output-dir"},
	"the example's of Spark, and spark-submit's": {
		"--append-eod", "--data", "--dataset-impl", "--eod-token", "--executor-cores", "--fatal", "--ftfy", "--input", "--jsonl-keys",
		"--log-interval", "--max-line-bytes", "--merge-file", "--num-docs", "--num-executors", "--output-prefix", "--part-bytes",
		"--tokenizer-type", "--vocab", "--vocab-file", "--without-spark", "--workers",
	},
	"horovodrun's, abbreviated": {"--slots"},
}

var (
	flagOnPage     = regexp.MustCompile(`(?:^|[^A-Za-z0-9_-])(--[a-z][A-Za-z0-9_-]*[A-Za-z0-9])(\*|_\*|-\*|-…|_…)?`)
	variableOnPage = regexp.MustCompile(`\bMUSTER_[A-Z_]*[A-Z]\b`)
	goFileOnPage   = regexp.MustCompile("`([A-Za-z0-9_/]+\\.go)`")
	flagInHelp     = regexp.MustCompile(`--[a-z][A-Za-z0-9_-]*`)
)

// Every flag and variable that a page of ours names is there: in the help of a command, or in the code that reads it.
func TestPagesNameWhatThereIs(t *testing.T) {
	t.Parallel()
	var flags []string
	for _, command := range []string{
		"run", "torchrun", "torch.distributed.launch", "dlrover-run", "ft_launcher", "deepspeed", "colossalai run", "accelerate launch",
		"horovodrun", "mpirun", "store", "check",
		"devices", "explain", "manifest", "convert", "exec", "alias", "version", "token", "ps", "status", "top", "metrics", "stacks",
		"diagnose", "events", "logs", "restart", "stop", "pause", "resume",
		"scale", "kill-node", "ckpt", "ckpt ls", "ckpt inspect",
		"ckpt verify", "ckpt save", "ckpt drop", "ckpt prune", "",
	} {
		help := "--help"
		if command == "run" {
			help = "--help-all"
		}
		got := muster(t, nil, append(strings.Fields(command), help)...)
		if got.Status != 0 {
			t.Fatalf("%s --help: status %d\n%s", command, got.Status, got.Stderr)
		}
		for _, flag := range flagInHelp.FindAllString(got.Stdout, -1) {
			flags = append(flags, strings.ReplaceAll(flag, "_", "-"))
		}
	}
	for _, list := range theirFlags {
		flags = append(flags, list...)
	}
	var code strings.Builder
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		ext := filepath.Ext(path)
		if err != nil || d.IsDir() || ext != ".go" && ext != ".py" && filepath.Base(path) != "Makefile" ||
			strings.HasSuffix(path, "docs_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	compat, err := filepath.Glob("../../docs/compat/*.md")
	if err != nil || len(pages) < 15 || len(compat) < 7 {
		t.Fatalf("%d and %d pages, %v", len(pages), len(compat), err)
	}
	for _, page := range slices.Concat([]string{"../../README.md"}, pages, compat, guidePages(t)) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(page)
		for _, m := range flagOnPage.FindAllStringSubmatch(string(text), -1) {
			flag := strings.ReplaceAll(m[1], "_", "-")
			known := slices.Contains(flags, flag)
			if m[2] != "" { // of several that begin so
				known = slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, flag) })
			}
			if !known {
				t.Errorf("%s names %s, which no command has", name, m[1])
			}
		}
		for _, variable := range variableOnPage.FindAllString(string(text), -1) {
			flag := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, "MUSTER_")), "_", "-")
			if !slices.Contains(flags, flag) && !strings.Contains(code.String(), variable) {
				t.Errorf("%s names %s, which nobody reads or sets", name, variable)
			}
		}
	}
}

// TestPagesNameFiles: the pages that lead to files of Go name those that there are.
func TestPagesNameFiles(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			path = filepath.ToSlash(strings.TrimPrefix(path, "../../"))
			there[path], there[filepath.Base(path)] = true, true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"ARCHITECTURE.md", "docs/development.md", "docs/packages.md"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		files := goFileOnPage.FindAllStringSubmatch(string(text), -1)
		for _, m := range files {
			if !there[m[1]] {
				t.Errorf("%s names %s, which there is not", page, m[1])
			}
		}
		if len(files) == 0 && page != "ARCHITECTURE.md" {
			t.Errorf("%s names no files", page)
		}
	}
}

// The lines of docs/commands.md and README for other launchers say all that these need: a newcomer who has the files
// can start them.
func TestPagesLinesStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"train.py": "", "fsdp.yaml": "distributed_type: MULTI_GPU\nnum_processes: 4\n", "ds.json": "{}",
		"hostfile": "node1 slots=8\nnode2 slots=8\n", "hosts": "node1\nnode2\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(readme), "\n"); lines > 120 {
		t.Errorf("README has %d lines, more than its 120", lines)
	}
	commands, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	readme = append(readme, commands...)
	lines := regexp.MustCompile(`(?m)^    muster ((?:accelerate|deepspeed|colossalai|torchrun) .*?)(?: +#.*)?$`).FindAllSubmatch(readme, -1)
	if len(lines) < 4 {
		t.Fatalf("%d lines", len(lines))
	}
	for _, line := range lines {
		args := strings.Fields(strings.ReplaceAll(string(line[1]), `"`, ""))
		for i, arg := range args {
			if _, err := os.Stat(filepath.Join(dir, arg)); err == nil {
				args[i] = filepath.Join(dir, arg)
			}
		}
		got := muster(t, nil, append([]string{"--dry-run"}, args...)...)
		if got.Status != 0 {
			t.Errorf("%s: status %d\n%s", line[1], got.Status, got.Stderr)
		}
	}
}

var (
	linkOnPage  = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	codeOnPage  = regexp.MustCompile("(?s)```.*?```|`[^`]*`")
	headOnPage  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notInAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// Every link of a page to another one, or to a heading, leads somewhere, and the index has all pages.
func TestPagesLinksLead(t *testing.T) {
	t.Parallel()
	pages := []string{"../../README.md", "../../CHANGELOG.md", "../../ARCHITECTURE.md", "../../SECURITY.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/compat/*.md", "../../docs/adr/*.md", "../../docs/reference/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) < 7 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	pages = append(pages, guidePages(t)...)
	examples, err := filepath.Glob("../../examples/*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, examples...)
	read := func(page string) string {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	index := read("../../docs/README.md")
	for _, page := range pages {
		if name, ours := strings.CutPrefix(page, "../../docs/"); ours && name != "README.md" && !strings.HasPrefix(name, "adr/") &&
			!strings.HasPrefix(name, "reference/") && !strings.Contains(index, "]("+name) {
			t.Errorf("docs/README.md does not name %s", page)
		}
		for _, m := range linkOnPage.FindAllStringSubmatch(codeOnPage.ReplaceAllString(read(page), ""), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			at := page
			if to != "" {
				at = filepath.Join(filepath.Dir(page), to)
			}
			if _, err := os.Stat(at); err != nil {
				t.Errorf("%s leads to %s, which is not there", page, m[1])
			} else if anchor != "" && strings.HasSuffix(at, ".md") && !slices.Contains(anchors(read(at)), anchor) {
				t.Errorf("%s leads to %s, and there is no such heading", page, m[1])
			}
		}
	}
}

// anchors are the names by which the headings of a page are reached.
func anchors(text string) []string {
	var found []string
	for _, m := range headOnPage.FindAllStringSubmatch(text, -1) {
		plain := notInAnchor.ReplaceAllString(strings.ToLower(m[1]), "")
		found = append(found, strings.ReplaceAll(plain, " ", "-"))
	}
	return found
}

// The example of a training image is the one that the releases' scripts have.
func TestTrainingImageExample(t *testing.T) {
	t.Parallel()
	var texts []string
	for _, path := range []string{"../../scripts/dist/images/Dockerfile.training", "../../examples/training-image/Dockerfile"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, strings.ReplaceAll(string(text), " -f Dockerfile.training", ""))
	}
	if texts[0] != texts[1] {
		t.Errorf("%q\nand\n%q", texts[0], texts[1])
	}
}

// The web site has all pages, but for decisions, which the pages link.
func TestSiteHasAllPages(t *testing.T) {
	t.Parallel()
	nav, err := os.ReadFile("../../scripts/site/mkdocs.yml")
	if err != nil {
		t.Fatal(err)
	}
	pages := guidePages(t)
	for _, pattern := range []string{"../../docs/*.md", "../../docs/compat/*.md", "../../docs/reference/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) < 7 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		if name := strings.TrimPrefix(page, "../../"); !strings.Contains(string(nav), "- "+name+"\n") {
			t.Errorf("scripts/site/mkdocs.yml does not name %s", name)
		}
	}
}
