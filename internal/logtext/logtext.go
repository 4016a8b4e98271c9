// Package logtext shows muster's own log to people. The log is written as lines of JSON, the form in which agents send
// it to their launcher; here they become lines of text: the time, the level, the message, and what the fields say in
// words.
package logtext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"muster/internal/printable"
)

// The formats of --log-format.
const (
	Auto = "auto" // Text
	Text = "text"
	JSON = "json"
)

// Formats are all formats, for flags.
func Formats() []string { return []string{Auto, Text, JSON} }

// NodeKey is the field with the name of the node whose agent says a line.
const NodeKey = "agent"

// Writer shows lines of JSON, one with each Write, as lines of text. What is no line of ours passes as it is. It is as
// safe for concurrent use as Out is.
type Writer struct {
	Out   io.Writer
	Color bool
	// Status shows what is waited for in a line that changes, "" ends that; it reports whether there is a place for
	// such a line. nil: there is none, and a line is written each time.
	Status func(text string) bool

	mu      sync.Mutex
	waiting bool // Status shows something
}

// Write shows one line.
func (w *Writer) Write(p []byte) (int, error) {
	e, ok := parse(p)
	if !ok {
		return w.Out.Write(p)
	}
	if err := w.show(&e); err != nil {
		return 0, err
	}
	return len(p), nil
}

// show writes a line, or shows what is waited for.
func (w *Writer) show(e *entry) error {
	if w.Status != nil && e.waits() && w.Status(e.status()) {
		w.mu.Lock()
		w.waiting = true
		w.mu.Unlock()
		return nil
	}
	w.EndStatus()
	_, err := io.WriteString(w.Out, e.text(w.Color)+"\n")
	return err
}

// EndStatus takes away the line with what was waited for. Workers' output must not come behind it.
func (w *Writer) EndStatus() {
	w.mu.Lock()
	waiting := w.waiting
	w.waiting = false
	w.mu.Unlock()
	if waiting {
		w.Status("")
	}
}

// durationKey is the field with how long something took, or was waited for.
const durationKey = "dur_ms"

// waits reports whether the line says again and again what a node waits for. (As information it is said while workers
// run, whose output would come behind a line that changes.)
func (e *entry) waits() bool {
	return strings.HasPrefix(e.message, "waiting") && e.level == "warn" && e.has(durationKey)
}

// status is the line where it changes: how long it has been waited stands in front, as the end may be cut off.
func (e *entry) status() string {
	short, waited := *e, ""
	short.fields = slices.DeleteFunc(slices.Clone(e.fields), func(f field) bool {
		if f.key != durationKey {
			return false
		}
		if ms, err := strconv.ParseFloat(fmt.Sprint(f.value), 64); err == nil {
			waited = ", " + Duration(time.Duration(ms*float64(time.Millisecond)))
		}
		return true
	})
	short.at, short.level = time.Time{}, ""
	return strings.Replace(strings.TrimSpace(short.text(false)), e.message, e.message+waited, 1)
}

// entry is a line of the log.
type entry struct {
	level, message string
	at             time.Time
	fields         []field  // in their order, without those above and NodeKey
	nodes          []string // that say it
}

// field is one of a line's fields: its value is a string, a json.Number, a bool, nil or a []any of these.
type field struct {
	key   string
	value any
}

// parse reads a line of the log; false where it is none.
func parse(line []byte) (entry, bool) {
	var e entry
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return e, false
	}
	for d.More() {
		t, err := d.Token()
		key, isKey := t.(string)
		if err != nil || !isKey {
			return e, false
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return e, false
		}
		text, _ := value.(string)
		switch key {
		case "level":
			e.level = text
		case "message":
			e.message = text
		case "time":
			e.at, _ = time.Parse(time.RFC3339, text) // zero: no time is shown
		case NodeKey:
			e.nodes = []string{text}
		default:
			e.fields = append(e.fields, field{key, value})
		}
	}
	return e, e.level != ""
}

