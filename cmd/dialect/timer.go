package dialect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/launch/job"
)

// Variables of DLRover's xpu_timer that say what becomes of a hang.
const (
	timerTimeout = "XPU_TIMER_HANG_TIMEOUT"
	timerPath    = "XPU_TIMER_TIMELINE_PATH"
	timerKill    = "XPU_TIMER_HANG_KILL"
	// TimerSeconds is the time-out that xpu_timer has unless it is told another one.
	TimerSeconds = "300"
)

// timerHabits has xpu_timer's variables stand for muster's settings, where it is told to look for hangs.
func (d *dlroverJob) timerHabits() {
	h := &d.job.Hang
	timerWords(d.env, d.habits)
	if !d.habits.HangTimeout.given {
		return
	}
	n, err := strconv.ParseInt(d.env[timerTimeout], 10, 32)
	if err != nil || n < 0 {
		d.wrong.add(fmt.Errorf("cannot use %s=%q: give a number of seconds, 0 for no time-out", timerTimeout, d.env[timerTimeout]))
		return
	}
	h.Timeout, h.Dir = time.Duration(n)*time.Second, d.habits.HangDir.text
	if d.habits.OnHang.given {
		h.Action = job.HangFail
	}
}

// timerWords gives muster's settings the words that follow from xpu_timer's variables, where it is told to look for
// hangs.
func timerWords(env map[string]string, words *ownWords) {
	if env[timerTimeout] == "" {
		return
	}
	from := func(name string) job.Source { return job.Source{Kind: job.FromVariable, Name: name} }
	words.HangTimeout.say(env[timerTimeout]+"s", from(timerTimeout))
	if env[timerPath] != "" {
		words.HangDir.say(env[timerPath], from(timerPath))
	}
	if slices.Contains([]string{"1", "true", "on"}, strings.ToLower(env[timerKill])) {
		words.OnHang.say("dump,fail", from(timerKill))
	}
}

// TimerEnviron is the environment of a launcher that xpu_timer_launch is to start: muster's own variables say what those
// of xpu_timer say, where the user has not set them.
func TimerEnviron(environ []string) []string {
	env := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	if env[timerTimeout] == "" {
		env[timerTimeout] = TimerSeconds
	}
	words := newOwnWords()
	timerWords(env, words)
	for _, word := range []value{words.HangTimeout, words.HangDir, words.OnHang} {
		if name := variable(ownPrefix, word.option.name); word.given && env[name] == "" {
			environ = append(environ, name+"="+word.text)
		}
	}
	return environ
}
