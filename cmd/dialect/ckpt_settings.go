package dialect

import (
	"errors"

	"muster/launch"
)

// groupCheckpoint is the help text's heading over checkpoints.
const groupCheckpoint = "Checkpoints"

// checkpointSettings say how workers keep checkpoints through muster.
func checkpointSettings() []setting {
	rules := func(r *Request) *launch.CheckpointRules { return &r.Job.Checkpoint }
	return []setting{
		{
			flag: "ckpt", arg: "auto|on|off", def: "auto", group: groupCheckpoint, anywhere: true,
			help: "Keep what workers save through muster.checkpoint, or DLRover's API, in memory, and write it to disk behind them. auto: on for dlrover-run, and elsewhere where another flag of this group is given. On several nodes this takes a job token (--token-file; with --hosts there always is one): without it such saves go straight to disk.",
			set:  func(_ *Request, text string) error { return oneOf(text, "auto", "on", "off") }, // settleCheckpoint decides
		},
		{
			flag: "ckpt-dir", arg: "DIR", group: groupCheckpoint, anywhere: true,
			help: "Where a script saves its checkpoints that names no directory.",
			set:  func(r *Request, text string) error { rules(r).Dir = text; return nil },
		},
		{
			flag: "ckpt-keep", form: formNumber, arg: "N", def: "0", group: groupCheckpoint, anywhere: true,
			help: "How many steps stay on disk; older ones are removed when a newer one is there whole. 0: all.",
			set:  func(r *Request, text string) error { return setCount(&rules(r).Keep, text) },
		},
		{
			flag: "ckpt-replicas", form: formNumber, arg: "N", def: "1", group: groupCheckpoint, anywhere: true,
			help: "On how many nodes a copy of each worker's state is kept, its own included: with 2, what is in memory survives the loss of a node. Copies lie as far apart as the ranks do, which --topology-file sorts by switches.",
			set:  func(r *Request, text string) error { return setCount(&rules(r).Replicas, text) },
		},
		{
			flag: "ckpt-slots", arg: "auto|1|2", def: "auto", group: groupCheckpoint, anywhere: true,
			help: "How many copies of its state a worker has in memory. With one, a worker that dies while it saves leaves none. auto: two where a second one takes less than 60 % of the memory that is left.",
			set: func(r *Request, text string) error {
				rules(r).Slots = map[string]int{"1": 1, "2": 2}[text]
				return oneOf(text, "auto", "1", "2")
			},
		},
	}
}

// settleCheckpoint decides whether workers keep checkpoints through muster.
func settleCheckpoint(r *Request, words map[string]given, wrong *problems) {
	others := 0
	for _, s := range checkpointSettings()[1:] {
		if _, ok := words[s.flag]; ok {
			others++
		}
	}
	switch words["ckpt"].text {
	case "on":
		r.Job.Checkpoint.On = true
	case "off":
		r.Job.Checkpoint = launch.CheckpointRules{}
		if others > 0 && words["ckpt"].source.Kind == launch.FromFlag {
			wrong.add(errors.New("cannot use --ckpt off with other flags of checkpoints: leave them out"))
		}
	default:
		r.Job.Checkpoint.On = r.Job.Dialect == dlroverRun || others > 0
	}
}
