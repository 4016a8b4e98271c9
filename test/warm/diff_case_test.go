package warm

import (
	"archive/zip"
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"muster/internal/testutil"
	"muster/test/drive"
)

// warmCase is a script and how it is run. Each field is a directive "# name: words" of the script; one that may be
// given several times makes a case of each; "=> 0 3" behind its value are the statuses of the ranks in that case.
type warmCase struct {
	name  string
	files []txtar.File

	form    []string // script FILE (the default: main.py), module NAME, directory DIR, archive FILE, command, program FILE
	dialect string   // several times; run, torchrun, launch, launch-without-use-env
	python  string   // several times; plain, system, torch, debian
	options []string // several times; of Python
	args    []string // several times; of the script
	muster  []string // several times; flags of muster
	shell   string   // several times; what starts muster, as "$@"
	env     []string // each line adds a variable
	envs    []string // several times; variables
	stdin   string
	soak    bool     // soak: and why make test leaves the script out
	workers int      // where it is not given, one in make test and two in make soak
	status  []string // of each of two ranks; any
	attempt int      // attempts: how often the workers are started
	warm    string   // --warm
	expect  string   // expect-warm: yes or no, with the reason in brackets
	says    []string // each line is something that muster must say in its log about the warm start

	// differs are documented differences: lines of output that match are known to be others under a warm start.
	differs []*regexp.Regexp
}

var (
	warmDirective = regexp.MustCompile(`^# ([a-z-]+):(.*)$`)
	warmWord      = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[^\s"]+`)
)

// warmWords splits text at spaces; a word in double quotes is one of Go.
func warmWords(t *testing.T, text string) []string {
	t.Helper()
	words := []string{}
	for _, w := range warmWord.FindAllString(text, -1) {
		if strings.HasPrefix(w, `"`) {
			var err error
			if w, err = strconv.Unquote(w); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		words = append(words, w)
	}
	return words
}

// readWarmCases reads a script and returns a case for each combination of the directives that were given several times.
func readWarmCases(t *testing.T, file string) []warmCase {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	base := warmCase{
		name: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), form: []string{"script", "main.py"}, dialect: "run",
		python:  "plain",
		workers: 1, attempt: 1, warm: "auto", expect: "yes",
	}
	if testutil.Soak() {
		base.workers = 2
	}
	base.files = []txtar.File{{Name: "main.py", Data: text}}
	if filepath.Ext(file) == ".txtar" {
		base.files = txtar.Parse(text).Files
	}
	cases := []warmCase{base}
	each := func(set func(*warmCase)) {
		for i := range cases {
			set(&cases[i])
		}
	}
	choices := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if !strings.HasPrefix(line, "#") {
			break
		}
		m := warmDirective.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		value := strings.TrimLeft(m[2], " ")
		switch m[1] {
		case "form":
			each(func(c *warmCase) { c.form = warmWords(t, value) })
		case "env":
			each(func(c *warmCase) { c.env = append(c.env, warmWords(t, value)...) })
		case "stdin":
			each(func(c *warmCase) { c.stdin = warmWords(t, value)[0] })
		case "workers":
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			each(func(c *warmCase) { c.workers = n })
		case "soak":
			each(func(c *warmCase) { c.soak = true })
		case "attempts":
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			each(func(c *warmCase) { c.attempt = n })
		case "status":
			each(func(c *warmCase) { c.status = warmWords(t, value) })
		case "warm":
			each(func(c *warmCase) { c.warm = value })
		case "differs":
			each(func(c *warmCase) { c.differs = append(c.differs, regexp.MustCompile(value)) })
		case "says":
			each(func(c *warmCase) { c.says = append(c.says, value) })
		case "expect-warm":
			each(func(c *warmCase) { c.expect, _, _ = strings.Cut(value, " ") })
		default:
			choices[m[1]] = append(choices[m[1]], value)
		}
	}
	for _, directive := range slices.Sorted(maps.Keys(choices)) {
		var next []warmCase
		for _, c := range cases {
			for _, value := range choices[directive] {
				v := c
				value, status, given := strings.Cut(value, " => ")
				if given {
					v.status = strings.Fields(status)
				}
				if len(choices[directive]) > 1 {
					v.name += " " + value
				}
				v.choose(t, directive, value)
				next = append(next, v)
			}
		}
		cases = next
	}
	for _, c := range cases {
		if c.workers == 1 && c.attempt == 1 && len(c.status) == 2 && c.status[0] != c.status[1] {
			t.Fatalf("%s: two ranks end differently, and one is started: it needs workers: 2", c.name)
		}
	}
	return cases
}

