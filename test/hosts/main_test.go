// Package hosts has jobs that one command starts on several hosts by ssh, each in a network namespace.
package hosts

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
