package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"muster/cmd/console"
	"muster/internal/testutil"
	"muster/test/drive"
)

// blockLimit bounds a block that hangs. Frameworks are started in a soak test, by many pages at once.
var blockLimit = map[bool]time.Duration{false: 3 * time.Minute, true: 15 * time.Minute}[testutil.Soak()]

// pagePort is where nodes meet on our pages.
const pagePort = "29411"

// defaultPort is held by a page whose jobs meet at 29500, as these launchers' jobs do unless a port is given.
var (
	defaultPort    sync.Mutex
	meetsAtDefault = regexp.MustCompile(`(?m)^\$ muster .*\b(accelerate launch|colossalai run|deepspeed) `)
)

// TestPagesRun runs the command blocks of the tutorials, the how-tos and the examples, page by page, and compares what
// they show with what the page says. docs/development.md explains the marks. Blocks that need PyTorch or another
// environment run under MUSTER_SOAK=1 only.
func TestPagesRun(t *testing.T) {
	t.Parallel()
	for _, name := range guidePages(t) {
		t.Run(strings.TrimPrefix(name, "../../"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			// Two checkouts may run their tests at once.
			blocks, err := pageBlocks(strings.ReplaceAll(string(text), pagePort, drive.FreePort(t)))
			if err != nil {
				t.Fatal(err)
			}
			r := newPageRun(t, blocks)
			if strings.Contains(name, "/examples/") {
				if err := os.CopyFS(r.dir, os.DirFS(filepath.Dir(name))); err != nil {
					t.Fatal(err)
				}
			}
			if slices.ContainsFunc(blocks, func(b block) bool { return b.has("run") && meetsAtDefault.MatchString(b.text) }) {
				defaultPort.Lock()
				defer defaultPort.Unlock()
			}
			r.run(blocks)
		})
	}
}

// guidePages are the pages whose commands are run.
func guidePages(t *testing.T) []string {
	t.Helper()
	var pages []string
	for pattern, least := range map[string]int{"docs/tutorials/*.md": 5, "docs/how-to/*.md": 8, "examples/*/README.md": 11} {
		found, err := filepath.Glob("../../" + pattern)
		if err != nil || len(found) < least {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	return pages
}

// A pageRun is the terminal of one page: all its blocks share a directory.
type pageRun struct {
	t          *testing.T
	dir        string
	environ    []string
	shown      *strings.Replacer // what a page writes for names that only this machine has
	background []*backgroundBlock
}

// A backgroundBlock runs in a terminal of its own until it ends by itself.
type backgroundBlock struct {
	block
	cmd *exec.Cmd
	out *bytes.Buffer
}

func newPageRun(t *testing.T, blocks []block) *pageRun {
	t.Helper()
	r := &pageRun{t: t, dir: t.TempDir()}
	bin, runtime := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	path := bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	links := map[string]string{"muster": self}
	if i := slices.IndexFunc(blocks, func(b block) bool { return b.environment() != "" }); i >= 0 && testutil.Soak() {
		path = bin + ":" + environmentBin(t, blocks[i].environment()) + path[len(bin):]
	} else {
		links["python"] = python
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	r.shown = strings.NewReplacer(r.dir, "/home/you/tutorial", runtime, "/run/user/1000", " "+host+" ", " laptop ", " "+host+
		"\n", " laptop\n",
		"\n"+host+":", "\nlaptop:", "node "+host+",", "node laptop,")
	r.environ = append(drive.CleanEnviron(), "PATH="+path, "HOME="+r.dir, "XDG_RUNTIME_DIR="+runtime, "PYTHONDONTWRITEBYTECODE=1",
		console.FormatVariable+"=text",
		"JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC") // Spark's processes start with less work
	return r
}

// environmentBin is the folder with the Python of an environment.
func environmentBin(t *testing.T, name string) string {
	t.Helper()
	if name == "torch" {
		return filepath.Dir(testutil.Torch(t))
	}
	return testutil.Peer(t, name)
}

func (r *pageRun) run(blocks []block) {
	r.t.Helper()
	for _, b := range blocks {
		switch {
		case b.title != "":
			if err := os.WriteFile(filepath.Join(r.dir, b.title), []byte(b.text), 0o600); err != nil {
				r.t.Fatal(err)
			}
		case b.environment() != "" && !testutil.Soak():
		case b.has("dry"):
			r.dry(b)
		case b.has("background"):
			r.start(b)
		case b.has("run"):
			var wrong error
			try := func() bool {
				cmd, out := r.command(blockScript(b))
				err := cmd.Run()
				if err != nil {
					r.t.Fatalf("line %d: %v\n%s", b.line, err, out)
				}
				wrong = r.compare(b, out.String())
				return wrong == nil
			}
			if b.has("retry") {
				for end := time.Now().Add(blockLimit); !try() && time.Now().Before(end); {
					time.Sleep(200 * time.Millisecond) // the pace of trying again
				}
				if wrong != nil {
					r.t.Fatalf("not within %v: %v", blockLimit, wrong)
				}
			} else if !try() {
				r.t.Fatal(wrong)
			}
		}
	}
	for _, b := range r.background {
		if err := b.cmd.Wait(); err != nil {
			r.t.Fatalf("line %d: %v\n%s", b.line, err, b.out)
		}
		if err := r.compare(b.block, b.out.String()); err != nil {
			r.t.Error(err)
		}
	}
}

// command runs a script in the directory of the page; both of its streams go into one.
func (r *pageRun) command(script string) (*exec.Cmd, *bytes.Buffer) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), blockLimit)
	r.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/bin/bash", "-c", script)
	var out bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.dir, r.environ, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, &out
}

