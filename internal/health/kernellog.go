package health

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
)

// parseKmsg reads a record of /dev/kmsg, "priority,sequence,microseconds,flags;text" and lines with more of it behind;
// uptime is now. Documentation/ABI/testing/dev-kmsg of Linux.
func parseKmsg(record []byte, uptime time.Duration) (LogLine, error) {
	head, text, ok := strings.Cut(string(record), ";")
	fields := strings.Split(head, ",")
	if !ok || len(fields) < 3 {
		return LogLine{}, errors.New("not a record of the kernel log")
	}
	us, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || us < 0 {
		return LogLine{}, errors.New("a record without a time")
	}
	text, _, _ = strings.Cut(text, "\n")
	return LogLine{Age: max(0, uptime-time.Duration(us)*time.Microsecond), Text: unescape(text)}, nil
}

// unescape undoes \x0a and the like, as which the kernel writes bytes that are not printable.
func unescape(text string) string {
	var b strings.Builder
	for {
		i := strings.Index(text, `\x`)
		if i < 0 || i+4 > len(text) {
			return b.String() + text
		}
		v, err := strconv.ParseUint(text[i+2:i+4], 16, 8)
		if err != nil {
			b.WriteString(text[:i+2])
			text = text[i+2:]
			continue
		}
		b.WriteString(text[:i])
		b.WriteByte(byte(v))
		text = text[i+4:]
	}
}

// parseJournal reads what journalctl -o json writes: an object a line, of which a message that is no text is a list of
// bytes.
func parseJournal(out []byte, now time.Time) []LogLine {
	var lines []LogLine
	for line := range bytes.Lines(out) {
		var e struct {
			At      string          `json:"__REALTIME_TIMESTAMP"` // µs
			Message json.RawMessage `json:"MESSAGE"`
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		us, err := strconv.ParseInt(e.At, 10, 64)
		if err != nil {
			continue
		}
		var text string
		if json.Unmarshal(e.Message, &text) != nil {
			var octets []int
			if json.Unmarshal(e.Message, &octets) != nil {
				continue
			}
			for _, c := range octets {
				text += string([]byte{byte(c)})
			}
		}
		lines = append(lines, LogLine{Age: max(0, now.Sub(time.UnixMicro(us))), Text: text})
	}
	return lines
}

// parseSyslog reads a file that a log daemon writes: a time of RFC 3339 or of RFC 3164 (without year and zone), the
// host, "kernel:" and the message. What is older than the boot belongs to another kernel.
func parseSyslog(text []byte, now, boot time.Time) []LogLine {
	var lines []LogLine
	for line := range bytes.Lines(text) {
		head, message, ok := strings.Cut(strings.TrimRight(string(line), "\r\n"), " kernel: ")
		if !ok {
			continue
		}
		at, ok := syslogTime(head, now)
		if !ok || at.Before(boot) {
			continue
		}
		if rest, stamped := strings.CutPrefix(message, "["); stamped { // [ 123.456789]
			if _, behind, ok := strings.Cut(rest, "] "); ok {
				message = behind
			}
		}
		lines = append(lines, LogLine{Age: max(0, now.Sub(at)), Text: message})
	}
	return lines
}

func syslogTime(head string, now time.Time) (time.Time, bool) {
	stamp, _, _ := strings.Cut(head, " ")
	if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil {
		return at, true
	}
	const old = "Jan _2 15:04:05"
	if len(head) < len(old) {
		return time.Time{}, false
	}
	at, err := time.ParseInLocation(old, head[:len(old)], now.Location())
	if err != nil {
		return time.Time{}, false
	}
	at = at.AddDate(now.Year(), 0, 0)
	if at.After(now.Add(24 * time.Hour)) { // it was before New Year
		at = at.AddDate(-1, 0, 0)
	}
	return at, true
}
