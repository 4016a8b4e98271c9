package launch

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"muster/internal/errhint"
	"muster/internal/nodehealth"
	"muster/internal/printable"
	"muster/internal/proc"
	"muster/launch/job"
	"muster/launch/policy"
)

const (
	// siteTime is how long the site's service, and its command, may take each, as NVIDIA's launcher has it.
	siteTime = 60 * time.Second
	// siteAgain is for how long it counts that a node is fit: one that has waited longer for the others is asked for again.
	siteAgain = 30 * time.Second
	// maxSiteOutput bounds what is kept of what the command prints.
	maxSiteOutput = 64 << 10
	// shellSignal and the number of a signal, of which lastSignal is the greatest, are the status of a shell whose
	// command was killed.
	shellSignal, lastSignal = 128, 64
)

// siteArgs are the arguments that NVIDIA's launcher gives the service (nvidia-resiliency-ext 0.7.0, read).
var siteArgs = []string{"--no-slurm", "--group", "prolog", "epilog", "logs", "gpu"}

// siteHealth asks the site whether this node is fit for a round, and returns that it has to leave where it is not. An
// answer that cannot be used is told, and changes nothing.
func (a *Agent) siteHealth(ctx context.Context, round int) *policy.Decision {
	rules := a.Plan.Job.Health
	if !rules.Asks() || time.Since(a.siteAsked) < siteAgain {
		return nil
	}
	began := time.Now()
	var reasons []string
	if rules.Socket != "" {
		bounded, cancel := context.WithTimeout(ctx, siteTime)
		said, err := nodehealth.Ask(bounded, rules.Socket, siteArgs)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.siteSilent(err, "the site's health service has not said whether this node is fit")
		case !said.Healthy:
			reasons = append(reasons, said.Reason)
		}
	}
	if rules.Command != "" {
		bounded, cancel := context.WithTimeout(ctx, siteTime) // one of its own: the service may have used up the other
		said, err := a.healthCommand(bounded, round)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.siteSilent(err, "the site's health command has not said whether this node is fit")
		default:
			reasons = append(reasons, said...)
		}
	}
	if len(reasons) == 0 {
		a.siteAsked = time.Now() // one that is not fit is asked for again, if another verdict keeps it from leaving
		return nil
	}
	text := fmt.Sprintf("node %s is not fit, as its site says: %s", a.Plan.Hostname, strings.Join(reasons, "; "))
	d := policy.Decision{
		Verdict: policy.Leave, Reason: reasonFaulty, Rank: -1, Status: errhint.Faulty, Text: printable.Line(text, printable.MaxOutput),
	}
	a.Steering.checked(CheckOutcome{Status: d.Status, Message: d.Text}, &d, nil, time.Since(began))
	return &d
}

// siteSilent tells that an answer could not be used.
func (a *Agent) siteSilent(err error, message string) {
	a.Log.Warn().Err(err).Str("hint", "the node takes part all the same").Msg(message)
}

// healthCommand runs the site's command. It returns why the node is not fit, nothing where it is, and an error where
// the command has not said that.
func (a *Agent) healthCommand(ctx context.Context, round int) (reasons []string, err error) {
	command := a.Plan.Job.Health.Command
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot run the health command: %w", err)
	}
	var said []byte
	var wg sync.WaitGroup
	wg.Go(func() {
		said, _ = io.ReadAll(io.LimitReader(r, maxSiteOutput))
		_, _ = io.Copy(io.Discard, r)
	})
	env := append(os.Environ(), "MUSTER_NODE="+a.Plan.Hostname, "MUSTER_RUN_ID="+a.Plan.RunID, fmt.Sprintf("MUSTER_ROUND=%d", round))
	p, err := a.tree.Start(proc.Spec{
		Path: "/bin/sh", Args: []string{"sh", "-c", command}, Env: env, Dir: a.Plan.Dir,
		Files: []*os.File{a.stdin, w, w}, Label: "--health-command",
	})
	_ = w.Close() // nothing was written
	if err == nil {
		select {
		case <-p.Done():
		case <-ctx.Done():
		}
		late := ctx.Err() != nil
		err = a.tree.Stop(context.WithoutCancel(ctx), proc.Ladder{Grace: time.Second}, p)
		if err == nil && late {
			err = fmt.Errorf("%q has not ended in %v", job.ShownText(command), siteTime)
		}
	}
	if err != nil {
		_ = r.Close() // a process that is left may hold the other end
	}
	wg.Wait()
	_ = r.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot run the health command: %w", err)
	}
	switch exit := p.Exit(); {
	case exit.Success():
		return nil, nil
	case exit.Signal != 0, exit.Code == errhint.NotExecuted, exit.Code == errhint.NotFound,
		exit.Code > shellSignal && exit.Code <= shellSignal+lastSignal: // a shell has run it, and it was killed
		return nil, fmt.Errorf("the health command %q ended with status %d: %s", job.ShownText(command), exit.Status(), lastLine(said))
	default:
		reason := fmt.Sprintf("its health command ended with status %d", exit.Code)
		if line := lastLine(said); line != "" {
			reason += ": " + line
		}
		return []string{reason}, nil
	}
}

// lastLine is the last line with words in it, fit to be shown.
func lastLine(said []byte) string {
	text := strings.TrimSpace(string(said))
	return printable.Line(text[strings.LastIndexByte(text, '\n')+1:], 200)
}
