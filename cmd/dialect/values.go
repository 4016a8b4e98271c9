package dialect

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// maxSeconds bounds every time that is given in seconds, well below what a time.Duration holds.
const maxSeconds = 100 * 365 * 24 * 3600

var (
	streamsForAll  = lazyregexp.New(`^[0123]$`)
	streamsForRank = lazyregexp.New(`^([0-9]{1,4}):([0123])$`)
)

// parseStreams reads the value of --redirects and --tee. Unlike torchrun it takes local ranks of several digits.
func parseStreams(text string) (job.StreamMap, error) {
	if streamsForAll().MatchString(text) {
		return job.StreamMap{Default: job.Streams(text[0] - '0')}, nil
	}
	m := job.StreamMap{ByRank: map[int]job.Streams{}}
	for item := range strings.SplitSeq(text, ",") {
		parts := streamsForRank().FindStringSubmatch(item)
		if parts == nil {
			return job.StreamMap{},
				errors.New("give 0 (none), 1 (stdout), 2 (stderr), 3 (both), or RANK:NUMBER,... with local ranks, as in 0:3,1:2")
		}
		rank, err := strconv.Atoi(parts[1])
		if err != nil {
			return job.StreamMap{}, err
		}
		m.ByRank[rank] = job.Streams(parts[2][0] - '0')
	}
	return m, nil
}

// parseRanks reads a list of local ranks; an empty one is nil, all ranks.
func parseRanks(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var ranks []int
	for item := range strings.SplitSeq(text, ",") {
		n, err := pyInt(item)
		if err != nil || n < 0 {
			return nil, errors.New("give local ranks separated by commas, as in 0,1,2")
		}
		ranks = append(ranks, n)
	}
	slices.Sort(ranks)
	return slices.Compact(ranks), nil
}

// parseSignals reads a list of signal names. Unknown names come back as warnings, as torchrun goes on without them.
func parseSignals(text string) (signals []syscall.Signal, warnings []string, err error) {
	for item := range strings.SplitSeq(text, ",") {
		name := strings.ToUpper(strings.TrimSpace(item))
		if !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
		s := unix.SignalNum(name)
		switch s {
		case 0:
			warnings = append(warnings, fmt.Sprintf("--signals-to-handle: %q is no signal and is ignored", strings.TrimSpace(item)))
		case unix.SIGKILL, unix.SIGSTOP:
			return nil, nil, fmt.Errorf("%s cannot be handled by any program", name)
		case unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE:
			return nil, nil, fmt.Errorf("%s comes to muster for reasons of its own and cannot end a job", name)
		default:
			if !slices.Contains(signals, s) {
				signals = append(signals, s)
			}
		}
	}
	return signals, warnings, nil
}

// parseSwitch reads a yes or no.
func parseSwitch(text string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "true", "yes", "on":
		return true, nil
	case "0", "false", "no", "off":
		return false, nil
	}
	return false, errors.New("give true or false")
}

// parseTime reads a length of time: a number with the unit ms, s, m or h, or a bare number of seconds.
func parseTime(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, errors.New("give a time such as 500ms, 30s, 5m or 2h; a bare number is seconds")
		}
		seconds = d.Seconds()
	}
	if math.IsNaN(seconds) || seconds < 0 || seconds > maxSeconds {
		return 0, errors.New("give a time from 0 to 100 years")
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

func positive(seconds float64) error {
	if !(seconds > 0) || seconds > maxSeconds {
		return errors.New("give seconds above 0")
	}
	return nil
}
