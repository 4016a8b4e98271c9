package dialect_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"muster/cmd/dialect"
	"muster/internal/testutil"
)

func completionScript(t *testing.T, name, shell string) string {
	t.Helper()
	_, err := dialect.Read(name, dialect.Invocation{Args: []string{"--print-completion", shell}})
	text, ok := errorsAsHelp(err)
	if !ok {
		t.Fatalf("%s: %v", shell, err)
	}
	return text
}

// The script is run by a real bash, which completes a command line as it would for a user.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		testutil.Missing(t, "bash")
	}
	file := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"torchrun --nproc":               "--nproc-per-node",
		"torchrun --start-method f":      "fork forkserver",
		"torchrun --standalone --tee":    "--tee",
		"dlrover-run --switchbox":        "--switchbox-check",
		"dlrover-run --precheck ":        "0 1 2",
		"dlrover-run --accelerator m":    "mthreads.com/gpu metax-tech.com/gpu",
		"torchrun " + file[:len(file)-3]: file,
	} {
		words := strings.Fields(line)
		function := "_muster_" + strings.ReplaceAll(words[0], "-", "_")
		typed := line
		if strings.HasSuffix(line, " ") {
			typed += "''"
		}
		program := completionScript(t, words[0], "bash") + "\nCOMP_WORDS=(" + typed + ")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n" +
			function + "\necho ${COMPREPLY[*]}\n"
		out, err := exec.CommandContext(t.Context(), bash, "-c", program).CombinedOutput()
		got := strings.TrimSpace(string(out))
		if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", words, got, err, want)
		}
	}
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "tcsh"} {
		script := completionScript(t, "torchrun", shell)
		golden(t, "completion."+shell, script)
		if !strings.HasSuffix(script, "\n") {
			t.Errorf("%s: no newline at the end", shell)
		}
	}
}
