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
func (t *torchrunJob) timerHabits() {
	h := &t.job.Hang
	for _, s := range timerSettings(t.env) {
		switch s.flag {
		case "hang-timeout":
			n, err := strconv.ParseInt(t.env[timerTimeout], 10, 32)
			if err != nil || n < 0 {
				t.wrong.add(fmt.Errorf("cannot use %s=%q: give a number of seconds, 0 for no time-out", timerTimeout, t.env[timerTimeout]))
				return
			}
			h.Timeout = time.Duration(n) * time.Second
		case "hang-dir":
			h.Dir = s.text
		case "on-hang":
			h.Action = job.HangFail
		}
		t.habits[s.flag] = given{text: s.text, source: job.Source{Kind: job.FromVariable, Name: s.from}}
	}
}

// timerSetting is a setting of muster's by the name of its flag, its text, and the variable that it comes from.
type timerSetting struct{ flag, text, from string }

func timerSettings(env map[string]string) (all []timerSetting) {
	if env[timerTimeout] == "" {
		return nil
	}
	all = []timerSetting{{"hang-timeout", env[timerTimeout] + "s", timerTimeout}}
	if env[timerPath] != "" {
		all = append(all, timerSetting{"hang-dir", env[timerPath], timerPath})
	}
	if slices.Contains([]string{"1", "true", "on"}, strings.ToLower(env[timerKill])) {
		all = append(all, timerSetting{"on-hang", "dump,fail", timerKill})
	}
	return all
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
	for _, s := range timerSettings(env) {
		if name := "MUSTER_" + strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_")); env[name] == "" {
			environ = append(environ, name+"="+s.text)
		}
	}
	return environ
}
