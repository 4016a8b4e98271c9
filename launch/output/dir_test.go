package output

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/internal/testutil"
	"muster/launch/job"
)

// tree lists what is below dir, with the random parts of names as RANDOM and file contents behind a colon.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	random := regexp.MustCompile(`^((?:torchelastic|job 7)_)[a-z0-9_]{8}(/|$)`)
	var all []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		name = random.ReplaceAllString(name, "${1}RANDOM$2")
		if i := strings.Index(name, "/job 7_"); i >= 0 {
			name = name[:i+1] + random.ReplaceAllString(name[i+1:], "${1}RANDOM$2")
		}
		if e.IsDir() {
			name += "/"
		} else {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name += ": " + strings.Join(sortedWords(string(data), "\n"), "\n")
		}
		all = append(all, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sortedWords(s, sep string) []string {
	words := strings.Split(strings.TrimSuffix(s, sep), sep)
	slices.Sort(words)
	return words
}

func TestFilesAreTorchruns(t *testing.T) {
	torchrun := testutil.Torchrun(t)
	// Each worker writes where its error file is to be, which the comparison of the trees then shows.
	const script = `echo out $1; echo "warn $1" >&2; echo "other $1" >&2; echo "${TORCHELASTIC_ERROR_FILE##*/}" >"$TORCHELASTIC_ERROR_FILE"`
	one := job.StreamMap{ByRank: map[int]job.Streams{0: job.Both, 1: job.Stdout}}
	two := job.StreamMap{ByRank: map[int]job.Streams{1: job.Stderr}}
	for _, c := range []struct {
		name  string
		rules job.LogRules
		flags []string
	}{
		{
			"log directory, mixed streams, template, filter",
			job.LogRules{
				Dir: "logs", Redirect: one, Tee: two, KeepStderr: []string{"warn", "nowhere"},
				Prefix: "${role_name}|$local_rank|${rank}|${nix}|",
			},
			[]string{
				"--log-dir", "logs", "-r", "0:3,1:1", "-t", "1:2", "--duplicate-stderr-filters", "warn,nowhere",
				"--log-line-prefix-template", "${role_name}|$local_rank|${rank}|${nix}|",
			},
		},
		{
			"temporary directory, one rank shown",
			job.LogRules{Tee: job.StreamMap{Default: job.Both}, Ranks: []int{1}},
			[]string{"-t", "3", "--local-ranks-filter", "1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			theirs, ours := t.TempDir(), t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			args := slices.Concat(
				[]string{
					"--no-python", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
					"--rdzv-id", "job 7",
				},
				c.flags, []string{"/bin/sh", "-c", strings.ReplaceAll(script, "$1", "$LOCAL_RANK")})
			cmd := exec.CommandContext(ctx, torchrun, args...)
			cmd.Dir = theirs
			cmd.Env = append(os.Environ(), "TMPDIR="+theirs, "OMP_NUM_THREADS=1")
			var theirOut, theirErr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &theirOut, &theirErr
			if err := cmd.Run(); err != nil {
				t.Fatalf("torchrun: %v\n%s", err, &theirErr)
			}

			if c.rules.Dir != "" {
				c.rules.Dir = filepath.Join(ours, c.rules.Dir)
			}
			out, err := collect(t), collect(t)
			l, e := Open(Setup{Rules: c.rules, RunID: "job 7", TempDir: ours, Stdout: out.w, Stderr: err.w, Log: zerolog.Nop()})
			if e != nil {
				t.Fatal(e)
			}
			a, e := l.Attempt(0, 2)
			if e != nil {
				t.Fatal(e)
			}
			for rank := range 2 {
				w, e := a.Worker(Identity{LocalRank: rank, Rank: rank, Role: "default"})
				if e != nil {
					t.Fatal(e)
				}
				cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script, "sh", fmt.Sprint(rank))
				cmd.Env = append(os.Environ(), "TORCHELASTIC_ERROR_FILE="+w.ErrorFile())
				cmd.Stdout, cmd.Stderr = w.Files()
				if e := cmd.Start(); e != nil {
					t.Fatal(e)
				}
				w.Started()
				if e := cmd.Wait(); e != nil {
					t.Error(e)
				}
				w.Finish(t.Context())
			}
			// Not a success: after one, we tidy up the temporary directory, which torchrun does not.
			if e := errors.Join(a.Close(), l.Close(false)); e != nil {
				t.Error(e)
			}
			if diff := cmp.Diff(tree(t, theirs), tree(t, ours)); diff != "" {
				t.Errorf("files (-torchrun +ours):\n%s", diff)
			}
			if diff := cmp.Diff(sortedWords(theirOut.String(), "\n"), sortedWords(string(out.end()), "\n")); diff != "" {
				t.Errorf("stdout (-torchrun +ours):\n%s", diff)
			}
			if diff := cmp.Diff(sortedWords(theirErr.String(), "\n"), sortedWords(string(err.end()), "\n")); diff != "" {
				t.Errorf("stderr (-torchrun +ours):\n%s", diff)
			}
		})
	}
}

