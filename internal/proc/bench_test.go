package proc_test

import (
	"os"
	"testing"

	"muster/internal/proc"
)

// BenchmarkStart8 starts eight workers and stops them; ms/start8 is the time of our own from the first Start to the
// return of the eighth.
func BenchmarkStart8(b *testing.B) {
	tree, err := proc.Open(proc.Config{Guardian: []string{"/proc/self/exe", roleArg, "guardian", "bench"}, Cgroup: true})
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	for b.Loop() {
		procs := make([]*proc.Process, 8)
		for i := range procs {
			if procs[i], err = tree.Start(proc.Spec{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Env: os.Environ()}); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		if err := tree.Stop(b.Context(), proc.Ladder{}, procs...); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkStop stops one worker that ends at once when asked.
func BenchmarkStop(b *testing.B) {
	tree, err := proc.Open(proc.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	for b.Loop() {
		b.StopTimer()
		p, err := tree.Start(proc.Spec{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Env: os.Environ()})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := tree.Stop(b.Context(), proc.Ladder{Grace: 1e10}, p); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScan looks through the process table once.
func BenchmarkScan(b *testing.B) {
	tree, err := proc.Open(proc.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	for b.Loop() {
		tree.Scan()
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(all)), "procs")
}
