// Package dialects has jobs that are started in the words of other launchers, beside those launchers where they run.
package dialects

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
