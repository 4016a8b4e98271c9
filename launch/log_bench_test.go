package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// benchOutput runs workers with the rules while their console is read to the end, and returns how long it took from
// their start until all was shown.
func benchOutput(b *testing.B, rules LogRules, workers int, argv []string) time.Duration {
	b.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	shown := make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, read)
		shown <- errors.Join(err, read.Close())
	}()
	l, err := openLogs(logSetup{Rules: rules, TempDir: b.TempDir(), Stdout: write, Stderr: io.Discard, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	a, err := l.attempt(0, workers)
	if err != nil {
		b.Fatal(err)
	}
	logs, running := make([]*workerLogs, workers), make([]*exec.Cmd, workers)
	begin := time.Now()
	for i := range workers {
		if logs[i], err = a.worker(workerIdentity{LocalRank: i, Role: "default"}); err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(argv[0], "-test.run=^TestLogWorker$")
		cmd.Env = append(os.Environ(), "MUSTER_LOG_WORKER="+fmt.Sprint(argv[1]))
		cmd.Stdout, cmd.Stderr = logs[i].files()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		logs[i].started()
		running[i] = cmd
	}
	for i := range workers {
		if err := running[i].Wait(); err != nil {
			b.Error(err)
		}
		logs[i].finish(context.Background())
	}
	took := time.Since(begin)
	if err := errors.Join(a.close(), l.Close(true), write.Close(), <-shown); err != nil {
		b.Error(err)
	}
	return took
}

// BenchmarkOutput measures bytes from a worker's write until the console's reader has them.
func BenchmarkOutput(b *testing.B) {
	const mb = 200
	for _, workers := range []int{1, 4} {
		for _, line := range []int{100, 4096} {
			for _, c := range []struct {
				name  string
				rules LogRules
			}{
				{"raw", LogRules{Dir: os.DevNull}},
				{"prefix", LogRules{Dir: os.DevNull, PrefixAll: true}},
				{"tee", LogRules{Tee: StreamMap{Default: Both}}},
			} {
				b.Run(fmt.Sprintf("%s/workers=%d/line=%d", c.name, workers, line), func(b *testing.B) {
					b.SetBytes(int64(workers) * mb * 1e6)
					for b.Loop() {
						benchOutput(b, c.rules, workers, []string{os.Args[0], fmt.Sprintf("bulk %d %d", mb, line)})
					}
				})
			}
		}
	}
}

// BenchmarkWorkerThatPrints measures what a worker loses that computes and prints 100 MB in each second, compared to one
// whose output goes to /dev/null.
func BenchmarkWorkerThatPrints(b *testing.B) {
	for _, size := range []int{400, 8192} {
		job := fmt.Sprintf("busy 100 100 %d", size)
		alone := func() time.Duration {
			cmd := exec.Command(os.Args[0], "-test.run=^TestLogWorker$")
			cmd.Env = append(os.Environ(), "MUSTER_LOG_WORKER="+job)
			begin := time.Now()
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
			return time.Since(begin)
		}
		for _, c := range []struct {
			name  string
			rules LogRules
		}{
			{"redirect", LogRules{Redirect: StreamMap{Default: Both}}},
			{"raw", LogRules{Dir: os.DevNull}},
			{"prefix", LogRules{Dir: os.DevNull, PrefixAll: true}},
			{"tee", LogRules{Tee: StreamMap{Default: Both}}},
		} {
			b.Run(fmt.Sprintf("%s/write=%d", c.name, size), func(b *testing.B) {
				var with, without time.Duration
				for b.Loop() {
					without += alone()
					with += benchOutput(b, c.rules, 1, []string{os.Args[0], job})
				}
				b.ReportMetric(100*(with.Seconds()/without.Seconds()-1), "%slower")
			})
		}
	}
}
