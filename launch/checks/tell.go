package checks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"muster/launch"
	"muster/netcheck"
	"muster/netcheck/report"
)

// tell says what a check has found: what concerns everybody on every node, the tables on the one that leads.
func (c *Checker) tell(in launch.CheckInput, r *netcheck.Record, took time.Duration) {
	own := &r.Nodes[in.Round.GroupRank]
	level := zerolog.InfoLevel
	if own.Fault != nil || len(r.Undecided) > 0 || own.Unable != "" {
		level = zerolog.WarnLevel
	}
	what := "check of this node"
	if in.Door {
		what += " before it joins"
	}
	c.log.WithLevel(level).Str("status", string(own.Status)).Str("reason", own.Reason).Int("rounds", r.Rounds).Dur("dur_ms", took).Msg(what)
	if own.Unable != "" {
		c.log.Warn().Str("reason", own.Unable).Msg("nodes could not be tested: the check is skipped")
	}
	for i, n := range r.Nodes {
		if n.Fault != nil && i != in.Round.GroupRank {
			c.log.Warn().Str("node", n.Node).Int("exit_code", n.Fault.Status).Str("reason", n.Fault.Reason).Msg("node has to leave")
		}
	}
	for _, s := range r.Stragglers {
		c.log.Warn().Str("node", r.Nodes[s.Node].Node).Str("resource", s.Resource).Dur("took_ms", s.Took).Dur("others_ms",
			s.Others).Msg("node is a straggler")
	}
	for _, p := range r.Probes {
		c.log.Warn().Str("check", p.ID).Str("status", p.Status.String()).Str("node", p.Subject.Node).Str("pair", p.Subject.Pair).
			Str("reason", p.Reason).Str("hint", p.Try).Msg("network between nodes")
	}
	for _, link := range r.Links {
		if link.Faulty {
			c.log.Warn().Strs("nodes", []string{r.Nodes[link.A].Node, r.Nodes[link.B].Node}).Str("reason", link.Err).Msg("link is bad")
		}
	}
	if in.Round.GroupRank != 0 {
		return
	}
	write := report.Write
	if in.Door {
		write = report.WriteDoor
	} else if len(r.Links) > 0 || len(r.Perf) > 0 || !r.Fit() {
		c.show(r)
	}
	if dir := c.plan.Job.Check.ReportDir; dir != "" {
		paths, err := write(dir, in.Round.Number, r)
		if err != nil {
			c.log.Warn().Err(err).Msg("report not written")
			return
		}
		c.log.Info().Strs("paths", paths).Msg("report written")
	}
}

// show shows what the tables say.
func (c *Checker) show(r *netcheck.Record) {
	if !c.config.AsJSON {
		_, _ = fmt.Fprint(c.config.Tables, report.Text(r)) // nobody can be told that it is gone
		return
	}
	var line bytes.Buffer
	text, err := report.JSON(r)
	if err == nil {
		err = json.Compact(&line, text)
	}
	if err != nil {
		c.log.Warn().Err(err).Msg("report not shown")
		return
	}
	// At every level: where the log is text, the tables are shown whatever its level is.
	c.log.Log().Str(zerolog.LevelFieldName, zerolog.LevelInfoValue).RawJSON("report", line.Bytes()).Msg(report.Summary(r))
}
