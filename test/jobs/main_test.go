// Package jobs runs job files of every kind: their nodes, their launchers, and the rules that they say in their own words.
package jobs

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
