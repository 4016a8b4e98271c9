package job

import (
	"fmt"
	"strconv"
	"strings"
)

// ExitCodes is a set of exit codes, 0 to 255, written as a list of numbers and ranges: "130,137", "1-100", ">=128".
// A signal n counts as 128+n. The zero value is empty.
type ExitCodes struct {
	ranges []codeRange
}

type codeRange struct{ low, high int }

// codePresets are the names that stand for a range. Kubeflow's training operator retries what a signal ended.
var codePresets = map[string]codeRange{"kubeflow": {128, 255}}

// ParseExitCodes reads a comma-separated list of codes, ranges "low-high", bounds ">=low" and the name "kubeflow",
// which is ">=128". Blanks around items and numbers do not matter. Empty text is the empty set.
func ParseExitCodes(text string) (ExitCodes, error) {
	var set ExitCodes
	if strings.TrimSpace(text) == "" {
		return set, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		r, err := parseCodeRange(strings.TrimSpace(item))
		if err != nil {
			return ExitCodes{}, err
		}
		set.ranges = append(set.ranges, r)
	}
	return set, nil
}

func parseCodeRange(item string) (codeRange, error) {
	if preset, ok := codePresets[item]; ok {
		return preset, nil
	}
	low, high, isRange := strings.Cut(item, "-")
	if bound, ok := strings.CutPrefix(item, ">="); ok {
		low, high, isRange = bound, "255", true
	}
	if !isRange {
		high = low
	}
	r := codeRange{}
	for _, part := range []struct {
		text string
		to   *int
	}{{low, &r.low}, {high, &r.high}} {
		n, err := strconv.ParseUint(strings.TrimSpace(part.text), 10, 8)
		if err != nil {
			return r, fmt.Errorf("%q is no exit code: give numbers from 0 to 255, ranges such as 1-100, or >=128", item)
		}
		*part.to = int(n)
	}
	if r.low > r.high {
		return r, fmt.Errorf("the range %q of exit codes is empty", item)
	}
	return r, nil
}

// Has reports whether code is in the set.
func (s ExitCodes) Has(code int) bool {
	for _, r := range s.ranges {
		if r.low <= code && code <= r.high {
			return true
		}
	}
	return false
}

// String writes the set as ParseExitCodes reads it.
func (s ExitCodes) String() string {
	items := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		items[i] = strconv.Itoa(r.low)
		if r.high != r.low {
			items[i] += "-" + strconv.Itoa(r.high)
		}
	}
	return strings.Join(items, ",")
}

// MarshalText is String: a job travels to other machines as JSON.
func (s ExitCodes) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *ExitCodes) UnmarshalText(text []byte) (err error) {
	*s, err = ParseExitCodes(string(text))
	return err
}
