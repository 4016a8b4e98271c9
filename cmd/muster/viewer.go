package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"muster/cmd/dialect"
	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/launch"
	"muster/launch/evidence"
)

// Names of DLRover's xpu_timer under which muster runs.
const (
	timerViewer = "xpu_timer_stacktrace_viewer"
	timerLaunch = "xpu_timer_launch"
)

var timerNames = []string{timerLaunch, timerViewer}

// newViewerCmd is "muster xpu_timer_stacktrace_viewer".
func newViewerCmd(a *app) *cobra.Command {
	dir := "./"
	cmd := &cobra.Command{
		Use:   timerViewer + " [--path DIR]",
		Short: "Draw the stacks of a hang, as xpu_timer's viewer does",
		Long: `Read the evidence of the newest hang that muster has kept in DIR (docs/hangs.md) and merge the
stacks of all its ranks: py_stack and cpp_stack have a line for each stack, py_stack.svg and
cpp_stack.svg are flame graphs of them. Frames are function@source@ranks here|ranks elsewhere.
The files lie in DIR then. DIR is what --hang-dir or XPU_TIMER_TIMELINE_PATH named, or a log
directory. Files that the library of xpu_timer itself has written (*.stacktrace) are not read.`,
		Example: "  muster " + timerViewer + " --path /root/timeline",
		Args:    cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			found, seen, err := launch.NewestHang(dir)
			if err != nil {
				return err
			}
			for _, of := range []struct {
				name   string
				groups []evidence.Group
			}{{"py", evidence.MergePython(seen.Nodes)}, {"cpp", evidence.MergeNative(seen.Nodes)}} {
				var folded, svg bytes.Buffer
				err := evidence.WriteFolded(&folded, of.groups)
				if err == nil {
					err = evidence.WriteSVG(&svg, "merge stack in "+of.name, of.groups)
				}
				for end, content := range map[string][]byte{"_stack": folded.Bytes(), "_stack.svg": svg.Bytes()} {
					if err == nil {
						err = durable.Replace(filepath.Join(dir, of.name+end), content, 0o644)
					}
				}
				if err != nil {
					return fmt.Errorf("cannot write the stacks of %s: %w", found, err)
				}
				say(a.stdout, "%s\n", filepath.Join(dir, of.name+"_stack.svg"))
			}
			a.notSeen(seen.Nodes, seen.Missing)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "path", dir, "where the evidence lies")
	return cmd
}

// newTimerLaunchCmd is "muster xpu_timer_launch" where no command follows.
func newTimerLaunchCmd() *cobra.Command {
	return &cobra.Command{
		Use:   timerLaunch + " COMMAND [ARG...]",
		Short: "Run a launcher and look for hangs, as xpu_timer_launch does",
		Long: `Run COMMAND. Where it is a launcher that muster takes the place of, muster looks for hangs of the
job as --hang-timeout does: XPU_TIMER_HANG_TIMEOUT (default: ` + dialect.TimerSeconds + ` seconds), XPU_TIMER_TIMELINE_PATH
for --hang-dir, XPU_TIMER_HANG_KILL=1 for --on-hang dump,fail. Any other command, such as
python train.py, runs as it is: the muster that has started it looks at it.`,
		Example: "  muster " + timerLaunch + " dlrover-run --nproc_per_node 8 train.py",
		RunE: func(*cobra.Command, []string) error {
			return errhint.With(errhint.Usagef("%s stands in front of nothing", timerLaunch),
				"name a launcher behind it, such as dlrover-run")
		},
	}
}

// timerLaunch makes of the words behind xpu_timer_launch those of muster's own command line, or becomes the command. given
// are muster's own flags in front of it: a launcher reads them, and any other command could not.
func (a *app) timerLaunch(given string, words []string) ([]string, error) {
	if len(words) == 0 || strings.HasPrefix(words[0], "-") {
		return append([]string{timerLaunch}, words...), nil
	}
	if name := filepath.Base(words[0]); dialect.Named(name) {
		a.here.Environ = dialect.TimerEnviron(a.here.Environ)
		return append([]string{name}, words[1:]...), nil
	}
	if given != "" {
		return nil, errhint.Usagef("%s stands in front of %s %q, which is no launcher", given, timerLaunch, words[0])
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return nil, enter(launch.DebugRank{Dir: dir, Env: a.here.Environ}, words)
}
