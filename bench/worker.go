package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// workerWord as the first argument makes this program a worker: a launcher starts it, with --no-python.
const workerWord = "_worker"

// lineLength is that of a line that a worker writes, with its newline, in bytes.
const lineLength = 100

// chunkBytes is how much a worker writes at once: whole lines, as a program with a buffered standard output does.
const chunkBytes = 640 * lineLength

// worker runs one of the worker programs:
//
//	flood BYTES          writes BYTES of lines as fast as they are taken
//	paced UNITS HASHES   UNITS times: hashes HASHES blocks, then writes 1 MB of lines; says how long all of it took
func worker(args []string) error {
	var numbers []int
	for _, arg := range args[1:] {
		n, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		numbers = append(numbers, n)
	}
	switch {
	case args[0] == "flood" && len(numbers) == 1:
		if err := writeStamp(); err != nil {
			return err
		}
		return writeLines(numbers[0])
	case args[0] == "paced" && len(numbers) == 2:
		began := time.Now()
		for range numbers[0] {
			compute(numbers[1])
			if err := writeLines(1e6); err != nil {
				return err
			}
		}
		took := strconv.FormatFloat(time.Since(began).Seconds(), 'f', 6, 64)
		return os.WriteFile(workerFile("took"), []byte(took), 0o600)
	default:
		return fmt.Errorf("there is no worker program %q", args)
	}
}

// workerFile returns the path of a file of this worker's job.
func workerFile(name string) string {
	return filepath.Join(os.Getenv("BENCH_DIR"), name) //nolint:forbidigo // how the benchmark reaches its workers through both launchers
}

// writeStamp says when this worker began, in the form of testdata/stamp.sh; its rank and attempt do not matter.
func writeStamp() (err error) {
	now := time.Now()
	f, err := os.OpenFile(workerFile("stamps"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = fmt.Fprintf(f, "%d.%09d 0 0 %d\n", now.Unix(), now.Nanosecond(), os.Getpid())
	return err
}

var chunk = bytes.Repeat(append(bytes.Repeat([]byte{'x'}, lineLength-1), '\n'), chunkBytes/lineLength)

// writeLines writes whole lines of n bytes together to standard output.
func writeLines(n int) error {
	for n > 0 {
		part := chunk[:min(n, len(chunk))]
		if _, err := os.Stdout.Write(part); err != nil {
			return err
		}
		n -= len(part)
	}
	return nil
}

// compute is a fixed amount of work for one core.
func compute(hashes int) {
	var block [4096]byte
	for range hashes {
		sum := sha256.Sum256(block[:])
		copy(block[:], sum[:])
	}
}
