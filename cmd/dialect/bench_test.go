package dialect_test

import (
	"os"
	"testing"

	"muster/cmd/dialect"
)

// Reading a command line is part of the time to the first worker.
func BenchmarkTorchrun(b *testing.B) {
	inv := dialect.Invocation{
		Argv0: "torchrun", Args: []string{"--standalone", "--nproc-per-node=8", "-t", "3", "train.py", "--lr", "0.1"},
		Environ: os.Environ(),
	}
	for b.Loop() {
		if _, err := dialect.Torchrun(inv); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHelp(b *testing.B) {
	for b.Loop() {
		for _, name := range dialect.Names() {
			dialect.Help(name)
		}
	}
}

func BenchmarkAccelerate(b *testing.B) {
	inv := dialect.Invocation{
		Argv0: "accelerate",
		Args:  []string{"--multi_gpu", "--num_processes=8", "--mixed_precision", "bf16", "train.py", "--lr", "0.1"}, Environ: os.Environ(),
	}
	for b.Loop() {
		if _, err := dialect.AccelerateLaunch(inv); err != nil {
			b.Fatal(err)
		}
	}
}
