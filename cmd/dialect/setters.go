package dialect

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"muster/internal/typos"
	"muster/launch/job"
)

// choiceError refuses a word that is none of a setting's fixed ones.
type choiceError struct {
	choices []string
}

func (e *choiceError) Error() string { return "choose one of " + strings.Join(e.choices, ", ") }

func oneOf(text string, choices ...string) error {
	if slices.Contains(choices, text) {
		return nil
	}
	return &choiceError{choices}
}

func setSwitch(to *bool, text string) (err error) {
	*to, err = parseSwitch(text)
	return err
}

// checkSwitch is for switches that native reads itself.
func checkSwitch(_ *Request, text string) error {
	_, err := parseSwitch(text)
	return err
}

func setTime(to *time.Duration, text string) (err error) {
	*to, err = parseTime(text)
	return err
}

func setCount(to *int, text string) error {
	n, err := pyInt(text)
	if err != nil || n < 0 {
		return errors.New("give a number from 0")
	}
	*to = n
	return nil
}

// setLimit is setCount with a word for no limit.
func setLimit(to *int, text string) error {
	if text == "none" {
		*to = -1
		return nil
	}
	if err := setCount(to, text); err != nil {
		return errors.New("give a number from 0, or none")
	}
	return nil
}

// perRank ends a --restart-limit that each group rank has for itself.
const perRank = "/rank"

func setReplacements(rules *job.RestartRules, text string) error {
	count, each := strings.CutSuffix(text, perRank)
	if !each {
		rules.RankLimit = 0
		return setLimit(&rules.ReplaceLimit, text)
	}
	rules.ReplaceLimit = -1
	if err := setCount(&rules.RankLimit, count); err != nil || rules.RankLimit == 0 {
		return errors.New("give a number from 1 in front of " + perRank)
	}
	return nil
}

func setQuorum(to *job.Quorum, text string) error {
	*to = job.Quorum(text)
	return oneOf(text, string(job.QuorumAll), string(job.QuorumAny), string(job.QuorumRank0), string(job.QuorumNone))
}

// warmDefault is --warm's default in the run command: a restart may come in another way where the first start stays as
// it is. Other launchers have no such thing, and under their names nothing is warm that nobody asked for:
// warmElsewhere.
const warmDefault, warmElsewhere = "restarts", "off"

func setWarm(r *Request, text string) error {
	r.Job.Warm.Auto, r.Job.Warm.Restarts, r.Job.Warm.Modules, r.Job.Warm.Doubted = false, false, nil, nil
	if text == "off" {
		return nil
	}
	for i, name := range strings.Split(text, ",") {
		name = strings.TrimSpace(name)
		if name == "auto" && i == 0 {
			r.Job.Warm.Auto = true
			continue
		}
		if name == "restarts" && i == 0 {
			r.Job.Warm.Auto, r.Job.Warm.Restarts = true, true
			continue
		}
		switch strings.ToLower(name) {
		case "off", "auto", "restarts", "on", "true", "yes", "1", "false", "no", "0":
			return fmt.Errorf("%q is no module's name: give off, restarts, auto, modules with commas between such as "+
				"torch,transformers, or auto,torch", name)
		}
		if !moduleName().MatchString(name) {
			return fmt.Errorf("%q is no module's name: give off, restarts, auto, modules with commas between such as "+
				"torch,transformers, or auto,torch", name)
		}
		r.Job.Warm.Modules = append(r.Job.Warm.Modules, name)
		if near := nearWarmWord(name); near != "" {
			if r.Job.Warm.Doubted == nil {
				r.Job.Warm.Doubted = map[string]string{}
			}
			r.Job.Warm.Doubted[name] = near
		}
	}
	return nil
}

// nearWarmWord returns the word of --warm that a module's name may be a slip of the pen from, "" for none.
func nearWarmWord(module string) string {
	best, distance := "", warmTypos+1
	for _, w := range []struct{ written, meant string }{{"auto", "auto"}, {"off", "off"}, {"restarts", "restarts"}, {"on", "auto"}} {
		if d := typos.Count(strings.ToLower(module), w.written); d < distance && d < len(w.written) {
			best, distance = w.meant, d
		}
	}
	return best
}

// warmTypos is how many typing errors a word of --warm may have to be known.
const warmTypos = 2

// moduleName is a Python module's name with the packages above it, compiled when it is asked for as endpointHost is.
var moduleName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*$`)
})

func setBackoff(r *Request, text string) error {
	factor, bound, bounded := strings.Cut(text, ":")
	f, err := strconv.ParseFloat(strings.TrimPrefix(factor, "x"), 64)
	if err != nil || !(f >= 1) || f > 1000 {
		return errors.New("give a factor from 1 to 1000, such as 2, or with the longest pause, such as 2:60s")
	}
	r.Job.Restart.DelayFactor = f
	if !bounded {
		return nil
	}
	return setTime(&r.Job.Restart.DelayMax, bound)
}