// maxValue is how much of one value is shown, in bytes.
const maxValue = 4000

// text is the line without its end.
func (e *entry) text(color bool) string {
	var b strings.Builder
	paint := func(code, text string) {
		if color && code != "" {
			text = "\x1b[" + code + "m" + text + "\x1b[0m"
		}
		b.WriteString(text)
	}
	if !e.at.IsZero() {
		paint("2", e.at.Local().Format(time.TimeOnly))
		b.WriteByte(' ')
	}
	paint(map[string]string{"debug": "2", "warn": "33", "error": "31;1", "fatal": "31;1"}[e.level], fmt.Sprintf("%-5s", e.level))
	b.WriteByte(' ')
	b.WriteString(printable.Line(e.message, maxValue))
	words, hint := e.words()
	switch said := strings.Join(words, ", "); {
	case said == "":
	case strings.Contains(e.message, ": "):
		b.WriteString(" (" + said + ")")
	default:
		b.WriteString(": " + said)
	}
	if len(e.nodes) > 0 {
		b.WriteString(" [" + nodeList(e.nodes) + "]")
	}
	if hint != "" { // the last on the line: it may be a command, which is copied up to there
		b.WriteString("; hint: " + hint)
	}
	return b.String()
}

// maxNodes is how many nodes, and parts of a list, are named.
const maxNodes = 8

func nodeList(nodes []string) string {
	more := ""
	if len(nodes) > maxNodes {
		nodes, more = nodes[:maxNodes], fmt.Sprintf(" and %d more", len(nodes)-maxNodes)
	}
	return printable.Line(strings.Join(nodes, ", "), maxValue) + more
}

// plain are the fields whose values need no name.
var plain = map[string]bool{
	"error": true, "reason": true, "nodes": true, "path": true, "paths": true, "addr": true, "signal": true, "ended": true,
	"platform":    true,
	"local_ranks": true, "status": true, "file": true, "line": true, "place": true, "source": true, "warnings": true,
}

// named are the words for fields whose names are not good enough; %s is the value. Empty: people do not need it.
var named = map[string]string{
	"group_world_size": "%s nodes", "world_size": "%s workers", "local_world_size": "%s workers", "exit_code": "exit status %s",
	"restart_count": "restart %s", "max_restarts": "at most %s", "last_line": "last line: %s", "addresses_by_rank": "", "pid": "process %s",
	"pids":     "process ids %s",
	"found_by": "found by %s", "meet_at": "they meet at %s", "max_nodes": "at most %s nodes", "min_nodes": "at least %s nodes",
}

// times are the words for durations, without the unit of their names.
var times = map[string]string{
	"dur": "after %s", "timeout": "at most %s", "limit": "at most %s", "delay": "in %s", "silent": "silent for %s",
	"grace": "SIGKILL in %s, or at once with a second signal", "ahead": "by %s",
}

// minSaid is the length up to which a value may stand in a message by chance.
const minSaid = 3

func (e *entry) has(key string) bool {
	return slices.ContainsFunc(e.fields, func(f field) bool { return f.key == key })
}

// begins reports whether the text of a field begins like that.
func (e *entry) begins(with string) bool {
	return slices.ContainsFunc(e.fields, func(f field) bool {
		text, ok := f.value.(string)
		return ok && strings.HasPrefix(text, with)
	})
}

