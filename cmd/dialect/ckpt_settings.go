package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"muster/internal/python"
	"muster/launch/job"
)

// groupCheckpoint is the help text's heading over checkpoints.
const groupCheckpoint = "Checkpoints"

// defaultSalvage is that of --ckpt-salvage.
const defaultSalvage = time.Minute

// checkpointSettings say how workers keep checkpoints through muster.
func checkpointSettings(w *ownWords) []option {
	rules := func(r *Request) *job.CheckpointRules { return &r.Job.Checkpoint }
	return []option{
		{
			name: "ckpt", word: &w.Ckpt, frequent: true, arg: "auto|on|off", def: "auto", group: groupCheckpoint, anywhere: true,
			use: use{ranked},
			help: "Keep what workers save through muster.checkpoint, or DLRover's API, in memory, and write it to disk behind them. " +
				"auto: on for dlrover-run, and elsewhere where another flag of this group but --ckpt-notices is given. On several nodes " +
				"without a job token (--token-file; with --hosts there always is one) each keeps its own workers' alone.",
			set: func(_ *Request, text string) error { return oneOf(text, "auto", "on", "off") }, // settleCheckpoint decides
		},
		{
			name: "ckpt-dir", word: &w.CkptDir, frequent: true, arg: "DIR", group: groupCheckpoint, anywhere: true, use: use{ranked, keeps},
			help: "Where a script saves its checkpoints that names no directory.",
			set:  func(r *Request, text string) error { rules(r).Dir = text; return notBlank(text, "a directory") },
		},
		{
			name: "ckpt-keep", word: &w.CkptKeep, kind: kindInt, arg: "N", def: "0", group: groupCheckpoint, anywhere: true,
			use:  use{ranked, keeps},
			help: "How many steps stay on disk; older ones are removed when a newer one is there whole. 0: all.",
			set:  func(r *Request, text string) error { return setCount(&rules(r).Keep, text) },
		},
		{
			name: "ckpt-rate", word: &w.CkptRate, arg: "SIZE", def: "0", group: groupCheckpoint, anywhere: true, use: use{ranked, keeps},
			help: "How many bytes a second a node writes to disk at most, such as 500MB (10^6) or 2GiB (2^30), so that training has the " +
				"rest of the disk or network. 0: as many as it takes.",
			set: func(r *Request, text string) (err error) {
				if rules(r).Rate, err = parseSize(text); err == nil && 0 < rules(r).Rate && rules(r).Rate < leastRate {
					return errors.New("give 64KiB a second at least, such as 5MB (without a unit it is bytes), or 0 for as many as it " +
						"takes")
				}
				return err
			},
		},
		{
			name: "ckpt-replicas", word: &w.CkptReplicas, kind: kindInt, arg: "N", def: "1", group: groupCheckpoint, anywhere: true,
			use: use{ranked, keeps, severalNodes, tokened},
			help: "On how many nodes a copy of each worker's state is kept, its own included: with 2, what is in memory survives the " +
				"loss of a node. Copies lie as far apart as the ranks do, which --topology-file sorts by switches.",
			set: func(r *Request, text string) error { return setCount(&rules(r).Replicas, text) },
		},
		{
			name: "ckpt-shim", word: &w.CkptShim, arg: "auto|on|off", def: "auto", group: groupCheckpoint, anywhere: true,
			use: use{ranked, keeps},
			help: "Whether workers that import DLRover's package dlrover get muster's flash checkpoint. on: always; what else an " +
				"installed package has is found behind it. auto: the same in dlrover-run; elsewhere where none is installed, otherwise " +
				"that one, with a saver of its own. off: never; in dlrover-run the installed one's flash checkpoint is refused at " +
				"once then, as it would wait for DLRover's agent.",
			set: func(r *Request, text string) error {
				rules(r).Shim = map[string]python.Shim{"on": python.ShimAlways, "off": python.ShimNever}[text]
				return oneOf(text, "auto", "on", "off")
			},
		},
		{
			name: "ckpt-slots", word: &w.CkptSlots, arg: "auto|1|2", def: "auto", group: groupCheckpoint, anywhere: true,
			use: use{ranked, keeps},
			help: "How many copies of its state a worker has in memory. With one, a worker that dies while it saves leaves none. auto: " +
				"two where a second one takes less than 60 % of the memory that is left.",
			set: func(r *Request, text string) error {
				rules(r).Slots = map[string]int{"1": 1, "2": 2}[text]
				return oneOf(text, "auto", "1", "2")
			},
		},
		{
			name: "ckpt-signal", word: &w.CkptSignal, arg: "SIG", group: groupCheckpoint, anywhere: true, use: use{ranked, keeps},
			help: "The signal that has muster write the newest step in memory to disk while training goes on, such as USR1 for sbatch " +
				"--signal=B:USR1@60. Workers that handle it get it, too.",
			set: func(r *Request, text string) (err error) {
				rules(r).Signal, err = parseSaveSignal(text)
				return err
			},
		},
		{
			name: "ckpt-on-file", word: &w.CkptOnFile, inside: insidePod, arg: "FILE", group: groupCheckpoint, anywhere: true,
			use:  use{ranked, keeps},
			help: "The same when this file appears.",
			set:  func(r *Request, text string) error { rules(r).OnFile = text; return notBlank(text, "a file") },
		},
		{
			name: "ckpt-on-command", word: &w.CkptOnCommand, arg: "CMD", group: groupCheckpoint, anywhere: true, use: use{ranked, keeps},
			help: "The same when this command, which a shell runs every 5 seconds, ends with status 0.",
			set:  func(r *Request, text string) error { rules(r).OnCommand = text; return notBlank(text, "a command") },
		},
		{
			name: "ckpt-notices", word: &w.CkptNotices, arg: "auto|off", def: "auto", group: groupCheckpoint, anywhere: true,
			use: use{ranked, keeps},
			help: "The same when the metadata service of AWS, GCP or Azure says that the machine will be taken away. auto: it is asked " +
				"where the machine is one of these clouds'.",
			set: func(r *Request, text string) error {
				rules(r).Unasked = text == "off"
				return oneOf(text, "auto", "off")
			},
		},
		{
			name: "ckpt-salvage", word: &w.CkptSalvage, kind: kindTime, arg: "TIME", def: "60s", group: groupCheckpoint, anywhere: true,
			use: use{ranked, keeps},
			help: "How long it may take, when muster itself is killed, to bring to disk the newest step that was in memory only. What " +
				"cannot be, and on several nodes all of it, stays in memory, for muster ckpt save and for the next start with the same " +
				"run id. 0: it is lost.",
			set: func(r *Request, text string) error { return setTime(&rules(r).Salvage, text) },
		},
	}
}

