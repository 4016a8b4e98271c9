package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"
)

// elasticGrowth measures how long an elastic Horovod job takes from a host that is added to a world with it, beside
// horovodrun. Most of it is the new worker's import of torch and Horovod.
func elasticGrowth(ctx context.Context, b *bench) ([]row, error) {
	const turns = 3
	figure := "elastic Horovod: host added to a world with it"
	bin, missing := b.peer("horovod")
	if missing != "" {
		return []row{{Figure: figure, Skip: missing}}, nil
	}
	log.Printf("horovod: a host is added, %d times each", turns)
	launchers := []launcher{
		{b.muster.name, []string{b.binary, "--log-level", "warn", "horovodrun"}},
		{"horovodrun", []string{filepath.Join(bin, "horovodrun"), "--gloo"}},
	}
	took := make([][]float64, len(launchers))
	for range turns {
		for i, l := range launchers {
			seconds, err := b.grow(ctx, l, bin)
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], seconds)
		}
	}
	r := compare(figure, "s", median(took[0]), median(took[1]), "≤ 1/2", ratioAtMost(0.5))
	r.Note = spread(measured{launchers[0].name, took[0]}, "s") + "; " + spread(measured{launchers[1].name, took[1]}, "s")
	return []row{r}, nil
}

// grow runs one job on one host, adds another, and returns how long that took, in s.
func (b *bench) grow(ctx context.Context, l launcher, bin string) (_ float64, err error) {
	list := b.program("horovod-hosts")
	write := func(hosts string) error {
		if err := os.WriteFile(list+".new", []byte(hosts), 0o600); err != nil {
			return err
		}
		return os.Rename(list+".new", list)
	}
	if err := write("localhost:1\n"); err != nil {
		return 0, err
	}
	j, err := b.start(ctx, l, jobSpec{
		env: []string{withPath(bin)},
		args: []string{
			"-np", "1", "--min-np", "1", "--max-np", "2", "--network-interfaces", "lo", "--host-discovery-script", "cat " + list,
			filepath.Join(bin, "python"), b.program("horovod_elastic.py"),
		},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, j.end()) }()
	if err := j.world(ctx, 1); err != nil {
		return 0, err
	}
	if err := write("localhost:1\n127.0.0.1:1\n"); err != nil {
		return 0, err
	}
	added := time.Now()
	if err := j.world(ctx, 2); err != nil {
		return 0, err
	}
	took := time.Since(added).Seconds()
	if err := os.WriteFile(filepath.Join(j.dir, "stop"), nil, 0o600); err != nil {
		return 0, err
	}
	return took, j.succeed()
}

// world waits until as many workers have told of a world of that size.
func (j *job) world(ctx context.Context, size int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		found, err := filepath.Glob(filepath.Join(j.dir, fmt.Sprintf("world-%d-*", size)))
		if err != nil || len(found) == size {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-j.done:
			return fmt.Errorf("the job has ended before it had a world of %d%s", size, j.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("there is no world of %d: %w%s", size, ctx.Err(), j.lastWords())
		}
	}
}
