package proc

import (
	"os"
	"testing"
	"time"
)

// What a program has written is read, also where a busy machine comes to it only when its time is over; an open pipe
// with nothing in it is not waited for.
func TestCappedReadsWhatIsThere(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	if _, err := w.WriteString("what was said"); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	all := capped{max: 100}
	if all.fill(r); string(all.kept) != "what was said" || all.full {
		t.Errorf("%q is kept of it", all.kept)
	}
	if _, err := w.WriteString("and more"); err != nil {
		t.Fatal(err)
	}
	some := capped{max: 4}
	if some.fill(r); string(some.kept) != "and " || !some.full {
		t.Errorf("%q is kept of more than there is room for", some.kept)
	}
}
