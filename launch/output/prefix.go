package output

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"muster/internal/python"
	"muster/launch/job"
)

// defaultPrefix is the prefix where none is given: torchrun's, for tee'd lines of its dialect.
const defaultPrefix = "[${role_name}${local_rank}]:"

// Identity says whose output it is.
type Identity struct {
	LocalRank, Rank int
	Role            string
	// Host is this node's name.
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
func prefixOf(r *job.LogRules, w Identity) string {
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

// ProcessPrefix returns what stands in front of the next line of a process with a rank on a host; stream is stdout or
// stderr.
func ProcessPrefix(r *job.LogRules, rank int, host, stream string, now time.Time) string {
	text := prefixOf(r, Identity{Rank: rank, Host: host, Stream: stream})
	if r.Stamp {
		text = now.Format(time.ANSIC) + text
	}
	return text
}

// linePrefix fills a prefix template in for one worker.
func linePrefix(template string, w Identity) string {
	if template == "" {
		template = defaultPrefix
	}
	return python.Substitute(template, map[string]string{
		"role_name": w.Role, "local_rank": strconv.Itoa(w.LocalRank), "rank": strconv.Itoa(w.Rank), "hostname": shortHost(w.Host),
		"stream": w.Stream,
	})
}
