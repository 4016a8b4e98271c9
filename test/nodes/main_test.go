// Package nodes has jobs of several nodes, each in a network namespace of its own.
package nodes

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
