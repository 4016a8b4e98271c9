package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"muster/internal/errhint"
	"muster/internal/proc"
	"muster/launch"
	"muster/launch/control"
	"muster/launch/control/ranks"
	"muster/launch/plan"
)

// newExecCmd is "muster exec": a command in a rank's place.
func newExecCmd(a *app) *cobra.Command {
	var rank, attempt int
	var runID, dir string
	cmd := &cobra.Command{
		Use:   "exec --rank N [--attempt N] [--run-id ID | --dir DIR] -- command [arguments]",
		Short: "Run a command as a rank of a job that runs",
		Long: `Run a command with the environment and in the working directory of a rank. Of a rank that
runs on this machine muster becomes the command: it has the terminal, its exit status
counts, and it goes on when the job ends, without the job's store. A job with --debug-mode
only waits, so that its ranks are free for such commands.

Of a rank on another node the muster there runs the command, bound to the CPUs of the rank:
standard streams, SIGINT, SIGTERM and the like, and the exit status are passed on. It has a
terminal where standard input and output are one here, with its size and its keys, and ends
with this command and with the job. That takes a job token (--token-file), or a launcher of
--hosts.

torch keeps its keys in the job's store apart by TORCHELASTIC_RESTART_COUNT. Give all ranks
another --attempt each time that they are to meet again, or they find those of the last time.

Without --run-id and --dir there must be one job of this user with that rank here, or one
job alone. ID may be a unique beginning of a run id, or the pid of a muster; DIR is a run directory (muster ps).`,
		Example: "  muster exec --rank 3 -- bash\n  muster run -n 2 --debug-mode -- python train.py\n" +
			"  muster exec --rank 1 -- python -m pdb train.py",
		Annotations: map[string]string{exitAnnotation: "  2         usage error, or there is no such rank, or it has ended\n" +
			"  75        the job's muster does not answer, or that of the rank's node\n" +
			"  126, 127  command not executable, not found\n  others    the command's own\n"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errhint.With(errhint.Usagef("there is no command"),
					"name it behind --, as in muster exec --rank 0 -- python train.py")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("rank") && namesRank(args[1:]):
				return errhint.With(errhint.Usagef("%q stands in front of --rank, and is taken for the command", args[0]),
					"the job is named by --run-id: muster exec --run-id JOB --rank 0 -- COMMAND")
			case !cmd.Flags().Changed("rank"):
				return errhint.With(errhint.Usagef("there is no --rank"), "name one of the job's, such as --rank 0")
			case attempt < 0:
				return errhint.Usagef("--attempt %d: give a number from 0", attempt)
			case runID != "" && dir != "":
				return errhint.Usagef("cannot use --run-id and --dir together: give one of them")
			}
			w := control.ExecWanted{Rank: rank, Command: args}
			if cmd.Flags().Changed("attempt") {
				w.Attempt = &attempt
			}
			r, far, err := a.findRank(cmd.Context(), w, runID, dir)
			if err != nil {
				return err
			}
			if far != nil {
				return a.execFar(cmd.Context(), far, w)
			}
			r.Env = control.EnterEnv(r.Env, w.Attempt, a.terminalType())
			return enter(r, args)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().IntVar(&rank, "rank", 0, "rank of the worker in the whole job")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "TORCHELASTIC_RESTART_COUNT of the command; as the job has it unless given")
	cmd.Flags().StringVar(&runID, "run-id", "", "name of the job")
	cmd.Flags().StringVar(&dir, "dir", "", "run directory of the job")
	return cmd
}

// namesRank reports whether words up to -- have the flag --rank.
func namesRank(words []string) bool {
	for _, word := range words {
		if name, _, _ := strings.Cut(word, "="); word == "--" || name == "--rank" {
			return name == "--rank"
		}
	}
	return false
}

// execFar runs a command in the place of a rank on another node. It has a terminal where this one has.
func (a *app) execFar(ctx context.Context, far *ranks.Away, w control.ExecWanted) (err error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH)
	defer signal.Stop(signals)
	with := control.Console{Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr, Signals: signals}
	if a.onTerminal() {
		with.Size = a.terminalSize
		restore, err := a.openTerminal(&w)
		if err != nil {
			return err
		}
		defer restore()
	}
	status, err := far.Client.Exec(ctx, far.Node, w, with)
	if err == nil && status != errhint.OK {
		err = errhint.StatusError(status)
	}
	return err
}

// onTerminal reports whether a command has a terminal: input is typed, and output shown.
func (a *app) onTerminal() bool {
	return term.IsTerminal(int(a.stdin.Fd())) && term.IsTerminal(int(a.stdout.Fd()))
}

// terminalType is what the terminal is called, empty where there is none, or it has no name.
func (a *app) terminalType() string {
	if t := (control.Terminal{Type: a.here.Getenv("TERM")}); a.onTerminal() && t.Named() {
		return t.Type
	}
	return ""
}

func (a *app) terminalSize() (size proc.TerminalSize, err error) {
	cols, rows, err := term.GetSize(int(a.stdout.Fd()))
	return proc.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)}, err
}

// openTerminal asks for a terminal as this one is, and has each key of this one go there until restore is called.
func (a *app) openTerminal(w *control.ExecWanted) (restore func(), err error) {
	size, err := a.terminalSize()
	if err != nil {
		return nil, fmt.Errorf("cannot tell the size of the terminal: %w", err)
	}
	w.Terminal = &control.Terminal{Type: a.terminalType(), TerminalSize: size, ErrorsApart: !term.IsTerminal(int(a.stderr.Fd()))}
	fd := int(a.stdin.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("cannot have each key of the terminal passed on: %w", err)
	}
	return func() { _ = term.Restore(fd, before) }, nil // the terminal may be gone
}

// findRank finds a rank: by its muster, or where a driver has started it by itself on this machine, as a job with
// --debug-mode describes it. Of one on another node it returns whom to ask.
func (a *app) findRank(ctx context.Context, w control.ExecWanted, runID, dir string) (launch.DebugRank, *ranks.Away, error) {
	name := runID
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return launch.DebugRank{}, nil, errhint.Usagef("cannot tell the directory %q: %w", dir, err)
		}
		name = abs
	}
	var r control.Rank
	var far *ranks.Away
	found, where, err := a.findJobs(ctx)
	if err == nil {
		r, far, err = ranks.Find(ctx, found, where, name, w)
	}
	if err == nil {
		return launch.DebugRank{RunID: r.RunID, Dir: r.Dir, Env: r.Env}, far, nil
	}
	temp, tempErr := a.tempDir()
	if tempErr != nil || errhint.CodeOf(err) != errhint.Usage {
		return launch.DebugRank{}, nil, err
	}
	m := plan.Machine{RuntimeDir: a.runtimeDir(), TempDir: temp}
	if described, debugErr := launch.FindDebugRank(m, dir, runID, w.Rank); debugErr == nil {
		return described, nil, nil
	}
	return launch.DebugRank{}, nil, a.kept().Say(runID, err)
}

// enter becomes the command args in the place of a rank.
func enter(r launch.DebugRank, args []string) error {
	path, err := proc.LookPath(args[0], r.Dir, r.Env)
	if err != nil {
		return err
	}
	if err := os.Chdir(r.Dir); err != nil {
		return errhint.Code(fmt.Errorf("cannot enter the job's working directory: %w", err), errhint.NotExecuted)
	}
	return errhint.Code(fmt.Errorf("cannot execute %q: %w", args[0], unix.Exec(path, args, r.Env)), errhint.NotExecuted)
}
