package main

import (
	"bytes"
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

	"muster/launch/diagnose"
	"muster/launch/evidence"
)

// watchedRanks is how many workers a job has whose hangs are looked for.
const watchedRanks = 8

// hangs measures what it costs to look for a hang, and how long it takes until one is explained.
func hangs(ctx context.Context, b *bench) ([]row, error) {
	verdict, err := b.untilVerdict(ctx)
	if err != nil {
		return nil, err
	}
	watching, err := b.watching(ctx)
	if err != nil {
		return nil, err
	}
	return append([]row{verdict, mergedStacks()}, watching...), nil
}

// untilVerdict measures a job of PyTorch that hangs, from the end of its time-out until the verdict is told, in s. The
// time-out begins with the last thing that any worker has done.
func (b *bench) untilVerdict(ctx context.Context) (row, error) {
	const runs, timeout = 5, 4 * time.Second
	log.Printf("hangs: %d workers hang, %d times", watchedRanks, runs)
	var took []float64
	for range runs {
		seconds, err := b.hang(ctx, timeout)
		if err != nil {
			return row{}, err
		}
		took = append(took, seconds)
	}
	r := row{
		Figure: fmt.Sprintf("end of the time-out to the verdict on a hang, %d workers", watchedRanks), Unit: "s", Budget: "≤ 3 s",
		Note: spread(measured{b.muster.name, took}, "s"),
	}
	r.Ours = median(took)
	r.Pass = slices.Max(took) <= 3
	return r, nil
}

// hang has one job hang, and returns how long after the time-out the right verdict was told, in s.
func (b *bench) hang(ctx context.Context, timeout time.Duration) (_ float64, err error) {
	j, err := b.start(ctx, b.native(), b.stepping("hang", "--hang-timeout", timeout.String()))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, j.end()) }()
	stamps, err := j.waitStamps(ctx, watchedRanks)
	if err != nil {
		return 0, err
	}
	last := slices.MaxFunc(stamps, func(a, b stamp) int { return a.at.Compare(b.at) })
	for deadline := time.Now().Add(time.Minute); ; {
		said, err := os.ReadFile(filepath.Join(j.dir, "stderr"))
		if err != nil {
			return 0, err
		}
		if at := time.Now(); bytes.Contains(said, []byte("the workers hang")) {
			if !bytes.Contains(said, []byte("rank 1 has not come to all_reduce: it is stopped by a signal")) {
				return 0, fmt.Errorf("the verdict is wrong%s", j.lastWords())
			}
			return (at.Sub(last.at) - timeout).Seconds(), nil
		} else if at.After(deadline) || ctx.Err() != nil {
			return 0, errors.Join(fmt.Errorf("no hang was told within a minute%s", j.lastWords()), ctx.Err())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stepping is a job of PyTorch whose workers tell their steps, and hang after some of them or go on.
func (b *bench) stepping(way string, flags ...string) jobSpec {
	args := append([]string{"-n", strconv.Itoa(watchedRanks), "--ckpt", "on", "--warm", "torch"}, flags...)
	return jobSpec{args: append(args, "--", b.python("python"), b.program("steps.py"), way), env: []string{"MUSTER_STACKS="}}
}

// watching measures what muster uses with and without --hang-timeout, and how long the steps of the workers are.
func (b *bench) watching(ctx context.Context) ([]row, error) {
	const runs = 3
	log.Printf("hangs: %d workers are watched, and not, %d times", watchedRanks, runs)
	binary, err := b.copyBinary()
	if err != nil {
		return nil, err
	}
	var share, step [2][]float64
	for range runs {
		for i, timeout := range []string{"0", "auto"} {
			used, took, err := b.watchedFor(ctx, binary, timeout)
			if err != nil {
				return nil, err
			}
			share[i], step[i] = append(share[i], used), append(step[i], took)
		}
	}
	with, without := median(share[1]), median(share[0])
	cpu := compare(fmt.Sprintf("processor time of muster, of a core, %d workers, --hang-timeout auto", watchedRanks), "%", with, without,
		"≤ 0.2 % more", func(float64, float64) bool { return with-without <= 0.2 })
	cpu.Note = spread(measured{"auto", share[1]}, "%") + "; " + spread(measured{"without", share[0]}, "%") +
		"; the peer is muster without --hang-timeout"
	steps := compare("a step of these workers (median)", "ms", median(step[1]), median(step[0]), "≤ 1.02", ratioAtMost(1.02))
	steps.Note = spread(measured{"auto", step[1]}, "ms") + "; " + spread(measured{"without", step[0]}, "ms")
	return []row{cpu, steps}, nil
}

// watchedFor runs a job for a while, and returns the share of a core that muster has used meanwhile in %, and the median
// of the workers' steps in ms.
func (b *bench) watchedFor(ctx context.Context, binary, timeout string) (share, step float64, err error) {
	const long = 20 * time.Second
	j, err := b.start(ctx, launcher{name: "watched", argv: []string{binary, "run"}}, b.stepping("steps", "--hang-timeout", timeout))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, j.end()) }()
	if _, err := j.waitStamps(ctx, watchedRanks); err != nil {
		return 0, 0, err
	}
	time.Sleep(settling)
	before, began := cpuOfAll(running(binary)), time.Now()
	select {
	case <-time.After(long):
	case <-j.done:
		return 0, 0, fmt.Errorf("the job has ended%s", j.lastWords())
	}
	share = 100 * float64(cpuOfAll(running(binary))-before) / float64(time.Since(began))
	if err := os.WriteFile(filepath.Join(j.dir, "enough"), nil, 0o600); err != nil {
		return 0, 0, err
	}
	if err := j.succeed(); err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile(filepath.Join(j.dir, "step"))
	if err != nil {
		return 0, 0, err
	}
	step, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return share, step, err
}

