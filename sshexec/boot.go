package sshexec

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"al.essio.dev/pkg/shellescape"
)

//go:embed ours.sh
var oursScript string

//go:embed find.sh
var findScript string

// shellLine makes the command that has /bin/sh run ours.sh and then a script, whatever the login shell is.
func shellLine(script string, args ...string) string {
	var lines []string
	for _, text := range []string{oursScript, script} {
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
	}
	return "exec /bin/sh -c '" + strings.Join(lines, " ") + "' muster " + shellescape.QuoteCommand(args)
}

// boot starts our binary on a machine, and brings it there before where it is missing.
func (d *Dialer) boot(ctx context.Context, l link, args []string) (*Remote, error) {
	sum, err := d.payload.sum()
	if err != nil {
		return nil, l.fail(NoProgram, "", fmt.Errorf("cannot read our own program: %w", err))
	}
	short := sum.hash[:16]
	find := shellLine(findScript,
		append([]string{short, sum.hash, strconv.FormatInt(sum.size, 10), machines[runtime.GOARCH], d.cfg.Version}, args...)...)
	for tries := 0; ; tries++ {
		c, err := d.converse(ctx, l, find)
		if err != nil {
			return nil, err
		}
		switch word, rest, _ := strings.Cut(c.answer, " "); {
		case word == "run":
			return newRemote(c, l), nil
		case word == "need" && tries == 0:
			c.run.finish()
			if err := d.bring(ctx, l, short, sum, rest); err != nil {
				return nil, err
			}
		case word == "machine":
			c.run.close()
			return nil, l.fail(NoProgram, "put a muster of the same version for that machine into its PATH",
				fmt.Errorf("it is %s, and this muster is for %s", oneLine(rest), machines[runtime.GOARCH]))
		default:
			c.run.close()
			return nil, l.fail(NoProgram, "", fmt.Errorf("our program was brought there, and is not there: %s", oneLine(c.answer)))
		}
	}
}
