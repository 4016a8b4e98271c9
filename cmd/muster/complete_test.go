package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"muster/cmd/dialect"
	"muster/internal/testutil"
	"muster/test/drive"
)

// completions are what muster offers for a line of which the last word, after the last blank, is not complete.
func completions(t *testing.T, line string) (words []string, files bool) {
	t.Helper()
	got := muster(t, nil, append([]string{"__complete"}, strings.Split(line, " ")...)...)
	if got.Status != 0 {
		t.Errorf("%s: status %d\n%s", line, got.Status, got.Stderr)
	}
	for text := range strings.Lines(got.Stdout) {
		word, _, _ := strings.Cut(strings.TrimSuffix(text, "\n"), "\t")
		if directive, ok := strings.CutPrefix(word, ":"); ok {
			return words, directive == "0"
		}
		words = append(words, word)
	}
	t.Errorf("%s: no directive\n%s", line, got.Stdout)
	return nil, false
}

// Flags with fixed words complete these, behind a launcher's name and in front of it; what belongs to the command is
// left to the shell.
func TestFixedWordsComplete(t *testing.T) {
	t.Parallel()
	const files = "files"
	for line, want := range map[string]string{
		"run --log-format ":                           "auto text json",
		"run --log-format=j":                          "json",
		"run -n 2 --numa-binding so":                  "socket",
		"run --restart-policy on-f":                   "on-failure",
		"run --log-dir ":                              files,
		"run -- python --log-format ":                 files,
		"torchrun --start_method f":                   "fork forkserver",
		"torchrun --nproc-per-node ":                  "auto cpu gpu",
		"torchrun --rdzv-backend ":                    "static c10d muster etcd",
		"torchrun train.py --start-method ":           files,
		"torchrun --no-python --tee ":                 files,
		"dlrover-run --accelerator m":                 "mthreads.com/gpu metax-tech.com/gpu",
		"deepspeed --launcher m":                      "mpich mvapich",
		"accelerate ":                                 "launch",
		"accelerate launch --mixed_precision b":       "bf16",
		"accelerate-launch --dynamo_mode r":           "reduce-overhead",
		"colossalai ":                                 "run",
		"horovodrun -np 2 --log-level D":              "DEBUG",
		"mpirun -np 2 --bind-to n":                    "none numa",
		"--log-fo":                                    "--log-format",
		"--log-format ":                               "auto text json",
		"--log-format json torchr":                    "torchrun",
		"--log-format json torchrun --start-method ":  "spawn fork forkserver",
		"--dry-run accelerate launch --fsdp_version ": "1 2",
		"check --on-skip w":                           "warn",
		"devices --probe-exec m":                      "memfd",
	} {
		words, shell := completions(t, line)
		got := strings.Join(words, " ")
		if shell {
			got = strings.TrimSpace(got + " " + files)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// Every flag whose help names all words that it takes completes them.
func TestEveryFixedWord(t *testing.T) {
	t.Parallel()
	for _, name := range append(dialect.Names(), "") {
		flags := dialect.OwnFlags()
		if name != "" {
			flags = dialect.Flags(name)
		}
		flags.VisitAll(func(f *pflag.Flag) {
			words := dialect.Choices(f)
			if f.NoOptDefVal == "" && strings.Contains(f.Usage, "[one of ") && len(words) == 0 {
				t.Errorf("%s --%s completes nothing: %s", name, f.Name, f.Usage)
			}
			for _, w := range words {
				if w == "" || strings.ContainsAny(w, " \x00") {
					t.Errorf("%s --%s: %q", name, f.Name, words)
				}
			}
		})
	}
}

// A real bash completes with the script that muster completion prints.
func TestBashCompletesByTheScript(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		testutil.Missing(t, "bash")
	}
	script := filepath.Join(t.TempDir(), "muster.bash")
	made := muster(t, nil, "completion", "bash")
	if err := os.WriteFile(script, []byte(made.Stdout), 0o600); err != nil || made.Status != 0 {
		t.Fatal(err, made.Status)
	}
	// What the package bash-completion has, for words that are divided by blanks only.
	const program = `_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD
cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; }
source "$1"; COMP_TYPE=9; COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); __start_muster 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"`
	for line, want := range map[string]string{
		"muster run --log-format t":                "text",
		"muster run --log-format=j":                "json",
		"muster torchrun --start-method ":          "fork forkserver spawn",
		"muster --log-format json run --stdin inh": "inherit",
	} {
		cmd := exec.CommandContext(t.Context(), bash, append([]string{"-c", program, "bash", script}, strings.Split(line, " ")...)...)
		cmd.Env = drive.CleanEnviron()
		out, err := cmd.Output()
		words := strings.Fields(string(out))
		slices.Sort(words)
		if got := strings.Join(words, " "); err != nil || got != want {
			t.Errorf("%q: %q, want %q (%v)", line, got, want, err)
		}
	}
}
