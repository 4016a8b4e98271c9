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
	"time"
)

// alternate runs once for each launcher in turn, n times, and returns the figures in the order measured.
func (b *bench) alternate(n int, once func(launcher) (float64, error)) (ours, peers []float64, err error) {
	for range n {
		peer, err := once(b.torchrun)
		if err != nil {
			return nil, nil, err
		}
		our, err := once(b.muster)
		if err != nil {
			return nil, nil, err
		}
		ours, peers = append(ours, our), append(peers, peer)
	}
	return ours, peers, nil
}

// startup measures from the start of the command to the first instruction of the first worker, in ms.
func startup(ctx context.Context, b *bench) ([]row, error) {
	log.Print("startup: 7 times each, 2 shell workers")
	ours, peers, err := b.alternate(7, func(l launcher) (_ float64, err error) {
		j, err := b.start(ctx, l, b.shell(2, 0, 0))
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		if err := j.succeed(); err != nil {
			return 0, err
		}
		began, err := j.waitStamps(ctx, 2)
		if err != nil {
			return 0, err
		}
		first := slices.MinFunc(began, func(a, b stamp) int { return a.at.Compare(b.at) })
		return ms(first.at.Sub(j.began)), nil
	})
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("torchrun's first run, the coldest: %.0f ms", peers[0])
	r := compare("command start to worker's first instruction", "ms", median(ours), median(peers), "≤ 10 ms and ≤ 1/50",
		func(ours, ratio float64) bool { return ours <= 10 && ratio <= 1.0/50 })
	r.Note = note
	return []row{r}, nil
}

// memory sums the proportional set sizes of the launcher's own processes while 8 workers run, in MB.
func memory(ctx context.Context, b *bench) ([]row, error) {
	log.Print("memory: 3 times each, 8 shell workers")
	ours, peers, err := b.alternate(3, func(l launcher) (_ float64, err error) {
		j, err := b.start(ctx, l, b.shell(8, 0, 99))
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		began, err := j.waitStamps(ctx, 8)
		if err != nil {
			return 0, err
		}
		time.Sleep(time.Second) // let it settle, as it would be during training
		return j.ownMemory(began)
	})
	if err != nil {
		return nil, err
	}
	return []row{compare("memory of the launcher, 8 workers", "MB", median(ours), median(peers), "≤ 25 MB",
		func(ours, _ float64) bool { return ours <= 25 })}, nil
}

// ownMemory returns the proportional set sizes of the job's processes less the workers, in MB.
func (j *job) ownMemory(workers []stamp) (float64, error) {
	sum, counted := 0.0, 0
	for _, pid := range j.processes() {
		if slices.ContainsFunc(workers, func(s stamp) bool { return s.pid == pid }) {
			continue
		}
		content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
		if err != nil {
			return 0, fmt.Errorf("cannot read the memory of process %d: %w", pid, err)
		}
		_, rest, found := strings.Cut(string(content), "\nPss:")
		var kib float64
		if _, err := fmt.Sscan(rest, &kib); !found || err != nil {
			return 0, fmt.Errorf("process %d: smaps_rollup has no Pss", pid)
		}
		sum += kib * 1024 / 1e6
		counted++
	}
	if counted == 0 {
		return 0, errors.New("the launcher has no process")
	}
	return sum, nil
}

// restart measures from the SIGKILL of one of two workers to the first instruction of its successor, in ms.
func restart(ctx context.Context, b *bench) ([]row, error) {
	log.Print("restart: 7 times each, 2 shell workers")
	ours, peers, err := b.alternate(7, func(l launcher) (_ float64, err error) {
		j, err := b.start(ctx, l, b.shell(2, 1, 1))
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, j.end()) }()
		began, err := j.waitStamps(ctx, 2)
		if err != nil {
			return 0, err
		}
		victim := began[slices.IndexFunc(began, func(s stamp) bool { return s.rank == 1 })]
		time.Sleep(300 * time.Millisecond) // past the launcher's own beginning
		killed, all, err := j.survive(victim)
		if err != nil {
			return 0, err
		}
		next := slices.IndexFunc(all, func(s stamp) bool { return s.rank == 1 && s.attempt == 1 })
		if next < 0 {
			return 0, errors.New("the worker had no successor")
		}
		return ms(all[next].at.Sub(killed)), nil
	})
	if err != nil {
		return nil, err
	}
	return []row{compare("SIGKILL of a worker to its successor's first instruction", "ms", median(ours), median(peers), "≤ 20 ms",
		func(ours, _ float64) bool { return ours <= 20 })}, nil
}

// shell is a job of n shell workers that stay, in attempts below hold, until they are killed.
func (b *bench) shell(n, maxRestarts, hold int) jobSpec {
	return jobSpec{
		args: []string{
			"--standalone", "--nproc-per-node", strconv.Itoa(n), "--max-restarts", strconv.Itoa(maxRestarts),
			"--no-python", b.program("stamp.sh"),
		},
		env: []string{"BENCH_HOLD=" + strconv.Itoa(hold)},
	}
}

// size is that of the binary, which must be the one that is shipped: stripped and static. Its budget is that of scripts/size.sh.
func size(_ context.Context, b *bench) ([]row, error) {
	info, err := os.Stat(b.binary)
	if err != nil {
		return nil, err
	}
	mb := float64(info.Size()) / 1e6
	return []row{{Figure: "size of the static binary", Ours: mb, Unit: "MB", Budget: "≤ 32 MB", Pass: mb <= 32}}, nil
}

// survival counts the jobs of 8 gloo workers that end well although one worker is killed.
func survival(ctx context.Context, b *bench) ([]row, error) {
	count := func(l launcher, jobs int) (float64, error) {
		survived := 0
		for i := range jobs {
			j, err := b.start(ctx, l, jobSpec{args: []string{
				"--standalone", "--nproc-per-node", "8", "--max-restarts", "3", b.program("allreduce.py"),
			}, env: []string{b.withTorch()}})
			if err != nil {
				return 0, err
			}
			status, waitErr := j.wait(2 * time.Minute)
			_, diedErr := os.Stat(filepath.Join(j.dir, "died"))
			words := j.lastWords()
			if err := errors.Join(ctx.Err(), j.end()); err != nil {
				return 0, err
			}
			if diedErr != nil {
				return 0, fmt.Errorf("no worker died under %s%s", l.name, words)
			}
			if waitErr == nil && status == 0 {
				survived++
			}
			log.Printf("survival: %s, %d of %d jobs survived so far", l.name, survived, i+1)
		}
		return float64(survived), nil
	}
	log.Printf("survival: %d jobs of muster, %d of torchrun, 8 gloo workers each, one killed", b.jobs, b.peerJobs)
	ours, err := count(b.muster, b.jobs)
	if err != nil {
		return nil, err
	}
	peer, err := count(b.torchrun, b.peerJobs)
	if err != nil {
		return nil, err
	}
	share := func(survived float64, jobs int) float64 { return 100 * survived / float64(jobs) }
	r := compare("jobs of 8 gloo workers that survive a killed one", "%", share(ours, b.jobs), share(peer, b.peerJobs), "all",
		func(share, _ float64) bool { return share == 100 })
	r.Note = fmt.Sprintf("muster %.0f of %d, torchrun %.0f of %d", ours, b.jobs, peer, b.peerJobs)
	return []row{r}, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
