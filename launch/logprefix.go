package launch

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"muster/launch/job"
)

// defaultPrefix is the prefix where none is given: torchrun's, for tee'd lines of its dialect.
const defaultPrefix = "[${role_name}${local_rank}]:"

// workerIdentity says whose output it is.
type workerIdentity struct {
	LocalRank, Rank int
	Role            string
	// Host is this node's name as prefixes show it.
	Host string
	// Stream is stdout or stderr.
	Stream string
}

// shortHost is a host's name as prefixes show it: without its domain.
func shortHost(name string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return name
	}
	short, _, _ := strings.Cut(name, ".")
	return short
}

// prefixOf is what stands in front of one worker's lines. With Color it has one of six colors, by the worker's rank.
func prefixOf(r *job.LogRules, w workerIdentity) string {
	template := r.Prefix
	if template == "" && r.PrefixAll {
		template = job.RankPrefix
	}
	text := linePrefix(template, w)
	if !r.Color {
		return text
	}
	const red, colors = 31, 6
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", red+w.Rank%colors, text)
}

// ProcessPrefix returns what stands in front of the next line of a process with a rank on a host; stream is stdout or stderr.
func ProcessPrefix(r *job.LogRules, rank int, host, stream string, now time.Time) string {
	text := prefixOf(r, workerIdentity{Rank: rank, Host: shortHost(host), Stream: stream})
	if r.Stamp {
		text = now.Format(time.ANSIC) + text
	}
	return text
}

// linePrefix fills a prefix template in for one worker.
func linePrefix(template string, w workerIdentity) string {
	if template == "" {
		template = defaultPrefix
	}
	return expandTemplate(template, map[string]string{
		"role_name": w.Role, "local_rank": strconv.Itoa(w.LocalRank), "rank": strconv.Itoa(w.Rank), "hostname": w.Host, "stream": w.Stream,
	})
}

// expandTemplate replaces ${name} and $name as safe_substitute of Python's string.Template does, which torchrun uses:
// unknown names and a lone $ stay as they are, $$ is a $.
func expandTemplate(text string, values map[string]string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = after
		if rest, ok := strings.CutPrefix(text, "$"); ok {
			b.WriteByte('$')
			text = rest
			continue
		}
		name, length := templateName(text)
		value, known := values[name]
		if !known {
			b.WriteByte('$')
			continue
		}
		b.WriteString(value)
		text = text[length:]
	}
}

// templateName returns the name at the start of text, which follows a $, and how many bytes of text it takes with its
// braces; "" and 0 where there is none.
func templateName(text string) (string, int) {
	inner, braced := strings.CutPrefix(text, "{")
	end := 0
	for end < len(inner) && isNameByte(inner[end], end > 0) {
		end++
	}
	switch {
	case end == 0:
		return "", 0
	case !braced:
		return inner[:end], end
	case end < len(inner) && inner[end] == '}':
		return inner[:end], end + 2
	}
	return "", 0
}

func isNameByte(c byte, digits bool) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || digits && '0' <= c && c <= '9'
}
