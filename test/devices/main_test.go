// Package devices has jobs on devices, real and made up: what workers get of them, checks, and faults that are rehearsed.
package devices

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
