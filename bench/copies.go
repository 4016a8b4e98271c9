package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"regexp"
	"strconv"
)

// copyLine is a line of BenchmarkCopy: the way, and its rate in MB/s.
var copyLine = regexp.MustCompile(`(?m)^BenchmarkCopy/([a-z]+)\S*\s.*\s([0-9.]+) MB/s`)

// copies compares the rate at which copies of checkpoints go between two nodes with that of plain bytes by the same
// socket: both ends are on this machine, so its processors pay for both.
func copies(ctx context.Context, b *bench) ([]row, error) {
	log.Print("copies: 256 MiB by loopback, encrypted and plain")
	out, err := b.output(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkCopy$", "-benchtime", "8x", "-count", "5", "./checkpointd")
	if err != nil {
		return nil, err
	}
	rates := map[string]measured{}
	for _, m := range copyLine.FindAllSubmatch(bytes.TrimSpace(out), -1) {
		rate, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return nil, err
		}
		way := rates[string(m[1])]
		way.values = append(way.values, rate)
		rates[string(m[1])] = way
	}
	for _, way := range []string{"plain", "encrypted", "copy"} {
		if len(rates[way].values) == 0 {
			return nil, fmt.Errorf("BenchmarkCopy says nothing of %q: %s", way, out)
		}
	}
	r := compare("a copy of 256 MiB by loopback, encrypted, beside plain bytes by the same socket", "MB/s",
		median(rates["encrypted"].values), median(rates["plain"].values),
		"≥ 0.6", func(_, ratio float64) bool { return ratio >= 0.6 })
	r.Note = fmt.Sprintf("%s; %s; with its SHA-256 compared %.0f MB/s; both ends share this machine's processors",
		spread(rates["encrypted"], "MB/s"), spread(rates["plain"], "MB/s"), median(rates["copy"].values))
	return []row{r}, nil
}
