package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// checkpointLimit bounds one job that saves checkpoints; disks differ.
const checkpointLimit = 10 * time.Minute

// checkpoints measures what a checkpoint costs training, and what comes of it on disk, on two ranks of 256 MiB.
func checkpoints(ctx context.Context, b *bench) (rows []row, err error) {
	const ranks, size = 2, 256
	log.Printf("checkpoint: %d ranks save and restore %d MiB each, through muster and by other ways", ranks, size)
	j, err := b.start(ctx, launcher{"muster", []string{b.binary, "run"}}, jobSpec{args: []string{
		"-n", strconv.Itoa(ranks), "--", b.python("python"), "-u", b.program("flash_checkpoint.py"), strconv.Itoa(size), "1",
	}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.end()) }()
	status, err := j.wait(checkpointLimit)
	if err == nil && status != 0 {
		err = fmt.Errorf("the job ended with status %d%s", status, j.lastWords())
	}
	if err != nil {
		return nil, err
	}
	times := map[string]measured{}
	for rank := range ranks {
		text, err := os.ReadFile(filepath.Join(j.dir, strconv.Itoa(rank)+".json"))
		if err != nil {
			return nil, err
		}
		var of map[string][]float64
		if err := json.Unmarshal(text, &of); err != nil {
			return nil, err
		}
		for name, values := range of {
			m := times[name]
			m.label = name
			for _, v := range values {
				m.values = append(m.values, v*1000)
			}
			if name == "memory" || name == "dcp" {
				m.values = m.values[1:] // the first one of each rank meets memory that nobody has touched
			}
			times[name] = m
		}
	}
	within := func(figure string, ours, peer string, most float64, budget string, notes ...string) row {
		r := compare(figure, "ms", median(times[ours].values), median(times[peer].values), budget, ratioAtMost(most))
		r.Note = spread(times[ours], "ms") + "; " + spread(times[peer], "ms")
		for _, n := range notes {
			r.Note += "; " + n
		}
		return r
	}
	return []row{
		within("memory save of 256 MiB a rank, training blocked, beside memcpy", "memory", "memcpy", 1/0.9, "≤ 1/0.9", "memcpy by as many threads"),
		within("the same beside DCP's async_save, training blocked", "memory", "dcp", 1.0/3, "≤ 1/3"),
		within("the same beside torch.save and fsync", "memory", "torch.save", 1.0/3, "≤ 1/3"),
		within("first memory save of a job with a size hint, beside later ones", "first", "memory", 1.3, "≤ 1.3"),
		within("disk save until it is committed, beside a plain writer with fsync", "disk", "raw", 1/0.9, "≤ 1/0.9", "ours includes the copy in memory"),
		within("restore from memory into the model, beside torch.load", "restore", "torch.load", 1.0/4, "≤ 1/4", "the file is in the page cache"),
	}, nil
}
