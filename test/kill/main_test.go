// Package kill has jobs whose processes are hit by signals, and looks at what they leave.
package kill

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
