package output

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"muster/launch/job"
)

// benchOutput runs workers that do job, with the rules, while their console is read to the end. It returns what they
// said on standard error.
func benchOutput(b *testing.B, rules job.LogRules, workers int, job string) string {
	b.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	shown := make(chan error)
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{read}, make([]byte, 1<<20))
		shown <- errors.Join(err, read.Close())
	}()
	var said bytes.Buffer
	l, err := Open(Setup{Rules: rules, TempDir: b.TempDir(), Stdout: write, Stderr: &said, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	a, err := l.Attempt(0, workers)
	if err != nil {
		b.Fatal(err)
	}
	logs, running := make([]*Worker, workers), make([]*exec.Cmd, workers)
	for i := range workers {
		if logs[i], err = a.Worker(Identity{LocalRank: i, Role: "default"}); err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestLogWorker$")
		cmd.Env = append(os.Environ(), "MUSTER_LOG_WORKER="+job)
		cmd.Stdout, cmd.Stderr = logs[i].Files()
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		logs[i].Started()
		running[i] = cmd
	}
	for i := range workers {
		if err := running[i].Wait(); err != nil {
			b.Error(err)
		}
		logs[i].Finish(context.Background())
	}
	if err := errors.Join(a.Close(), l.Close(true), write.Close(), <-shown); err != nil {
		b.Error(err)
	}
	return said.String()
}

// BenchmarkOutput measures bytes from a worker's write until the console's reader has them.
func BenchmarkOutput(b *testing.B) {
	const mb = 200
	for _, workers := range []int{1, 4} {
		for _, line := range []int{100, 4096} {
			for _, c := range []struct {
				name  string
				rules job.LogRules
			}{
				{"raw", job.LogRules{Dir: os.DevNull}},
				{"prefix", job.LogRules{Dir: os.DevNull, PrefixAll: true}},
				{"tee", job.LogRules{Tee: job.StreamMap{Default: job.Both}}},
			} {
				b.Run(fmt.Sprintf("%s/workers=%d/line=%d", c.name, workers, line), func(b *testing.B) {
					b.SetBytes(int64(workers) * mb * 1e6)
					for b.Loop() {
						benchOutput(b, c.rules, workers, fmt.Sprintf("bulk %d %d", mb, line))
					}
				})
			}
		}
	}
}

// BenchmarkWorkerThatPrints measures what a worker loses that computes and prints 100 MB in each second, compared to
// one whose output goes to /dev/null. What it waits for a processor does not count: the machine has other things to do.
func BenchmarkWorkerThatPrints(b *testing.B) {
	nanoseconds := func(text string) time.Duration {
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return time.Duration(n)
	}
	for _, size := range []int{400, 8192} {
		j := fmt.Sprintf("busy 100 100 %d", size)
		alone := func() time.Duration {
			var said bytes.Buffer
			cmd := exec.Command(os.Args[0], "-test.run=^TestLogWorker$")
			cmd.Env = append(os.Environ(), "MUSTER_LOG_WORKER="+j)
			cmd.Stderr = &said
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
			return nanoseconds(said.String())
		}
		for _, c := range []struct {
			name  string
			rules job.LogRules
		}{
			{"redirect", job.LogRules{Redirect: job.StreamMap{Default: job.Stdout}}},
			{"raw", job.LogRules{Dir: os.DevNull}},
			{"prefix", job.LogRules{Dir: os.DevNull, PrefixAll: true, Prefix: " "}},
			{"tee", job.LogRules{Tee: job.StreamMap{Default: job.Stdout}}},
		} {
			b.Run(fmt.Sprintf("%s/write=%d", c.name, size), func(b *testing.B) {
				var with, without time.Duration
				for b.Loop() {
					without += alone()
					with += nanoseconds(benchOutput(b, c.rules, 1, j))
				}
				b.ReportMetric(100*(with.Seconds()/without.Seconds()-1), "%slower")
			})
		}
	}
}