// cpuOfAll is the processor time of processes that go on.
func cpuOfAll(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		if used, err := cpuOf(pid); err == nil { // else it has ended
			sum += used
		}
	}
	return sum
}

// mergedStacks measures what is made of the stacks of 10,000 ranks: the verdict, the groups, the picture.
func mergedStacks() row {
	const runs, ranks = 5, 10_000
	log.Printf("hangs: the stacks of %d ranks are merged, %d times", ranks, runs)
	nodes := manyStacks(ranks)
	var took []float64
	wrong := ""
	for range runs {
		began := time.Now()
		v := diagnose.Of(nodes, nil)
		groups := evidence.Merge(nodes, true)
		var text, svg bytes.Buffer
		err := errors.Join(evidence.WriteText(&text, groups), evidence.WriteSVG(&svg, v.Sentence, groups))
		took = append(took, time.Since(began).Seconds())
		if err != nil || v.Kind != diagnose.Sleeps || len(v.Culprits) != ranks/100 || len(groups) > 10 {
			wrong = fmt.Sprintf("; wrong: %v %s, %d culprits, %d groups", err, v.Kind, len(v.Culprits), len(groups))
		}
	}
	r := row{
		Figure: "verdict and picture of the stacks of 10,000 simulated ranks", Unit: "s", Budget: "≤ 2 s",
		Note: spread(measured{"muster", took}, "s") + wrong,
	}
	r.Ours = median(took)
	r.Pass = r.Ours <= 2 && wrong == ""
	return r
}

// manyStacks are those of ranks on nodes of 8. Each has the Python threads and the native ones that PyTorch with gloo has;
// one of a hundred sleeps, and the others wait for it.
func manyStacks(ranks int) []evidence.Node {
	const lib = "/venv/lib/python3.13/site-packages/torch/"
	var nodes []evidence.Node
	for rank := range ranks {
		if rank%8 == 0 {
			nodes = append(nodes, evidence.Node{Node: fmt.Sprintf("gpu-%d", rank/8)})
		}
		n := &nodes[len(nodes)-1]
		frames := []evidence.Frame{}
		for depth := range 12 {
			frames = append(frames, evidence.Frame{Func: fmt.Sprintf("call_%d", depth), File: "/home/user/train.py", Line: 10 * depth})
		}
		call := "futex"
		if rank%100 == 7 {
			call = "clock_nanosleep"
			frames = append(frames, evidence.Frame{Func: "load", File: "/home/user/data.py", Line: 17, Text: "time.sleep(3600)"})
		} else {
			frames = append(frames, evidence.Frame{Func: "wrapper", File: lib + "distributed/c10d_logger.py", Line: 83},
				evidence.Frame{Func: "all_reduce", File: lib + "distributed/distributed_c10d.py", Line: 4181})
		}
		pid := 1000 + rank
		p := evidence.Process{
			PID: pid, Name: "python", State: "S", Steady: true,
			Threads: []evidence.Thread{{TID: pid, Name: "python", State: "S", Syscall: call}},
			Stacks: []evidence.Stack{
				{Thread: "1", Frames: frames},
				{Thread: "2", Frames: []evidence.Frame{{Func: "run", File: "/usr/lib/python3.13/threading.py", Line: 982}}},
			},
		}
		for i := range 24 {
			p.Threads = append(p.Threads, evidence.Thread{
				TID: pid + i, Name: []string{"gloo_tcp_loop", "pt_gloo_runloop", "python"}[i%3], State: "S", Syscall: "futex",
				Kernel: []string{"futex_do_wait", "__futex_wait", "futex_wait", "do_futex", "__x64_sys_futex", "do_syscall_64"},
			})
		}
		n.Ranks = append(n.Ranks, evidence.Rank{Node: n.Node, Rank: rank, PID: pid, Processes: []evidence.Process{p}})
	}
	return nodes
}