func (r *pageRun) start(b block) {
	r.t.Helper()
	cmd, out := r.command(blockScript(b))
	if err := cmd.Start(); err != nil {
		r.t.Fatalf("line %d: %v", b.line, err)
	}
	r.background = append(r.background, &backgroundBlock{b, cmd, out})
}

// dry has muster say what each line of the block would start. Its training scripts are stood for by empty ones.
func (r *pageRun) dry(b block) {
	r.t.Helper()
	if stub := filepath.Join(r.dir, "train.py"); !fileExists(stub) {
		if err := os.WriteFile(stub, nil, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, c := range blockCommands(b.text) {
		line := strings.Replace(c.line, "muster run ", "muster run --dry-run ", 1)
		if line == c.line {
			line = strings.Replace(c.line, "muster ", "muster --dry-run ", 1)
		}
		if line == c.line {
			r.t.Fatalf("line %d: %q starts no muster", b.line, c.line)
		}
		cmd, out := r.command(line)
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "dry run of muster") {
			r.t.Errorf("line %d: %s: %v\n%s", b.line, line, err, out)
		}
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// commandEnd is what blockScript prints behind each command, with its exit status.
const commandEnd = "@@ ended with "

// blockScript runs the commands of a block one after the other; $? is that of the one before, as at a prompt.
func blockScript(b block) string {
	var script strings.Builder
	for _, c := range blockCommands(b.text) {
		fmt.Fprintf(&script, "%s\nended=$?; printf '\\n%s%%d\\n' $ended; (exit $ended)\n", c.line, commandEnd)
	}
	script.WriteString("true\n")
	return script.String()
}

// compare compares what the commands of a block have shown with the page. A command whose status is not 0 has to be
// followed by echo $?.
func (r *pageRun) compare(b block, out string) error {
	parts := regexp.MustCompile(`\n`+commandEnd+`(\d+)\n`).FindAllStringSubmatchIndex(out, -1)
	commands := blockCommands(b.text)
	if len(parts) != len(commands) {
		return fmt.Errorf("line %d: %d of %d commands have ended\n%s", b.line, len(parts), len(commands), out)
	}
	from := 0
	for i, c := range commands {
		shown, status := out[from:parts[i][0]], out[parts[i][2]:parts[i][3]]
		from = parts[i][1]
		if status != "0" && (i+1 == len(commands) || commands[i+1].line != "echo $?") {
			return fmt.Errorf("line %d: %s: exit status %s, which the page does not show\n%s", b.line, c.line, status, shown)
		}
		if err := sameLines(c.shows, strings.Split(r.shown.Replace("\n"+shown+"\n"), "\n")); err != nil {
			return fmt.Errorf("line %d: %s: %w; it shows\n%s", b.line, c.line, err, shown)
		}
	}
	return nil
}
