package dialect_test

import (
	"testing"

	"muster/cmd/dialect"
)

// TestWordsHaveOptions: each field by which a reader asks for an option's value is that of one option of its table, and no
// other option has it. A field without one would always be empty, as if nothing had been given.
func TestWordsHaveOptions(t *testing.T) {
	t.Parallel()
	seen := 0
	for name, fields := range dialect.WordFields() {
		for field, options := range fields {
			if seen++; len(options) != 1 {
				t.Errorf("%s: the field %s is that of the options %q", name, field, options)
			}
		}
	}
	if seen < 400 {
		t.Errorf("only %d fields were found", seen)
	}
}
