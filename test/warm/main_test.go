// Package warm has workers that are forked from a template, beside those that start as usual.
package warm

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
