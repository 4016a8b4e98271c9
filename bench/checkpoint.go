package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// checkpointLimit bounds one job that saves checkpoints; disks differ.
	checkpointLimit = 10 * time.Minute
	// checkpointRanks save checkpointSize MiB each.
	checkpointRanks, checkpointSize = 2, 256
	// checkpointDeaths is how often they die before each way to restore.
	checkpointDeaths = 5
)

// figuresOf are the runs of what a job's workers measured, by name.
type figuresOf map[string]measured

// add adds what a worker wrote, times 1000: s to ms.
func (f figuresOf) add(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var found map[string][]float64
	if err := json.Unmarshal(text, &found); err != nil {
		return err
	}
	for name, values := range found {
		m := f[name]
		m.label = name
		for _, v := range values {
			m.values = append(m.values, v*1000)
		}
		f[name] = m
	}
	return nil
}

// within is the row of two ways to do the same; most is the most that ours may be of the peer's.
func within(figure string, ours, peer measured, most float64, budget string, notes ...string) row {
	r := compare(figure, "ms", median(ours.values), median(peer.values), budget, ratioAtMost(most))
	r.Note = strings.Join(append([]string{spread(ours, "ms"), spread(peer, "ms")}, notes...), "; ")
	return r
}

// checkpoints measures what a checkpoint costs training, and what comes of it on disk, on two ranks.
func checkpoints(ctx context.Context, b *bench) ([]row, error) {
	log.Printf("checkpoint: %d ranks save and restore %d MiB each, through muster and by other ways", checkpointRanks, checkpointSize)
	all := figuresOf{}
	size := strconv.Itoa(checkpointSize)
	for _, script := range [][]string{
		{"flash_checkpoint.py", size, "first"},
		{"flash_checkpoint.py", size, "first"},
		{"flash_checkpoint.py", size, "first"}, // a job has one first save
		{"flash_checkpoint.py", size},
		{"flash_restore.py", size, strconv.Itoa(checkpointDeaths)},
	} {
		spec := jobSpec{args: append([]string{
			"-n", strconv.Itoa(checkpointRanks), "--max-restarts", strconv.Itoa(2 * checkpointDeaths), "--restart-backoff", "1:1s",
			"--ckpt", "on", "--", b.python("python"), "-u", b.program(script[0]),
		}, script[1:]...)}
		err := b.savingJob(ctx, b.native(), spec, func(j *job) error {
			for rank := range checkpointRanks {
				if err := all.add(filepath.Join(j.dir, strconv.Itoa(rank)+".json")); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	agent := all["agent"]
	for i := range agent.values {
		agent.values[i] /= 1000
	}
	memory := slices.Max(agent.values)
	rows := []row{
		within("memory save of 256 MiB a rank, training blocked, beside memcpy", all["memory"], all["memcpy"], 1/0.9, "≤ 1/0.9",
			"memcpy of the same tensors by as many threads", spread(all["block"], "ms")),
		within("the same beside DCP's async_save, training blocked", all["memory"], all["dcp"], 1.0/3, "≤ 1/3"),
		within("the same beside torch.save and fsync", all["memory"], all["torch.save"], 1.0/3, "≤ 1/3"),
		within("first memory save of a job with a size hint, beside later ones", all["first"], all["memory"], 1.3, "≤ 1.3"),
		within("a copy in memory until it is committed on disk, beside a plain writer with fsync", all["flush"], all["raw"],
			1/0.9, "≤ 1/0.9"),
		within("training lost while a copy goes to disk, beside DCP's async_save", all["slow"], all["dcp_slow"], 1.0/2, "≤ 1/2",
			"behind the time that a save blocks"),
		within("restore from memory into the model after a death, beside torch.load", all["restore"], all["torch.load"], 1.0/4, "≤ 1/4",
			"the file is in the page cache"),
		{
			Figure: "memory of the agent besides its checkpoints", Ours: memory, Unit: "MB", Budget: "≤ 40 MB", Pass: memory <= 40,
			Note: spread(agent, "MB"),
		},
	}
	beside, err := besideDLRover(ctx, b)
	return append(rows, beside...), err
}

// besideDLRover runs one script of DLRover's API by dlrover-run with its own package, and by muster with ours.
func besideDLRover(ctx context.Context, b *bench) ([]row, error) {
	figures := []struct {
		name, figure string
		most         float64
		budget, note string
	}{
		{"memory", "memory save of 256 MiB by DLRover's API, training blocked", 1, "≤ 1.0", ""},
		{"first", "the first one of a job, without a hint", 1, "≤ 1.0", ""},
		{"disk", "disk save by DLRover's API, training blocked", 1, "≤ 1.0", ""},
		{"committed", "the same, until it is committed", 0.5, "≤ 1/2", "DLRover commits what is in the page cache, muster what is on disk"},
		{"synced", "the same, until it is committed and on disk", 0.5, "≤ 1/2", ""},
	}
	bin, missing := b.peer("dlrover")
	if missing != "" {
		var rows []row
		for _, f := range figures {
			rows = append(rows, row{Figure: f.figure, Budget: f.budget, Skip: missing})
		}
		return rows, nil
	}
	log.Print("checkpoint: the same script through DLRover's package and ours, 3 times each")
	ways := []struct {
		launcher
		path  string // where its Python lies
		times figuresOf
	}{
		{launcher{"muster", []string{b.binary, "dlrover-run"}}, b.python(""), figuresOf{}},
		{launcher{"dlrover", []string{filepath.Join(bin, "dlrover-run")}}, bin, figuresOf{}},
	}
	for range 3 {
		for _, w := range ways {
			spec := jobSpec{
				args: []string{
					"--standalone", "--nnodes=1", "--nproc-per-node", strconv.Itoa(checkpointRanks),
					b.program("flash_dlrover.py"), strconv.Itoa(checkpointSize),
				},
				env: []string{withPath(w.path)},
			}
			err := b.savingJob(ctx, w.launcher, spec, func(j *job) error { return w.times.add(filepath.Join(j.dir, "0.json")) })
			if err != nil {
				return nil, err
			}
		}
	}
	var rows []row
	for _, f := range figures {
		ours, peer := ways[0].times[f.name], ways[1].times[f.name]
		ours.label, peer.label = "muster", "dlrover 0.6.1"
		r := within(f.figure, ours, peer, f.most, f.budget)
		if f.note != "" {
			r.Note += "; " + f.note
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// savingJob runs a job that saves checkpoints to its end, and has what it left in its folder read.
func (b *bench) savingJob(ctx context.Context, l launcher, spec jobSpec, read func(*job) error) (err error) {
	defer leftSegments()()
	j, err := b.start(ctx, l, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.end()) }()
	status, err := j.wait(checkpointLimit)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s ended with status %d%s", l.name, status, j.lastWords())
	}
	if err != nil {
		return err
	}
	return read(j)
}

// leftSegments returns a function that removes the memory that DLRover's package leaves behind since then.
func leftSegments() func() {
	find := func() []string {
		found, _ := filepath.Glob("/dev/shm/*_ckpt_shm_*") // the pattern is well-formed
		return found
	}
	before := find()
	return func() {
		for _, path := range find() {
			if !slices.Contains(before, path) {
				_ = os.Remove(path) // another job of its user may have done so
			}
		}
	}
}
