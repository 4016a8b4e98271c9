package launch

import (
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"muster/launch/job"
	"muster/launch/plan"
)

// What a log says of how a rank is entered can be pasted into bash and sh, whatever stands in the command: a log shows a
// line break as \n, and that is another command. It leaves out what may be secret, and without it is another command, too.
func TestEnteringCanBePasted(t *testing.T) {
	t.Parallel()
	odd := "it's \"$A\" \\n `x` $(y)"
	for name, args := range map[string][]string{
		"one line":      {odd, "", "a b"},
		"line breaks":   {"one\ntwo\n", odd + "\n\ttab", "\n"},
		"other control": {"bell\a", odd, "\x1b[1m"},
		"no UTF-8":      {"\xff" + odd},
		"secret flag":   {"--password=hunter2", "--api-key", "hunter2"},
		"secret code":   {"sh", "-c", "TOKEN=hunter2 exec train"},
		"login":         {"https://me:hunter2@example.org/x"},
		"from a Secret": {"--at=swordfish"},
		"long":          {strings.Repeat("word ", 1000)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			argv := append([]string{"printf", "%s|"}, args...)
			p := &plan.Plan{Job: job.Job{Command: job.Command{Args: argv}}, RunDir: t.TempDir()}
			w := plan.Worker{Rank: 3, Dir: t.TempDir(), Env: plan.Env{
				{Name: "A", Value: "a"}, {Name: "B", Value: "swordfish", Secret: true},
			}}
			a := &Agent{Plan: p}
			env, err := a.writeDebug(t.TempDir(), w)
			if err != nil {
				t.Fatal(err)
			}
			for i, way := range enter(p.RunDir, env, w, p.CommandOf(w.LocalRank)) {
				if !utf8.ValidString(way) || strings.ContainsAny(way, "\n\t\a\x1b") {
					t.Errorf("a log shows another command than %q", way)
				}
				if len(way) > 4000 {
					t.Errorf("a log cuts what has %d bytes", len(way))
				}
				if strings.Contains(way, "hunter2") || strings.Contains(way, "swordfish") {
					t.Errorf("a secret is shown: %s", way)
				}
				if i == 1 { // muster exec gives its words to nobody but the system
					_, way, _ = strings.Cut(way, " -- ")
				}
				for _, shell := range []string{"bash", "sh"} {
					out, err := exec.CommandContext(t.Context(), shell, "-c", way).CombinedOutput()
					if want := strings.Join(args, "|") + "|"; err != nil || string(out) != want {
						t.Errorf("%s: %s\nprints %q, want %q: %v", shell, way, out, want, err)
					}
				}
			}
		})
	}
}
