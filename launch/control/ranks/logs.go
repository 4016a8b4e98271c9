package ranks

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"muster/internal/errhint"
	"muster/launch/control"
)

// Logs says which logs are shown, and how.
type Logs struct {
	Follow   bool   // on with what is written from now on, until the job ends
	Previous bool   // of the process before the one that runs, or ran last
	Ranks    string // a list such as 0,4-7
	Node     string // of all ranks of this node, by its group rank or its name
	Tail     int    // begin with the last lines of each file; below 0: with the first

	Stdout, Stderr io.Writer
}

// Check refuses what can mean nothing, whatever job it is.
func (o *Logs) Check() error {
	switch {
	case o.Follow && o.Previous:
		return errhint.Usagef("cannot use -f and --previous together: what has ended writes nothing more")
	case o.Ranks != "" && o.Node != "":
		return errhint.Usagef("cannot use --rank and --node together: give one of them")
	case o.Ranks != "":
		_, err := parse(o.Ranks)
		return err
	}
	return nil
}

// Show shows the logs of a job, whose parts on this machine are told: of workers here by their files, of others by their
// nodes. Without Ranks and Node the workers here are meant.
func (o *Logs) Show(ctx context.Context, job control.Found, parts []control.Found) error {
	here := here(parts)
	wanted, err := o.wanted(ctx, job, here)
	if err != nil {
		return err
	}
	show := &logShow{client: job.Client(), o: o, prefix: len(wanted) > 1}
	defer func() { show.here.Close() }()
	var away []int
	for _, n := range wanted {
		i := slices.IndexFunc(here, func(r Local) bool { return r.Rank.Rank == n })
		if i < 0 {
			away = append(away, n)
			continue
		}
		l := &control.RankLogs{
			Ask: here[i].By.Client().Rank, RunID: here[i].By.RunID(), Rank: n, Tail: o.Tail, Stdout: lines{show, o.Stdout},
			Stderr: lines{show, o.Stderr},
		}
		if show.prefix {
			l.Prefix = fmt.Appendf(nil, "[rank %d] ", n)
		}
		if err := l.Open(ctx, o.Previous); err != nil {
			return err
		}
		show.here = append(show.here, l)
	}
	if len(away) > 0 {
		d, err := job.Client().Status(ctx, control.World)
		if err != nil {
			return err
		}
		if show.far, err = elsewhere(job, &d, away, here); err != nil {
			return err
		}
	}
	return show.show(ctx)
}

// wanted are the ranks that are asked for: those that are here where none are named.
func (o *Logs) wanted(ctx context.Context, job control.Found, here []Local) ([]int, error) {
	switch {
	case o.Ranks != "":
		return parse(o.Ranks)
	case o.Node != "":
		d, err := job.Client().Status(ctx, control.World)
		if err != nil {
			return nil, err
		}
		return on(&d, o.Node)
	case len(here) == 0:
		return nil, errhint.With(errhint.Usagef("job %s has no worker on this machine (%s)", job.RunID(), job.Answer.Phase),
			"name ranks of other nodes by --rank, or a node by --node")
	}
	var ranks []int
	for _, r := range here {
		ranks = append(ranks, r.Rank.Rank)
	}
	return slices.Compact(ranks), nil
}

// logShow is what muster logs shows: of workers here by their files, of others by their nodes.
type logShow struct {
	client *control.Client
	here   control.Logs
	far    []onNode
	o      *Logs
	prefix bool

	mu sync.Mutex // a line of one of them is whole
}

// lines is one of the streams of muster logs, which several write to.
type lines struct {
	of *logShow
	to io.Writer
}

func (l lines) Write(p []byte) (int, error) {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	return l.to.Write(p)
}

// show shows them, one node after another or, where they are followed, all at once. The first error counts.
func (s *logShow) show(ctx context.Context) error {
	far := func(n onNode) error {
		return s.client.Logs(ctx, n.node, control.LogsWanted{
			Ranks: n.ranks, Follow: s.o.Follow, Previous: s.o.Previous, Tail: s.o.Tail, Prefix: s.prefix,
		}, lines{s, s.o.Stdout}, lines{s, s.o.Stderr})
	}
	if !s.o.Follow {
		if err := s.here.Show(ctx, false); err != nil {
			return err
		}
		for _, n := range s.far {
			if err := far(n); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, 1+len(s.far))
	var all sync.WaitGroup
	if len(s.here) > 0 {
		all.Go(func() { errs[0] = s.here.Show(ctx, true) })
	}
	for i, n := range s.far {
		all.Go(func() { errs[1+i] = far(n) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
