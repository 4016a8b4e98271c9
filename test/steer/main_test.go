// Package steer has commands beside jobs that run: they look at them, change them, and stop them.
package steer

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
