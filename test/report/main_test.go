// Package report has what is told of jobs: the log, the report of a failure, the status file.
package report

import (
	"testing"

	"muster/test/drive"
)

func TestMain(m *testing.M) { drive.Main(m) }
