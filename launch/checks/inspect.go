package checks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"muster/internal/check"
	"muster/internal/errhint"
	"muster/internal/proc"
)

// inspect examines this node as muster check does, and returns what makes it unfit, "" for nothing. It is muster check,
// in a process of its own: a driver that hangs keeps that and not the agent.
func (c *Checker) inspect(ctx context.Context) string {
	report, err := c.runCheck(ctx)
	if err != nil {
		return "this node cannot be examined: " + err.Error()
	}
	var unfit []string
	for _, r := range report.Results {
		text := r.ID + ": " + r.Reason
		if of := r.Subject.String(); of != "" {
			text = of + ": " + text
		}
		switch r.Status {
		case check.Fail:
			unfit = append(unfit, text)
		case check.Warn:
			c.log.Warn().Str("check", r.ID).Str("reason", text).Str("hint", r.Try).Msg("check of this node")
		default:
		}
	}
	return strings.Join(unfit, "; ")
}

// maxCheckOutput bounds what is read of its output, in bytes.
const maxCheckOutput = 8 << 20

func (c *Checker) runCheck(ctx context.Context) (report check.Report, err error) {
	args, env := c.config.Examine(c.in.Round.Number)
	var out, said bytes.Buffer
	var readers sync.WaitGroup
	pipes, err := proc.NewPipes(proc.Out, proc.Out)
	if err != nil {
		return report, err
	}
	p, err := c.in.Tree.Start(proc.Spec{
		Path: "/proc/self/exe", Args: args, Env: env, Dir: c.in.Dir, Files: append([]*os.File{nil}, pipes.Theirs...),
		Label: "the check of this node",
	})
	pipes.Settle(err)
	if err != nil {
		return report, err
	}
	for i, to := range []*bytes.Buffer{&out, &said} {
		r := pipes.Ours[i]
		readers.Go(func() {
			defer func() { _ = r.Close() }()
			_, _ = io.Copy(to, io.LimitReader(r, maxCheckOutput))
		})
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		if err := c.in.Tree.Stop(context.WithoutCancel(ctx), proc.Ladder{Grace: time.Second}, p); err != nil {
			return report, err
		}
		return report, context.Cause(ctx)
	}
	readers.Wait()
	if s := p.Exit().Status(); s != errhint.OK && s != errhint.Faulty {
		return report, fmt.Errorf("muster check ended with status %d: %s", s, strings.TrimSpace(said.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return report, fmt.Errorf("cannot read what muster check says: %w", err)
	}
	return report, nil
}