// saveSignals are those that a program gets from batch systems and people, and from nobody else.
var saveSignals = []syscall.Signal{
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGXCPU, syscall.SIGALRM, syscall.SIGPWR, syscall.SIGCONT, syscall.SIGHUP, syscall.SIGINT,
	syscall.SIGQUIT, syscall.SIGTERM,
}

// parseSaveSignal reads a signal's name or number.
func parseSaveSignal(text string) (syscall.Signal, error) {
	name := strings.ToUpper(strings.TrimSpace(text))
	s := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG"))
	if n, err := strconv.Atoi(name); err == nil {
		s = syscall.Signal(n)
	}
	if !slices.Contains(saveSignals, s) {
		return 0, errors.New("give USR1, USR2, XCPU, ALRM, PWR or CONT")
	}
	return s, nil
}

// notBlank refuses a word without anything in it.
func notBlank(text, what string) error {
	if strings.TrimSpace(text) == "" || strings.Contains(text, "\x00") {
		return errors.New("name " + what)
	}
	return nil
}

// settleCheckpoint decides whether workers keep checkpoints through muster.
func settleCheckpoint(r *Request, words *ownWords, wrong *problems) {
	others := 0
	for _, s := range settings() {
		switch word := s.of(words); {
		case s.group != groupCheckpoint || word == &words.Ckpt || word == &words.CkptNotices: // which says what is not wanted
		case word.given:
			others++
		}
	}
	switch words.Ckpt.text {
	case "on":
		r.Job.Checkpoint.On = true
	case "off":
		r.Job.Checkpoint = job.CheckpointRules{}
		if r.Job.Dialect == dlroverRun {
			r.Job.Checkpoint.Shim = python.ShimBarred // it would wait for DLRover's agent
		}
	default:
		if r.Job.Checkpoint.On = r.Job.Dialect == dlroverRun || others > 0; !r.Job.Checkpoint.On {
			r.Job.Checkpoint = job.CheckpointRules{}
		}
	}
	if c := &r.Job.Checkpoint; c.On && r.Job.Dialect == dlroverRun { // its scripts take for granted that their launcher keeps checkpoints
		c.Shim = map[python.Shim]python.Shim{
			python.ShimAuto: python.ShimAlways, python.ShimAlways: python.ShimAlways,
			python.ShimNever: python.ShimBarred,
		}[c.Shim]
	}
	if s := r.Job.Checkpoint.Signal; s != 0 && slices.Contains(r.Job.Stop.Handled, s) {
		wrong.add(fmt.Errorf("cannot use %s: that signal ends the job, and what is in memory is written then; give USR1 or USR2",
			words.CkptSignal.written()))
	}
	if !words.CkptSalvage.given && r.Job.Checkpoint.On {
		r.Job.Checkpoint.Salvage = defaultSalvage
	}
}

// sizeUnits are what sizes are given in.
var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"kB", 1e3},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
	{"", 1},
}

// leastRate is the least --ckpt-rate, in bytes a second: below it a checkpoint takes days, and the end of the job waits
// for it.
const leastRate = 64 << 10

// leastStore is the least that a store may be told to hold: a big job's workers need some of it.
const leastStore = 16 << 20

// ParseStoreLimit reads the number of bytes that a store holds at most, 0 for its default.
func ParseStoreLimit(text string) (int64, error) {
	n, err := parseSize(text)
	if err == nil && 0 < n && n < leastStore {
		return 0, errors.New("give 16MiB at least (without a unit it is bytes), or 0 for the default")
	}
	return n, err
}

// parseSize reads a number of bytes: 1.5GiB, 200MB, 4096.
func parseSize(text string) (int64, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err == nil && n >= 0 && n*u.bytes < 1<<62 && strings.Trim(digits, "0123456789. ") == "" {
			return int64(n * u.bytes), nil
		}
		break
	}
	return 0, errors.New("give a number of bytes, such as 500MB or 2GiB")
}
