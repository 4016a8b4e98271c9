package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"muster/internal/errhint"
	"muster/internal/tokenfile"
	"muster/launch/control"
	"muster/launch/control/history"
	"muster/launch/rundir"
)

// jobsStatus are the exit statuses of the commands that ask a job which runs.
const jobsStatus = "  0   done\n  2   usage error, or there is no such job, or more than one\n" +
	"  75  the job's muster does not answer within 5 s, or cannot do that now\n"

// jobHelp ends the long help of commands that take a JOB.
const jobHelp = `JOB is a run id or a unique beginning of one, the process id of a muster, or a run
directory; without it the only job of this user on this machine is meant.`

// places are where run directories of this user lie.
func (a *app) places() (rundir.Places, error) {
	temp, err := a.tempDir()
	if err != nil {
		return rundir.Places{}, fmt.Errorf("cannot tell the directory of temporary files: %w", err)
	}
	return rundir.FindPlaces(a.runtimeDir(), temp), nil
}

// tempDir is the directory of temporary files.
func (a *app) tempDir() (string, error) {
	return filepath.Abs(cmp.Or(a.here.Getenv("TMPDIR"), os.TempDir()))
}

// runtimeDir is where XDG_RUNTIME_DIR is, also for who has come here without a session.
func (a *app) runtimeDir() string {
	return cmp.Or(a.here.Getenv("XDG_RUNTIME_DIR"), "/run/user/"+strconv.Itoa(os.Getuid()))
}

// findJobs asks all musters of this user, or those at directories whose names begin with one of names. where says for
// people where they were looked for.
func (a *app) findJobs(ctx context.Context, names ...string) (found []control.Found, where string, err error) {
	places, err := a.places()
	if err != nil {
		return nil, "", err
	}
	found, err = control.Find(ctx, places, names...)
	return found, strings.Join(places.All(), ", "), err
}

// pageFlags say at which page a job is asked, and by which token.
type pageFlags struct{ at, tokenFile string }

// pageFlagsOf adds the flags of a command that may ask a job at its page.
func pageFlagsOf(cmd *cobra.Command) *pageFlags {
	var f pageFlags
	cmd.Flags().StringVar(&f.at, "at", "", "ask the job whose page (--http) is at `HOST:PORT`, on whichever machine it runs")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "",
		"with --at: the job's token. A page by http shows it to whoever reads the network: prefer ssh -L, or https")
	return &f
}

// pageClient is the client of the page that the flags name; nil where they name none.
func (a *app) pageClient(f *pageFlags) (*control.Client, error) {
	if f.at == "" {
		if f.tokenFile != "" {
			return nil, errhint.With(errhint.Usagef("--token-file goes with --at: jobs of yours on this machine ask for no token"),
				"give --at HOST:PORT")
		}
		return nil, nil
	}
	var token []byte
	if f.tokenFile != "" {
		var err error
		if token, err = tokenfile.Read(f.tokenFile, zerolog.New(a.stderr)); err != nil {
			return nil, err
		}
	}
	return control.At(f.at, string(token))
}

// jobAt is pickJob, or the job at the page that the flags name.
func (a *app) jobAt(ctx context.Context, f *pageFlags, args []string) (control.Found, []control.Found, error) {
	c, err := a.pageClient(f)
	if err != nil {
		return control.Found{}, nil, err
	}
	if c == nil {
		return a.pickJob(ctx, args)
	}
	job, err := control.FindAt(ctx, c, strings.Join(args, ""))
	return job, []control.Found{job}, err
}

// pickJob finds the job that the arguments name, and the musters of its parts here, itself first.
func (a *app) pickJob(ctx context.Context, args []string) (control.Found, []control.Found, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	found, where, err := a.findJobs(ctx)
	if err != nil {
		return control.Found{}, nil, err
	}
	job, err := control.Pick(ctx, found, name, where)
	return job, control.Parts(found, job), err
}

// runningJob is jobAt for what only a job that runs can do: of one that has ended the error says so.
func (a *app) runningJob(ctx context.Context, f *pageFlags, args []string) (control.Found, []control.Found, error) {
	job, parts, err := a.jobAt(ctx, f, args)
	if err != nil && f.at == "" {
		kept := a.kept()
		err = kept.HintAtLast(args, kept.Say(strings.Join(args, ""), err))
	}
	return job, parts, err
}

// kept is where something is kept of jobs of this user that have ended. Why that cannot be told findJobs has said.
func (a *app) kept() history.Kept {
	places, _ := a.places()
	return places.All()
}

// oneJob takes the name of a job, or none.
func oneJob(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return errhint.With(errhint.Usagef("%s takes one job, and not %d", cmd.CommandPath(), len(args)), "call it once for each")
	}
	if len(args) == 1 && args[0] == "" {
		return errhint.With(errhint.Usagef("%s was given an empty name of a job", cmd.CommandPath()),
			"is a variable not set? Without a name the only job here is meant")
	}
	return nil
}

// completeJob completes the name of a job.
func (a *app) completeJob(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, _, err := a.findJobs(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, job := range control.Jobs(found) {
		if !job.Dead() {
			ids = append(ids, job.RunID())
		}
	}
	return starting(ids, part)
}
