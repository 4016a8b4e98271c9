package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"
)

// rehearsedNodes is how many nodes a rehearsal has at most.
const rehearsedNodes = 64

// jobFiles measures what is made of a job file: it is explained, and rehearsed with as many nodes as can be.
func jobFiles(ctx context.Context, b *bench) ([]row, error) {
	file := b.program("job.yaml")
	err := os.WriteFile(file, fmt.Appendf(nil, `apiVersion: batch/v1
kind: Job
metadata: {name: bench}
spec:
  parallelism: %d
  completionMode: Indexed
  backoffLimit: 2
  template:
    spec:
      restartPolicy: Never
      containers:
        - image: example/train:1
          command: [%q]
          env: [{name: EPOCHS, value: "3"}, {name: INDEX, value: $(JOB_COMPLETION_INDEX)}]
          resources: {limits: {nvidia.com/gpu: 1, memory: 16Gi}}
`, rehearsedNodes, b.program("stamp.sh")), 0o600)
	if err != nil {
		return nil, err
	}
	log.Printf("jobfiles: explained 20 times, rehearsed with %d nodes 3 times", rehearsedNodes)
	var explained, rehearsed []float64
	for range 20 {
		took, err := b.command(ctx, "explain", file)
		if err != nil {
			return nil, err
		}
		explained = append(explained, took)
	}
	for range 3 {
		took, err := b.rehearse(ctx, file)
		if err != nil {
			return nil, err
		}
		rehearsed = append(rehearsed, took)
	}
	explain := row{Figure: "muster explain of a job file", Unit: "ms", Budget: "≤ 30 ms"}
	explain.Ours, explain.Note = median(explained), spread(measured{b.muster.name, explained}, "ms")
	explain.Pass = explain.Ours <= 30
	rehearse := row{
		Figure: fmt.Sprintf("rehearsal of a job file with %d nodes, to the last worker's first instruction", rehearsedNodes), Unit: "s",
		Budget: "≤ 3 s",
	}
	rehearse.Ours, rehearse.Note = median(rehearsed), spread(measured{b.muster.name, rehearsed}, "s")
	rehearse.Pass = rehearse.Ours <= 3
	return []row{explain, rehearse}, nil
}

// rehearse runs a job file on this machine, and returns how long it took until all its workers had begun, in s.
func (b *bench) rehearse(ctx context.Context, file string) (_ float64, err error) {
	j, err := b.start(ctx, launcher{name: "jobfile", argv: []string{b.binary, "run"}}, jobSpec{
		args: []string{"--job-file", file}, env: []string{"BENCH_HOLD=1"},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, j.end()) }()
	began, err := j.waitStamps(ctx, rehearsedNodes)
	if err != nil {
		return 0, err
	}
	last, err := lastOf(began, 0, rehearsedNodes)
	return last.Sub(j.began).Round(time.Millisecond).Seconds(), err
}
