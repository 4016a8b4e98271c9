// Package metrics writes what is known of a job in the text format of Prometheus, version 0.0.4. docs/metrics.md says
// what each metric means.
package metrics

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/launch/job"
	"muster/launch/report"
)

// Snapshot is what is known of a job at one moment.
type Snapshot struct {
	Status   report.Status
	Measured report.Measured
}

// contentType is that of what Write writes.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Handler answers with the metrics of the snapshot that get returns.
func Handler(get func(ctx context.Context) (Snapshot, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := get(r.Context())
		if err != nil {
			status := http.StatusInternalServerError
			if errhint.CodeOf(err) == errhint.TryAgain {
				status = http.StatusServiceUnavailable
			}
			http.Error(w, err.Error(), status)
			return
		}
		w.Header().Set("Content-Type", contentType)
		_ = write(w, s) // who does not take it is gone
	})
}

// write writes all metrics of which something is known.
func write(w io.Writer, s Snapshot) error {
	var b bytes.Buffer
	for i := range families {
		f := &families[i]
		l := lines{family: f, to: &b}
		f.write(&l, &s)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Family describes one metric.
type Family struct {
	Name, Kind, Help string
}

// Families are all metrics that there are, by name.
func Families() []Family {
	var list []Family
	for _, f := range families {
		list = append(list, Family{f.name, f.kind, f.help})
	}
	slices.SortFunc(list, func(a, b Family) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// The kinds of metrics.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
	summary   = "summary" // without quantiles: how often, and how long in all
)

// family is a metric, and how it is told of a snapshot.
type family struct {
	name, kind, help string
	write            func(*lines, *Snapshot)
}

// lines are those of one metric. Its head comes with the first of them.
type lines struct {
	family *family
	to     *bytes.Buffer
	begun  bool
}

// add writes a sample. labels are names and values in turn.
func (l *lines) add(value float64, labels ...string) { l.sample("", value, labels...) }

// sample writes a sample whose name has an ending.
func (l *lines) sample(ending string, value float64, labels ...string) {
	if !l.begun {
		l.begun = true
		l.to.WriteString("# HELP " + l.family.name + " " + helpText.Replace(l.family.help) + "\n# TYPE " + l.family.name + " " +
			l.family.kind + "\n")
	}
	l.to.WriteString(l.family.name + ending)
	for i := 0; i+1 < len(labels); i += 2 {
		before := ","
		if i == 0 {
			before = "{"
		}
		l.to.WriteString(before + labels[i] + `="` + labelText.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")) + `"`)
	}
	if len(labels) > 1 {
		l.to.WriteByte('}')
	}
	l.to.WriteString(" " + number(value) + "\n")
}

// number is a value as the format has it.
func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// replacer is a strings.Replacer that is made when it is used.
type replacer []string

// What the format escapes.
var (
	labelText = replacer{`\`, `\\`, `"`, `\"`, "\n", `\n`}
	helpText  = replacer{`\`, `\\`, "\n", `\n`}
)

// Replace returns a text with what is to be escaped.
func (r replacer) Replace(text string) string {
	if !strings.ContainsAny(text, "\\\"\n") {
		return text
	}
	return strings.NewReplacer(r...).Replace(text)
}

// durations tells how often something was done and how long it took.
func (l *lines) durations(d report.Durations) {
	l.sample("_sum", d.Seconds)
	l.sample("_count", float64(d.Count))
}

// perRank tells a number of each rank of which there is one.
func (l *lines) perRank(s *Snapshot, of func(r *report.Rank) (float64, bool)) {
	for i := range s.Status.Ranks {
		r := &s.Status.Ranks[i]
		if v, known := of(r); known {
			l.add(v, rankLabels(r)...)
		}
	}
}

func rankLabels(r *report.Rank) []string {
	return []string{"rank", strconv.Itoa(r.Rank), "node", r.Node}
}

// nodeOf is the node of a rank.
func nodeOf(s *Snapshot, rank int) string {
	for i := range s.Status.Ranks {
		if s.Status.Ranks[i].Rank == rank {
			return s.Status.Ranks[i].Node
		}
	}
	return ""
}

// moment is a time as Prometheus has it.
func moment(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// sorted are the reasons of restarts, in the order of their names.
func sorted(m map[job.Reason]int) []job.Reason {
	var list []job.Reason
	for reason := range m {
		list = append(list, reason)
	}
	slices.Sort(list)
	return list
}
