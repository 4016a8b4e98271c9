// Package checkpoint has jobs that save steps to memory and disk, and lose processes.
package checkpoint

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
