package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
)

// nodeGPUs is how many GPUs a node has where they are looked at.
const nodeGPUs = 8

// devices measures how long it takes to find out about accelerators: in muster devices, and at the start of a job.
func devices(ctx context.Context, b *bench) ([]row, error) {
	shown, err := b.shown(ctx)
	if err != nil {
		return nil, err
	}
	started, err := b.detected(ctx)
	return append(shown, started...), err
}

// shown measures muster devices from the command to its end, in ms.
func (b *bench) shown(ctx context.Context) ([]row, error) {
	const runs = 15
	log.Printf("devices: muster devices, %d times each; of %d GPUs where they are made up", runs, nodeGPUs)
	spec, err := b.fake(nodeGPUs)
	if err != nil {
		return nil, err
	}
	ask, missing := b.nvmlProbe()
	var files, made, probed []float64
	for range runs {
		here, err := b.command(ctx, "devices", "--accelerator=auto", "--probe-exec=none")
		if err != nil {
			return nil, err
		}
		fake, err := b.command(ctx, "devices", "--accelerator=fake:"+spec, "--fake-on-real", "--probe-exec=none")
		if err != nil {
			return nil, err
		}
		files, made = append(files, here), append(made, fake)
		if missing == nil {
			took, err := ask(ctx)
			if err != nil {
				return nil, err
			}
			probed = append(probed, fake+took)
		}
	}
	within := func(figure string, values []float64, most float64, note string) row {
		r := row{Figure: figure, Unit: "ms", Budget: fmt.Sprintf("≤ %v ms", most)}
		if missing != nil && values == nil {
			r.Skip = missing.Error()
			return r
		}
		r.Ours = median(values)
		r.Pass, r.Note = r.Ours <= most, spread(measured{b.muster.name, values}, r.Unit)+note
		return r
	}
	rows := []row{
		within("muster devices without NVML, this machine", files, 10, ""),
		within(fmt.Sprintf("muster devices without NVML, %d GPUs made up", nodeGPUs), made, 10, ""),
		within(fmt.Sprintf("muster devices and the real NVML probe, %d GPUs", nodeGPUs), probed, 100,
			"; the one before and the probe's own time, on a library without GPUs"),
	}
	if path, err := exec.LookPath("nvidia-smi"); err == nil {
		var peers []float64
		for range runs {
			began := time.Now()
			if _, err := b.output(ctx, path); err != nil {
				return nil, err
			}
			peers = append(peers, ms(time.Since(began)))
		}
		peer := median(peers)
		rows[0].Peer, rows[0].Ratio = &peer, rows[0].Ours/peer
		rows[0].Note += "; the peer is nvidia-smi"
	}
	return rows, nil
}

// command runs muster and returns how long that took, in ms.
func (b *bench) command(ctx context.Context, args ...string) (float64, error) {
	began := time.Now()
	_, err := b.output(ctx, b.binary, args...)
	return ms(time.Since(began)), err
}

// nvmlProbe returns what runs the probe on the library that stands in for NVIDIA's, and says how long it took, in ms.
// The error says why that cannot be.
func (b *bench) nvmlProbe() (func(context.Context) (float64, error), error) {
	for _, path := range []string{b.nvprobe, b.nvml} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("make bench builds the probe where there is gcc: %w", err)
		}
	}
	settings := b.program("nvml")
	if err := os.WriteFile(settings, []byte("count="+strconv.Itoa(nodeGPUs)+"\nlinks=18\n"), 0o600); err != nil {
		return nil, err
	}
	o := probe.Options{
		Environ: append(os.Environ(), probe.Variable+"="+b.nvprobe, nvline.LibraryVariable+"="+b.nvml, "MUSTER_FAKE_NVML="+settings),
		GPUs:    nodeGPUs,
	}
	return func(ctx context.Context) (float64, error) {
		began := time.Now()
		r, err := probe.Run(ctx, o)
		took := time.Since(began)
		if err == nil && (!r.Complete || len(r.GPUs) != nodeGPUs) {
			err = errors.Join(fmt.Errorf("the probe tells of %d GPUs", len(r.GPUs)), r.Err())
		}
		return ms(took), err
	}, nil
}

// detected measures from the command to the first worker's first instruction where the number of workers is that of the
// accelerators, in ms.
func (b *bench) detected(ctx context.Context) ([]row, error) {
	const runs = 11
	log.Printf("devices: start of shell workers, one for each accelerator, %d times each", runs)
	spec, err := b.fake(2)
	if err != nil {
		return nil, err
	}
	native := launcher{name: "run", argv: []string{b.binary, "run"}}
	start := func(workers string, env ...string) (_ float64, err error) {
		j, err := b.start(ctx, native,
			jobSpec{args: []string{"-n", workers, "--", b.program("stamp.sh")}, env: append([]string{"BENCH_HOLD=0"}, env...)})
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		if err := j.succeed(); err != nil {
			return 0, err
		}
		began, err := j.waitStamps(ctx, 1)
		if err != nil {
			return 0, err
		}
		first := slices.MinFunc(began, func(a, b stamp) int { return a.at.Compare(b.at) })
		return ms(first.at.Sub(j.began)), nil
	}
	var told, here, made []float64
	for range runs {
		for _, way := range []struct {
			into    *[]float64
			workers string
			env     []string
		}{{&told, "2", nil}, {&here, "auto", nil}, {&made, "auto", []string{"MUSTER_FAKE=" + spec}}} {
			took, err := start(way.workers, way.env...)
			if err != nil {
				return nil, err
			}
			*way.into = append(*way.into, took)
		}
	}
	rows := []row{
		{Figure: "command start to worker's first instruction, -n auto on this machine", Ours: median(here)},
		{Figure: "the same with 2 GPUs made up", Ours: median(made)},
	}
	for i, values := range [][]float64{here, made} {
		r := &rows[i]
		r.Unit, r.Budget, r.Pass = "ms", "≤ 20 ms", r.Ours <= 20
		r.Note = fmt.Sprintf("%s; -n 2, with nothing to find out: %s ms", spread(measured{b.muster.name, values}, r.Unit),
			number(median(told)))
	}
	return rows, nil
}
