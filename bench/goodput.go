package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	failEvery    = 20 * time.Second // how often a worker of the goodput figure is killed
	goodputTurns = 3                // jobs of each launcher
)

// goodput measures how many steps a tiny GPT is trained while a worker is killed every 20 s. Launchers take turns,
// there and back: a machine whose processors are faster at one time than at another is so for all of them.
func goodput(ctx context.Context, b *bench) ([]row, error) {
	type trainer struct {
		launcher
		kind string
		env  []string
	}
	flags := []string{
		"--standalone", "--nnodes=1", "--nproc-per-node", strconv.Itoa(checkpointRanks), "--max-restarts", "1000",
		b.program("goodput.py"),
	}
	binary := []string{b.binary, "dlrover-run"}
	run := []string{b.binary, "run"}
	ours := []trainer{
		{launcher{"muster run, restarts warm by default", run}, "torch", []string{b.withTorch()}},
		{launcher{"muster", binary}, "flash", []string{b.withTorch()}},
		{launcher{"muster, workers forked from a warm one", binary}, "flash", []string{b.withTorch(), "MUSTER_WARM=auto"}},
	}
	peers := []trainer{{b.torchrun, "torch", []string{b.withTorch(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"}}}
	bin, missing := b.peer("dlrover")
	if missing == "" {
		peers = append(peers,
			trainer{launcher{"dlrover-run", []string{filepath.Join(bin, "dlrover-run")}}, "flash", []string{withPath(bin)}})
	}
	turn := b.goodputFor / goodputTurns
	log.Printf("goodput: %d jobs of %v each, a worker is killed every %v", goodputTurns, turn, failEvery)
	steps := func(t trainer) (done, kills float64, err error) {
		j, err := b.start(ctx, t.launcher, jobSpec{args: append(slices.Clip(flags), t.kind), env: t.env})
		if err != nil {
			return 0, 0, err
		}
		defer leftSegments()()
		defer func() { err = errors.Join(err, j.end()) }()
		done, kills, err = j.trainWithFailures(ctx, turn)
		log.Printf("goodput: %s: %.0f steps, %.0f failures", t.name, done, kills)
		return done, kills, err
	}
	trainers := append(ours, peers...)
	done, kills := make([]float64, len(trainers)), make([]float64, len(trainers))
	order := make([]int, len(trainers))
	for i := range order {
		order[i] = i
	}
	for range goodputTurns {
		for _, i := range order {
			n, killed, err := steps(trainers[i])
			if err != nil {
				return nil, err
			}
			done[i] += n
			kills[i] += killed
		}
		slices.Reverse(order)
	}
	var rows []row
	for i, p := range peers {
		theirs := len(ours) + i
		for mine, t := range ours {
			if t.kind == "torch" && p.kind != t.kind {
				continue // the scripts differ
			}
			part, budget := 1.0, "≥ 1.0"
			if t.kind == "torch" {
				part, budget = 1.1, "≥ 1.1"
			}
			r := compare("steps in "+b.goodputFor.String()+" with a failure every 20 s, "+t.name+", beside "+p.name, "steps", done[mine],
				done[theirs], budget,
				func(_, ratio float64) bool { return ratio >= part })
			r.Note = fmt.Sprintf("%.0f and %.0f failures; ", kills[mine], kills[theirs])
			switch {
			case t.kind == "torch":
				r.Note += "the same script, without any flag for it; TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which torchrun's " +
					"restart fails"
			case p.kind == "torch":
				r.Note += "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which torchrun's restart fails; torch.save after every 20th " +
					"step, ours in memory after every 5th"
			default:
				r.Note += "the same script: in memory after every 5th step, on disk after every 100th"
			}
			rows = append(rows, r)
		}
	}
	if missing != "" {
		rows = append(rows, row{Figure: "the same beside dlrover-run", Budget: "≥ 1.0", Skip: missing})
	}
	return rows, nil
}

// trainWithFailures lets a job train for so long from its first step on, kills one of its ranks in turn every now and
// then, and returns how many steps were done. A worker that has not come back when it is its turn is left alone: its
// job has failed already.
func (j *job) trainWithFailures(ctx context.Context, limit time.Duration) (steps, kills float64, err error) {
	if _, err := j.waitStamps(ctx, checkpointRanks); err != nil {
		return 0, 0, err
	}
	end := time.After(limit)
	tick := time.NewTicker(failEvery)
	defer tick.Stop()
	for turn := 0; ; {
		select {
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		case <-j.done:
			return 0, 0, fmt.Errorf("%s ended while it was to train%s", j.cmd.Args[0], j.lastWords())
		case <-tick.C:
			found, err := j.stamps()
			if err != nil {
				return 0, 0, err
			}
			for _, s := range slices.Backward(found) {
				if s.rank != turn%checkpointRanks {
					continue
				}
				if syscall.Kill(s.pid, syscall.SIGKILL) == nil {
					kills++
				}
				break
			}
			turn++
		case <-end:
			text, err := os.ReadFile(filepath.Join(j.dir, "steps"))
			if err != nil {
				return 0, 0, fmt.Errorf("%s has done no step%s", j.cmd.Args[0], j.lastWords())
			}
			steps, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			return steps, kills, err
		}
	}
}
