// Package clusters has nodes that a cluster starts: a real Slurm, and real masters of DLRover.
package clusters

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