// words are what the fields say; hint is what can be done about it.
func (e *entry) words() (words []string, hint string) {
	restarts := ""
	for _, f := range e.fields {
		text, ok := valueText(f.value)
		_, isText := f.value.(string)
		switch {
		case !ok || isText && len(text) > minSaid && strings.Contains(e.message, text):
			continue // the message says it
		case f.key == "restart_count" && (e.has("max_restarts") || text == "0"):
			restarts = text
			continue
		case (f.key == "local_rank" || f.key == "pid") && e.has("rank"):
			continue
		case f.key == "check" && e.begins(text+": "):
			continue // the reason says it
		}
		format, isNamed := named[f.key]
		name, isTime := strings.CutSuffix(f.key, "_ms")
		switch {
		case f.key == "hint" || f.key == "try":
			hint = text
		case isTime:
			d, err := strconv.ParseFloat(text, 64)
			if err != nil {
				continue
			}
			format = times[name]
			switch {
			case name == "dur" && strings.HasPrefix(e.message, "waiting"):
				format = "for %s"
			case name == "delay" && d == 0:
				continue
			case format == "":
				format = spaced(name) + " %s"
			}
			words = append(words, fmt.Sprintf(format, Duration(time.Duration(d*float64(time.Millisecond)))))
		case f.value == true:
			words = append(words, spaced(f.key))
		case f.key == "pids" && !strings.Contains(text, ","):
			words = append(words, "process id "+text)
		case f.key == "ranks" && !strings.Contains(text, ","):
			words = append(words, "rank "+text)
		case f.key == "nodes" && isNumber(f.value):
			words = append(words, strings.TrimSuffix(text+" nodes", map[bool]string{true: "s"}[text == "1"]))
		case f.key == "max_restarts" && restarts != "":
			words = append(words, restartOf(restarts, text))
		case f.key == "node" && len(e.nodes) == 1 && e.nodes[0] == text, isText && len(text) > minSaid &&
			strings.Contains(strings.Join(words, ", "), text):
		case f.key == "node" && strings.HasPrefix(text, "node"), plain[f.key]:
			words = append(words, text)
		case isNamed && format == "":
		case isNamed:
			word := fmt.Sprintf(format, text)
			if text == "1" { // not 1 workers
				word = strings.TrimSuffix(word, "s")
			}
			words = append(words, word)
		default:
			words = append(words, spaced(f.key)+" "+text)
		}
	}
	return words, hint
}

func isNumber(value any) bool {
	_, ok := value.(json.Number)
	return ok
}

func spaced(key string) string { return strings.ReplaceAll(printable.Line(key, maxValue), "_", " ") }

// valueText is a value for people; false where it says nothing.
func valueText(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return printable.Line(v, maxValue), v != ""
	case json.Number:
		return v.String(), true
	case bool:
		return "", v
	case []any:
		var parts []string
		for i, part := range v {
			if i == maxNodes {
				parts[i-1] += fmt.Sprintf(" and %d more", len(v)-i)
				break
			}
			text, _ := valueText(part)
			parts = append(parts, text)
		}
		return strings.Join(parts, ", "), len(parts) > 0
	case nil:
		return "", false
	}
	return printable.Line(fmt.Sprint(value), maxValue), true
}

// Duration writes a duration for people, with the two largest units that it has: 9 min 10 s, 3.2 s, 15 ms.
func Duration(d time.Duration) string {
	if d < 0 {
		return "-" + Duration(-d)
	}
	switch {
	case d < time.Millisecond:
		return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'g', 1, 64) + " ms"
	case d < 999500*time.Microsecond:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case d < 9950*time.Millisecond:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
	}
	units := []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}}
	// What is left out is rounded: 59 min 59.9 s is an hour.
	if d >= 24*time.Hour {
		d = d.Round(time.Hour)
	} else if d >= time.Hour {
		d = d.Round(time.Minute)
	} else {
		d = d.Round(time.Second)
	}
	var parts []string
	for _, u := range units {
		if n := d / u.size; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, u.name))
			d %= u.size
		}
	}
	return strings.Join(parts, " ")
}

// restartOf says which restart this is. Those that a limit does not count, such as for newcomers, may be more than it,
// and a job file without a limit has one that nobody reaches.
func restartOf(n, most string) string {
	count, err := strconv.Atoi(n)
	limit, err2 := strconv.Atoi(most)
	const unlimited = 1_000_000_000
	switch {
	case err != nil || err2 != nil || count <= limit && limit < unlimited:
		return "restart " + n + " of at most " + most
	case limit >= unlimited:
		return "restart " + n
	}
	return "restart " + n + ", of which at most " + most + " count"
}
