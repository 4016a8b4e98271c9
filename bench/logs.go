package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// logs measures how fast the output of 4 workers goes through the launcher with --tee 3: from the first worker's first
// instruction until the last byte has come out, in MB of the workers' own bytes per second.
func logs(ctx context.Context, b *bench) ([]row, error) {
	const workers, each = 4, 100_000_000
	log.Printf("logs: 3 times each, %d workers write %d MB each", workers, each/1_000_000)
	lost := map[string]int{}
	ours, peers, err := b.alternate(3, func(l launcher) (_ float64, err error) {
		read, write, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		defer func() { _ = read.Close() }()
		j, err := b.start(ctx, l, jobSpec{args: append([]string{
			"--standalone", "--nproc-per-node", strconv.Itoa(workers), "--tee", "3", "--no-python",
		}, b.self, workerWord, "flood", strconv.Itoa(each)), stdout: write})
		_ = write.Close() // the launcher has its own copy
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		lines, last, err := countLines(read)
		if err != nil {
			return 0, err
		}
		if err := j.succeed(); err != nil {
			return 0, err
		}
		began, err := j.waitStamps(ctx, workers)
		if err != nil {
			return 0, err
		}
		lost[l.name] += workers*each/lineLength - lines
		first := slices.MinFunc(began, func(a, b stamp) int { return a.at.Compare(b.at) })
		return workers * each / 1e6 / last.Sub(first.at).Seconds(), nil
	})
	if err != nil {
		return nil, err
	}
	r := compare("log pipe throughput, 4 workers, --tee 3", "MB/s", median(ours), median(peers), "≥ 5 ×, no line lost",
		func(_, ratio float64) bool { return ratio >= 5 && lost[b.muster.name] == 0 })
	r.Note = fmt.Sprintf("lines lost: muster %d, torchrun %d", lost[b.muster.name], lost[b.torchrun.name])
	return []row{r}, nil
}

// countLines reads r to its end and returns the number of lines and when the last byte came.
func countLines(r io.Reader) (lines int, last time.Time, err error) {
	buffer := make([]byte, 1<<20)
	for {
		n, err := r.Read(buffer)
		if n > 0 {
			last = time.Now()
			lines += bytes.Count(buffer[:n], []byte{'\n'})
		}
		if errors.Is(err, io.EOF) {
			return lines, last, nil
		}
		if err != nil {
			return lines, last, err
		}
	}
}

// slowdown measures by how much a worker that computes and writes 100 MB/s gets slower when a launcher carries its
// output with --tee 3, against the same worker writing to /dev/null, in percent.
func slowdown(ctx context.Context, b *bench) ([]row, error) {
	const units, unit = 200, 10 * time.Millisecond
	// As many hashes as fill the time of a unit, found on this machine.
	trial := time.Now()
	compute(10_000)
	hashes := strconv.Itoa(int(10_000 * float64(unit) / float64(time.Since(trial))))
	program := []string{b.self, workerWord, "paced", strconv.Itoa(units), hashes}
	log.Printf("slowdown: 5 times each, a worker writes %d MB in about %v", units, units*unit)

	// alone is the worker without a launcher: env(1) becomes it.
	alone := launcher{name: "alone", argv: []string{"/usr/bin/env"}}
	took := func(l launcher) (_ float64, err error) {
		args := program
		if l.name != alone.name {
			args = append([]string{"--standalone", "--nproc-per-node", "1", "--tee", "3", "--no-python"}, program...)
		}
		j, err := b.start(ctx, l, jobSpec{args: args})
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		if err := j.succeed(); err != nil {
			return 0, err
		}
		content, err := os.ReadFile(filepath.Join(j.dir, "took"))
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(string(content), 64)
	}
	percent := func(l launcher) (float64, error) {
		without, err := took(alone)
		if err != nil {
			return 0, err
		}
		with, err := took(l)
		return 100 * (with/without - 1), err
	}
	ours, peers, err := b.alternate(5, percent)
	if err != nil {
		return nil, err
	}
	r := compare("worker slowed by carrying its 100 MB/s", "%", median(ours), median(peers), "≤ 10 %",
		func(ours, _ float64) bool { return ours <= 10 })
	return []row{r}, nil
}
