package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"muster/netcheck/blame/blamesim"
)

// blamed holds our rule against DLRover's: in how many of the cases that there are of so many bad nodes a healthy one
// is blamed, in %.
func blamed(context.Context, *bench) ([]row, error) {
	log.Print("blamed: every set of bad nodes, by both rules")
	budget := func(figure string, ours, theirs blamesim.Score) row {
		r := compare(figure, "%", ours.Percent(ours.Healthy), theirs.Percent(theirs.Healthy), "0 %",
			func(ours, _ float64) bool { return ours == 0 })
		r.Note = fmt.Sprintf("%d sets; all bad nodes are found in %d of them (DLRover: %d); the peer is DLRover's rule, simulated",
			ours.Worlds, ours.Found, theirs.Found)
		r.Pass = r.Pass && ours.Found == ours.Worlds
		return r
	}
	var rows []row
	for _, c := range []struct{ nodes, bad int }{{4, 2}, {5, 2}, {5, 3}, {6, 2}, {9, 3}} {
		ours, theirs, err := blamesim.Compare(c.nodes, c.bad)
		if err != nil {
			return nil, err
		}
		rows = append(rows, budget(fmt.Sprintf("a healthy node is blamed, %d of %d nodes are bad", c.bad, c.nodes), ours, theirs))
	}
	return rows, nil
}

// checkedNodes is how many nodes are simulated.
const checkedNodes = 4

// networkCheck measures a job of simulated nodes that are checked before their workers, which do nothing, start.
func networkCheck(ctx context.Context, b *bench) ([]row, error) {
	const runs = 5
	log.Printf("check: %d simulated nodes, %d times", checkedNodes, runs)
	binary, err := b.copyBinary()
	if err != nil {
		return nil, err
	}
	spec, err := b.fake(1)
	if err != nil {
		return nil, err
	}
	var took, own []float64
	for range runs {
		m := watchCPU(binary)
		seconds, err := b.checkOnce(ctx, launcher{name: "check", argv: []string{binary, "run"}}, spec)
		used, processes := m.end()
		if err != nil {
			return nil, err
		}
		if processes < 2+2*checkedNodes {
			return nil, fmt.Errorf("%d processes of muster were seen, there are more agents and guardians than that", processes)
		}
		took, own = append(took, seconds), append(own, used.Seconds())
	}
	wall := row{
		Figure: fmt.Sprintf("network check of %d simulated nodes, from the command to its end", checkedNodes), Unit: "s",
		Budget: "≤ 6 s",
	}
	wall.Ours, wall.Note = median(took), spread(measured{b.muster.name, took}, "s")
	wall.Pass = wall.Ours <= 6
	cpu := row{Figure: "processor time of all of muster's processes in it", Unit: "s", Budget: "≤ 0.2 s"}
	cpu.Ours, cpu.Note = median(own), spread(measured{b.muster.name, own}, "s")+"; Python's is not counted"
	cpu.Pass = cpu.Ours <= 0.2
	return []row{wall, cpu}, nil
}

// checkOnce returns how long the job took, in s.
func (b *bench) checkOnce(ctx context.Context, l launcher, spec string) (_ float64, err error) {
	nodes := strconv.Itoa(checkedNodes)
	j, err := b.start(ctx, l, jobSpec{
		args: []string{"--network-check", "--nnodes", nodes, "--simulate-nodes", nodes, "-n", "1", "--", "true"},
		env:  []string{"MUSTER_FAKE=" + spec, b.withTorch()},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, j.end()) }()
	if err := j.succeed(); err != nil {
		return 0, err
	}
	return time.Since(j.began).Seconds(), nil
}

// copyBinary puts muster where nothing else runs it from, so that its processes are known by their program.
func (b *bench) copyBinary() (string, error) {
	content, err := os.ReadFile(b.binary)
	if err != nil {
		return "", err
	}
	path := b.program("muster")
	return path, os.WriteFile(path, content, 0o755)
}

// fake writes a spec of as many GPUs for each node.
func (b *bench) fake(gpus int) (string, error) {
	path := b.program(fmt.Sprintf("%d-gpus.yaml", gpus))
	text := fmt.Sprintf("version: 1\ndefaults: {vendor: nvidia, count: %d, model: NVIDIA H100 80GB HBM3, memory_mib: 81559, nvlinks: 18}\n",
		gpus)
	return path, os.WriteFile(path, []byte(text), 0o600)
}
