package errhint_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"muster/internal/errhint"
)

func TestInnermostWins(t *testing.T) {
	inner := errhint.Code(errhint.With(io.EOF, "inner"), errhint.TryAgain)
	err := errhint.Code(errhint.With(fmt.Errorf("cannot join: %w", inner), "outer"), errhint.Internal)
	if got := errhint.Of(err); got != "inner" {
		t.Errorf("hint %q, want inner", got)
	}
	if got := errhint.CodeOf(err); got != errhint.TryAgain {
		t.Errorf("code %d, want %d", got, errhint.TryAgain)
	}
	if !errors.Is(err, io.EOF) {
		t.Error("the cause is lost")
	}
	if got, want := err.Error(), "cannot join: EOF"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

func TestDefaults(t *testing.T) {
	if got := errhint.CodeOf(io.EOF); got != errhint.Internal {
		t.Errorf("code of a bare error %d, want %d", got, errhint.Internal)
	}
	if got := errhint.CodeOf(nil); got != errhint.OK {
		t.Errorf("code of nil %d", got)
	}
	if errhint.With(nil, "x") != nil || errhint.Code(nil, 3) != nil {
		t.Error("nil did not stay nil")
	}
	if got := errhint.CodeOf(errhint.Usagef("bad %q", "x")); got != errhint.Usage {
		t.Errorf("code of Usagef %d", got)
	}
}
