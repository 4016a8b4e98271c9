package dialect_test

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"muster/cmd/dialect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func errorsAsHelp(err error) (string, bool) {
	if help, ok := errors.AsType[*dialect.HelpError](err); ok {
		return help.Text, true
	}
	return "", false
}
