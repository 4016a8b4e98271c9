// Package hang has jobs that hang in each way there is, and what is said of them.
package hang

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