func (c *warmCase) choose(t *testing.T, directive, value string) {
	t.Helper()
	switch directive {
	case "dialect":
		c.dialect = value
	case "python":
		c.python = value
	case "options":
		c.options = warmWords(t, value)
	case "args":
		c.args = warmWords(t, value)
	case "muster":
		c.muster = warmWords(t, value)
	case "shell":
		c.shell = value
	case "envs":
		c.envs = warmWords(t, value)
	default:
		t.Fatalf("%s: unknown directive %q", c.name, directive)
	}
}

// interpreter returns the Python that runs the script. Where the plain one does, make test has that of the system.
func (c *warmCase) interpreter(t *testing.T) string {
	t.Helper()
	switch c.python {
	case "torch":
		return testutil.Torch(t)
	case "debian":
		return testutil.DebianTorch(t)
	case "system":
		return drive.SystemPython(t)
	}
	if !testutil.Soak() {
		return drive.SystemPython(t)
	}
	python, err := drive.PlainPython()
	if err != nil {
		testutil.Missing(t, "python3")
	}
	return python
}

var userSites sync.Map

// userSite returns where an interpreter looks for packages of the user, below the folder of warmEnviron.
func userSite(t *testing.T, python string) string {
	t.Helper()
	if site, known := userSites.Load(python); known {
		return site.(string)
	}
	cmd := exec.Command(python, "-c", "import site; print(site.getusersitepackages())")
	cmd.Env = warmEnviron("")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	site := strings.TrimSpace(string(out))
	userSites.Store(python, site)
	return site
}

// install writes the script and all that belongs to it into dir.
func (c *warmCase) install(t *testing.T, dir, python string) {
	t.Helper()
	site := ""
	if slices.ContainsFunc(c.files, func(f txtar.File) bool { return strings.HasPrefix(f.Name, "site/") }) {
		site = filepath.Join(dir, userSite(t, python))
	}
	for _, f := range c.files {
		path := filepath.Join(dir, f.Name)
		if name, installed := strings.CutPrefix(f.Name, "site/"); installed {
			path = filepath.Join(site, name)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if c.form[0] != "archive" {
		return
	}
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	for _, f := range c.files {
		w, err := z.Create(f.Name)
		if err == nil {
			_, err = w.Write(f.Data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), os.WriteFile(filepath.Join(dir, c.form[1]), packed.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// warmEnviron is an environment in which nothing of the machine changes what Python does.
func warmEnviron(dir string) []string {
	environ := []string{
		"GORACE=atexit_sleep_ms=0", // else each of our processes takes a second to end under the race detector
		"LANG=C.UTF-8", "XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"), "XDG_CACHE_HOME=" + filepath.Join(dir, "cache"),
		"PYTHONUSERBASE=" + filepath.Join(dir, "user"), "PWD=" + dir,
	}
	path := os.Getenv("PATH")
	if python, err := drive.PlainPython(); err == nil {
		path = filepath.Dir(python) + ":" + path // before a shim of the same name
	}
	environ = append(environ, "PATH="+path)
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); name == "HOME" || name == "TMPDIR" {
			environ = append(environ, kv)
		}
	}
	return environ
}

// command returns what follows muster's own flags.
func (c *warmCase) command(t *testing.T, python, logs string) (words, environ []string) {
	t.Helper()
	flags := slices.Concat([]string{"--nproc-per-node", strconv.Itoa(c.workers), "--log-dir", logs, "--redirects", "3"}, c.muster)
	if slices.ContainsFunc(c.muster, func(f string) bool { return f == "--redirects" || f == "--tee" }) {
		flags = slices.Concat([]string{"--nproc-per-node", strconv.Itoa(c.workers), "--log-dir", logs}, c.muster)
	}
	var program []string
	switch c.form[0] {
	case "script", "directory", "archive":
		program = []string{c.form[1]}
	case "module":
		program = []string{"-m", c.form[1]}
	case "command":
		program = []string{"-c", string(c.files[0].Data)}
	case "program":
		return slices.Concat([]string{"run"}, flags, []string{"--no-python", "--", "./" + c.form[1]}, c.args), nil
	default:
		t.Fatalf("unknown form %q", c.form)
	}
	switch c.dialect {
	case "torchrun":
		return slices.Concat([]string{"torchrun"}, flags, program, c.args), []string{"PYTHON_EXEC=" + python}
	case "launch":
		return slices.Concat([]string{"torch.distributed.launch", "--use-env"}, flags, program, c.args), []string{"PYTHON_EXEC=" + python}
	case "launch-without-use-env":
		return slices.Concat([]string{"torch.distributed.launch"}, flags, program, c.args), []string{"PYTHON_EXEC=" + python}
	}
	return slices.Concat([]string{"run"}, flags, []string{"--", python}, c.options, program, c.args), nil
}
