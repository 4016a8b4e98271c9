// Command bench measures muster beside the real torchrun, in the same run on the same machine, and holds each figure
// against its budget. It prints a table, writes the same as JSON, and ends with status 1 where a figure misses its
// budget. It wants the machine for itself: nothing else should run, and nothing here belongs to the tests.
//
// Both launchers get the same flags, the torchrun dialect's, the same workers and the same environment. The order of
// the two alternates, and a figure is the median of its runs.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

//go:embed testdata
var testdata embed.FS

// bench is what every figure needs to know.
type bench struct {
	muster   launcher
	torchrun launcher
	binary   string // path of muster
	torch    string // virtual environment with PyTorch
	dir      string // folder for everything written, removed at the end
	self     string // path of this program, which is also some of the workers
	jobs     int    // jobs of ours in the survival figure
	peerJobs int    // the same of torchrun

	goodputFor time.Duration // how long each launcher trains for the goodput figure, in goodputTurns jobs

	storebench string // path of the store's own benchmark
	meetbench  string // path of the one of agents that meet
	nvprobe    string // path of the NVML probe
	nvml       string // path of the library that it asks here
}

// figure is something to measure: one or more rows of the table.
type figure struct {
	name string
	run  func(context.Context, *bench) ([]row, error)
}

// scaleFigures are what make bench-scale measures: thousands of clients and agents.
var scaleFigures = []figure{
	{"clients", clients},
	{"agents", agents},
}

// soakFigures take so long that only make soak measures them.
var soakFigures = []figure{
	{"goodput", goodput},
}

// figures are what make bench measures, in the order of the table.
var figures = []figure{
	{"startup", startup},
	{"memory", memory},
	{"restart", restart},
	{"logs", logs},
	{"slowdown", slowdown},
	{"size", size},
	{"survival", survival},
	{"warm", warm},
	{"hangs", hangs},
	{"nodes", nodes},
	{"blamed", blamed},
	{"check", networkCheck},
	{"devices", devices},
	{"hosts", overHosts},
	{"jobfiles", jobFiles},
	{"horovod", elasticGrowth},
	{"checkpoint", checkpoints},
	{"copies", copies},
	{"store", store},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	if len(os.Args) > 1 && os.Args[1] == workerWord {
		if err := worker(os.Args[2:]); err != nil {
			log.Fatalf("worker: %v", err)
		}
		return
	}
	missed, err := run()
	if err != nil {
		log.Fatal(err)
	}
	if missed > 0 {
		log.Fatalf("%d figures miss their budget", missed)
	}
}

// run measures what the flags ask for and returns how many figures miss their budget.
func run() (missed int, err error) {
	binary := flag.String("muster", "bin/muster", "the `binary` to measure")
	torch := flag.String("torch", "", "the `folder` of the virtual environment that holds torchrun (make deps)")
	storebench := flag.String("storebench", "build/storebench", "the `program` that measures the store")
	meetbench := flag.String("meetbench", "build/meetbench", "the `program` that measures agents that meet")
	nvprobe := flag.String("nvprobe", "build/bench/nvprobe", "the NVML `probe` (gcc)")
	nvml := flag.String("nvml", "build/bench/libnvidia-ml.so.1", "the `library` without GPUs that the probe asks")
	out := flag.String("json", "", "write the table as JSON to this `file`")
	scale := flag.Bool("scale", false, "measure thousands of clients and agents instead (make bench-scale)")
	only := flag.String("only", "", "the figures to measure, with commas between; empty: all")
	jobs := flag.Int("jobs", 3, "jobs that lose a worker, for muster")
	peerJobs := flag.Int("peer-jobs", 3, "jobs that lose a worker, for torchrun")
	goodputFor := flag.Duration("goodput-for", 5*time.Minute, "how `long` each launcher trains for the goodput figure, in three jobs")
	flag.Parse()
	if flag.NArg() > 0 || *torch == "" {
		flag.Usage()
		return 0, errors.New("-torch is needed, and no further argument")
	}
	if *goodputFor <= goodputTurns*failEvery {
		return 0, fmt.Errorf("-goodput-for has to be more than %v: in each of %d jobs a worker is killed every %v", goodputTurns*failEvery,
			goodputTurns, failEvery)
	}
	if *jobs < 1 || *peerJobs < 1 {
		return 0, errors.New("-jobs and -peer-jobs are at least 1")
	}
	table := figures
	if *scale {
		table = scaleFigures
	}
	if *only != "" && !*scale {
		table = append(table, soakFigures...)
	}
	if table, err = choose(table, *only); err != nil {
		return 0, err
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{
		jobs: *jobs, peerJobs: *peerJobs, goodputFor: *goodputFor, storebench: *storebench, meetbench: *meetbench,
		nvprobe: *nvprobe, nvml: *nvml,
	}
	if err := b.open(*binary, *torch); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

	machine := thisMachine()
	log.Print(machine)
	var rows []row
	for _, f := range table {
		began := time.Now()
		found, err := f.run(ctx, b)
		if err != nil {
			return 0, fmt.Errorf("cannot measure %s: %w", f.name, err)
		}
		log.Printf("%s took %.0f s", f.name, time.Since(began).Seconds())
		rows = append(rows, found...)
	}
	if err := printTable(os.Stdout, rows); err != nil {
		return 0, err
	}
	if *out != "" {
		if err := writeJSON(*out, machine, rows); err != nil {
			return 0, err
		}
	}
	for _, r := range rows {
		if r.missed() {
			missed++
		}
	}
	return missed, nil
}

// choose returns the figures of table that only names, all for "".
func choose(table []figure, only string) (chosen []figure, err error) {
	if only == "" {
		return table, nil
	}
	var names []string
	wanted := strings.Split(only, ",")
	for _, f := range table {
		names = append(names, f.name)
		if slices.Contains(wanted, f.name) {
			chosen = append(chosen, f)
		}
	}
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is no figure %q (there are %s)", name, strings.Join(names, ", "))
		}
	}
	return chosen, nil
}

// open finds the programs and lays out the worker scripts in a new folder.
func (b *bench) open(binary, torch string) error {
	var err error
	if b.binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	if b.torch, err = filepath.Abs(torch); err != nil {
		return err
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	b.muster = launcher{name: "muster", argv: []string{b.binary, "torchrun"}}
	b.torchrun = launcher{name: "torchrun", argv: []string{b.python("torchrun")}}
	for _, path := range []string{b.binary, b.torchrun.argv[0]} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("a program to measure is missing (make build deps): %w", err)
		}
	}
	if b.dir, err = os.MkdirTemp("", "muster-bench-"); err != nil {
		return err
	}
	return fs.WalkDir(testdata, "testdata", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := testdata.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(b.program(d.Name()), content, 0o755)
	})
}

// program returns the path of a worker script.
func (b *bench) program(name string) string { return filepath.Join(b.dir, name) }

// python returns the path of a program of the virtual environment.
func (b *bench) python(name string) string { return filepath.Join(b.torch, "bin", name) }

// withTorch is the entry of the environment by which PyTorch's interpreter comes before others.
func (b *bench) withTorch() string {
	return "PATH=" + b.python("") + ":" + os.Getenv("PATH") //nolint:forbidigo // the caller's PATH behind it
}