func TestAnAttemptsDirectoryIsNeverTakenAgain(t *testing.T) {
	r := newRig(t, job.LogRules{Dir: t.TempDir(), Redirect: job.StreamMap{Default: job.Stdout}})
	var paths []string
	for _, restartCount := range []int{0, 1, 1, 1} {
		w := r.run(t, restartCount, shell("echo attempt"))[0]
		path, err := filepath.Rel(r.RunDir(), w.ErrorFile())
		if err != nil {
			t.Error(err)
		}
		paths = append(paths, path)
		if got := strings.Join(w.LastLines(9), " "); got != "attempt" {
			t.Errorf("last lines %q", got)
		}
	}
	r.close(t, true)
	want := []string{"attempt_0/0/error.json", "attempt_1/0/error.json", "attempt_1.2/0/error.json", "attempt_1.3/0/error.json"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRunIDsStayInTheLogDirectory(t *testing.T) {
	for runID, want := range map[string]string{
		"job":                    "job_",
		"":                       "_",
		"..":                     ".._",
		"../../etc/x":            ".._.._etc_x_",
		"/abs":                   "_abs_",
		"ein Lauf \u00fc":        "ein Lauf \u00fc_",
		"a\nb\x00c\xff":          "a_b_c__",
		strings.Repeat("l", 300): strings.Repeat("l", 200) + "_",
	} {
		dir := t.TempDir()
		d, err := makeLogDir(dir, runID, "")
		if err != nil {
			t.Errorf("run ID %q: %v", runID, err)
			continue
		}
		name := filepath.Base(d.path)
		if filepath.Dir(d.path) != dir || name[:len(name)-8] != want {
			t.Errorf("run ID %q: %q in %q, want %q and 8 more characters", runID, name, filepath.Dir(d.path), want)
		}
	}
}

func TestLogDirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, setup := range map[string]Setup{
		"a file":                        {Rules: job.LogRules{Dir: file}},
		"below a file":                  {Rules: job.LogRules{Dir: filepath.Join(file, "x")}},
		"not to be written":             {Rules: job.LogRules{Dir: "/proc/muster"}},
		"no place for a temporary one":  {TempDir: filepath.Join(file, "x")},
		"filtered lines, but no folder": {Rules: job.LogRules{Dir: os.DevNull, KeepStderr: []string{"x"}}},
	} {
		setup.Stdout, setup.Stderr = io.Discard, io.Discard
		_, err := Open(setup)
		if err == nil || errhint.CodeOf(err) != errhint.Usage {
			t.Errorf("%s: error %v with status %d, want status %d", name, err, errhint.CodeOf(err), errhint.Usage)
		}
		if strings.HasPrefix(name, "filtered") == (errhint.Of(err) != "") {
			t.Errorf("%s: hint %q", name, errhint.Of(err))
		}
	}
}

func TestATemporaryDirectoryIsRemovedWhenItIsOfNoUse(t *testing.T) {
	for _, c := range []struct {
		name      string
		rules     job.LogRules
		script    string
		succeeded bool
		want      int // files left
	}{
		{"nothing in it", job.LogRules{}, "echo x", true, 0},
		{"nothing in it, failed", job.LogRules{}, "exit 1", false, 0},
		{"empty files", job.LogRules{Redirect: job.StreamMap{Default: job.Both}}, "", true, 0},
		{"output that was asked for", job.LogRules{Redirect: job.StreamMap{Default: job.Both}}, "echo x", true, 1},
		{"an error file, failed", job.LogRules{}, "echo x >$ERR", false, 1},
		{"an error file, succeeded later", job.LogRules{}, "echo x >$ERR", true, 0},
		{"a file of the worker's own", job.LogRules{}, "echo x >${ERR%/*}/own", true, 1},
		{"a log directory that was given", job.LogRules{Dir: "given"}, "", true, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			temp := t.TempDir()
			if c.rules.Dir != "" {
				c.rules.Dir = filepath.Join(temp, c.rules.Dir)
			}
			l, err := Open(Setup{Rules: c.rules, RunID: "job", TempDir: temp, Stdout: io.Discard, Stderr: io.Discard, Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			a, err := l.Attempt(0, 1)
			if err != nil {
				t.Fatal(err)
			}
			w, err := a.Worker(Identity{})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/bin/sh", "-c", c.script)
			cmd.Env = append(os.Environ(), "ERR="+w.ErrorFile())
			cmd.Stdout, cmd.Stderr = w.Files()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Started()
			cmd.Wait()
			w.Finish(t.Context())
			if err := errors.Join(a.Close(), l.Close(c.succeeded)); err != nil {
				t.Error(err)
			}
			left, err := filepath.Glob(filepath.Join(temp, "*", "*", "attempt_0", "0", "*"))
			if err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(temp)
			if err != nil {
				t.Fatal(err)
			}
			if len(left) != max(0, c.want) || (len(entries) == 0) != (c.want == 0) {
				t.Errorf("left: %v in %v", left, entries)
			}
		})
	}
}

func TestFilteredLines(t *testing.T) {
	// Needles at the end of a piece of the buffer, across its end, in lines longer than it, and in a last line without
	// end.
	long := strings.Repeat("x", 3*pumpBytes)
	across := strings.Repeat("x", pumpBytes-3) + "needle" + strings.Repeat("y", 2*pumpBytes)
	lines := []string{
		"no", "a needle", "", "second", across, long, long + "needle", "needle" + long, "no",
		strings.Repeat("z", pumpBytes-1), "needle", long + "need", "le", "last needle",
	}
	want := ""
	for _, l := range lines {
		if strings.Contains(l, "needle") || strings.Contains(l, "second") {
			want += "[default0]:" + l + "\n"
		}
	}
	input := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(input, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, job.LogRules{Dir: t.TempDir(), Tee: job.StreamMap{Default: job.Stdout}, KeepStdout: []string{"needle", "second"}})
	// dd makes the pieces end elsewhere than cat's.
	r.run(t, 0, shell("dd bs=70001 status=none if="+input))
	got, err := os.ReadFile(filepath.Join(r.RunDir(), "attempt_0", keptStdout))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
		gotLines := strings.Split(string(got), "\n")
		for i, l := range strings.Split(want, "\n") {
			if i >= len(gotLines) || gotLines[i] != l {
				t.Fatalf("line %d: want %.40q, %d bytes", i, l, len(l))
			}
		}
	}
	if stdout, _ := r.close(t, true); strings.Count(stdout, "\n") != len(lines) {
		t.Errorf("%d lines were shown, want %d", strings.Count(stdout, "\n"), len(lines))
	}
}

func TestAFullDiskBehindFilteredLinesIsToldOnce(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	var logged bytes.Buffer
	k := &keptLines{file: full, log: zerolog.New(&logged)}
	k.write(strings.NewReader("a\n"))
	k.write(strings.NewReader("b\n"))
	if n := strings.Count(logged.String(), "\n"); n != 1 || !strings.Contains(logged.String(), "no space") {
		t.Errorf("logged %d times: %s", n, &logged)
	}
	if err := k.close(); err != nil {
		t.Error(err)
	}
}

// openTerminal returns the two ends of a pseudo-terminal.
func openTerminal(t *testing.T) (near, far *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	near = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { near.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	return near, far
}

func TestALoneWorkerGetsTheTerminalItself(t *testing.T) {
	near, far := openTerminal(t)
	l, err := Open(Setup{Rules: job.LogRules{Dir: os.DevNull}, Stdout: far, Stderr: far, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Logs: l}
	const ask = "if [ -t 1 ] && [ -t 2 ]; then echo yes; else echo no; fi"
	alone := r.run(t, 0, shell(ask))
	r.run(t, 1, shell(ask), shell(ask))
	if lines := alone[0].LastLines(20); lines != nil {
		t.Errorf("last lines %q of output that was not read", lines)
	}
	if err := l.Close(true); err != nil {
		t.Error(err)
	}
	if _, err := far.WriteString("open\n"); err != nil { // still ours
		t.Error(err)
	}
	const want = "yes\r\nno\r\nno\r\nopen\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(near, got); err != nil || string(got) != want {
		t.Errorf("the terminal got %q, %v, want %q", got, err, want)
	}
}

func TestAStoppedTerminalDoesNotKeepUs(t *testing.T) {
	_, far := openTerminal(t) // nobody reads it
	l, err := Open(Setup{Rules: job.LogRules{Dir: os.DevNull}, Stdout: far, Stderr: far, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Attempt(0, 2)
	if err != nil {
		t.Fatal(err)
	}
	w, cmd := start(t, a, 0, shell("yes | head -c 300000; echo end >&2")...)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	l.stallWait = 200 * time.Millisecond
	w.Finish(t.Context())
	if err := errors.Join(a.Close(), l.Close(true)); err != nil {
		t.Error(err)
	}
	if got := w.LastLines(1); len(got) != 1 || got[0] != "end" {
		t.Errorf("last lines %q", got)
	}
}
