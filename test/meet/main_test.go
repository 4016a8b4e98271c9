// Package meet has agents that meet at each kind of store, and what others do to that.
package meet

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
