package dialect

import (
	"errors"
	"slices"
	"strings"

	"muster/launch/job"
)

// Conditions of the settings below.
var (
	// watchesHangs is met where silent workers are looked for.
	watchesHangs = when("without --hang-timeout", "give --hang-timeout TIME too", func(j *job.Job) bool { return j.Hang.Watches() })
	// restartsHung is met where workers that hang can be started again.
	restartsHung = condition{
		"while --max-restarts is 0: nothing would be restarted", "give --max-restarts N, or --on-hang dump or fail",
		func(r *Request, _ *ownWords) bool {
			return r.Job.Hang.Action != job.HangRestart && !r.Job.Hang.Exclude || r.Job.Restart.MaxRestarts > 0
		},
	}
	// excludesHung is met where there may be a node that the others can do without.
	excludesHung = condition{
		"with exclude on one node or a fixed number of nodes",
		"leave exclude out; or give --nnodes MIN:MAX or --spares N, so that others go on without the node",
		func(r *Request, words *ownWords) bool {
			return !r.Job.Hang.Exclude || severalNodes.met(r, words) && r.Job.CanSpareNodes()
		},
	}
)

// hangSettings say what becomes of a job whose workers show no sign of life.
func hangSettings(w *ownWords) []option {
	return []option{
		{
			name: "hang-timeout", word: &w.HangTimeout, kind: kindTime, arg: "TIME|auto", def: "0s", group: groupExits, anywhere: true,
			use: use{byAgents},
			help: "The workers hang when none of them, on all nodes, has shown a sign of life for this long: output, CPU time, a " +
				"checkpoint, or where a program tells of its steps (muster.progress), a step. What they do is then looked at, explained " +
				"in one sentence and kept in the log directory; --on-hang says what follows. It must be longer than anything that " +
				"is silent for good reasons. auto: it is learned from the steps that the workers tell; 30 minutes until then, " +
				"and where they tell none. 0: nobody looks.",
			set: func(r *Request, text string) error {
				if r.Job.Hang.Auto = text == "auto"; r.Job.Hang.Auto {
					r.Job.Hang.Timeout = 0
					return nil
				}
				return setTime(&r.Job.Hang.Timeout, text)
			},
		},
		{
			name: "on-hang", word: &w.OnHang, kind: kindList, arg: "dump[,exclude][,restart|,fail]", def: "dump", group: groupExits,
			anywhere: true,
			use:      use{byAgents, watchesHangs, restartsHung, excludesHung},
			help: "What follows when the workers hang: the evidence is kept (dump, always); the node leaves that holds up all others " +
				"and in which the cause lies (its workers are stopped by a signal, or wait in the kernel), with status 80, and all " +
				"workers start again without it (exclude); where there is no such node, or the job cannot do without it, all " +
				"workers start again, counted as after a failure (restart), or the job fails (fail). Where no cause was found " +
				"the nodes are checked before a restart, once, as by --network-check.",
			set: func(r *Request, text string) error {
				words := strings.Split(text, ",")
				r.Job.Hang.Action, r.Job.Hang.Exclude = job.HangDump, false
				for i, word := range words {
					switch action := job.HangAction(strings.TrimSpace(word)); action {
					case job.HangDump:
						if i > 0 {
							return errors.New("dump comes first, if it is named")
						}
					case job.HangExclude:
						if r.Job.Hang.Exclude {
							return errors.New("exclude is named twice")
						}
						r.Job.Hang.Exclude = true
					case job.HangRestart, job.HangFail:
						if i < len(words)-1 {
							return errors.New("nothing can follow " + string(action))
						}
						r.Job.Hang.Action = action
					default:
						return &choiceError{[]string{
							string(job.HangDump), string(job.HangExclude), string(job.HangRestart), string(job.HangFail),
						}}
					}
				}
				return nil
			},
		},
		{
			name: "hang-dir", word: &w.HangDir, arg: "DIR", group: groupExits, anywhere: true, use: use{byAgents, watchesHangs},
			help: "Keep the evidence of hangs in this directory, that of the newest five, and not under the log directory.",
			set:  func(r *Request, text string) error { r.Job.Hang.Dir = text; return notBlank(text, "a directory") },
		},
		{
			name: "stacks", word: &w.Stacks, arg: "auto|on|off", def: "auto", group: groupExits, anywhere: true, use: use{byAgents},
			help: "Have the workers' Python write the stacks of its threads when muster stacks or muster diagnose asks for them, by a " +
				"sitecustomize at the end of PYTHONPATH that answers to signal 57. auto: with --hang-timeout. Without it the kernel's " +
				"evidence is there alone.",
			set: func(r *Request, text string) error {
				choices := []string{string(job.StacksAuto), string(job.StacksOn), string(job.StacksOff)}
				if slices.Contains(choices, text) {
					r.Job.Hang.Stacks = job.StacksMode(text)
				}
				return oneOf(text, choices...)
			},
		},
	}
}
