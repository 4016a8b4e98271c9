package history

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"muster/internal/errhint"
	"muster/internal/printable"
	"muster/launch/control"
)

// Kept are the directories in which something is kept of jobs that have ended. Its methods answer for commands that
// have found no job which runs, and whose arguments name one or none.
type Kept []string

// named is what is kept of the job that a name means, of the last one for none; err is returned where nothing is.
func (k Kept) named(name string, err error) ([]Run, error) {
	runs, pickErr := Ended(k, name)
	if pickErr != nil || len(runs) > 0 {
		return runs, pickErr
	}
	return nil, err
}

// Asked is what is kept of the job that the arguments name, where err says that no such job runs here.
func (k Kept) Asked(args []string, err error) ([]Run, error) {
	if len(args) == 0 || errhint.CodeOf(err) != errhint.Usage || errors.Is(err, control.ErrSeveral) {
		return nil, err
	}
	return k.named(args[0], err)
}

// AskedOrLast is Asked that takes the last job where none is named, and none runs. last says that it is that one.
func (k Kept) AskedOrLast(args []string, err error) (runs []Run, last bool, _ error) {
	if len(args) > 0 || !errors.Is(err, control.ErrNoJob) {
		runs, err = k.Asked(args, err)
		return runs, false, err
	}
	runs, err = k.named("", err)
	return runs, true, err
}

// Say says in the place of err, that no job which runs has this name, when and how the job with it has ended.
func (k Kept) Say(name string, err error) error {
	if !errors.Is(err, control.ErrNoMatch) {
		return err
	}
	runs, otherErr := k.named(name, err)
	if otherErr != nil {
		return otherErr
	}
	id := printable.Output(runs[0].Status.RunID)
	return errhint.With(errhint.Usagef("job %s runs no more: %s", id, runs[0].How()),
		fmt.Sprintf("muster status %s shows how it stood last, muster events %[1]s what has happened", shellescape.Quote(id)))
}

// HintAtLast says with err that no job runs how the last one is seen, where something is kept of it.
func (k Kept) HintAtLast(args []string, err error) error {
	if len(args) > 0 || !errors.Is(err, control.ErrNoJob) {
		return err
	}
	runs, otherErr := k.named("", err)
	if otherErr != nil {
		return err
	}
	id := printable.Output(runs[0].Status.RunID)
	return errhint.With(errhint.Usagef("%v", err), // the hint of err itself would win
		fmt.Sprintf("the last one, %s, has ended: muster status %s shows how it stood, muster events what has happened", id,
			shellescape.Quote(id)))
}

// SayLogs says with err that no such job runs where the output of one that has ended is, of the last one where none is
// named.
func (k Kept) SayLogs(args []string, err error) error {
	if errhint.CodeOf(err) != errhint.Usage || errors.Is(err, control.ErrSeveral) || len(args) == 0 && !errors.Is(err, control.ErrNoJob) {
		return err
	}
	runs, otherErr := k.named(strings.Join(args, ""), err)
	if otherErr != nil {
		return otherErr
	}
	d := &runs[0].Status
	return errhint.With(errhint.Usagef("job %s runs no more, and muster logs reads the files of jobs that run: %s",
		printable.Output(d.RunID), runs[0].How()),
		"its workers' output: "+printable.Output(cmp.Or(d.Logs, "nobody has kept where it is")))
}
