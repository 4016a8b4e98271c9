package proc

import (
	"errors"
	"io"
	"testing"
)

// TestPipes: what is written at one end is read at the other, and no end stays open in vain.
func TestPipes(t *testing.T) {
	t.Parallel()
	p, err := NewPipes(In, Out)
	if err != nil {
		t.Fatal(err)
	}
	in, out := p.Theirs[0], p.Theirs[1]
	if _, err := p.Ours[0].WriteString("asked"); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 5)
	if _, err := io.ReadFull(in, text); err != nil || string(text) != "asked" {
		t.Errorf("%q %v", text, err)
	}
	if _, err := out.WriteString("said"); err != nil {
		t.Fatal(err)
	}
	p.Settle(nil)
	if said, err := io.ReadAll(p.Ours[1]); err != nil || string(said) != "said" { // it ends, as the other end is closed
		t.Errorf("%q %v", said, err)
	}
	if _, err := p.Ours[0].WriteString("x"); err == nil {
		t.Error("their end of the first pipe is open")
	}
	ours := p.Ours
	p.Settle(errors.New("not started"))
	for i, f := range ours {
		if f.Close() == nil {
			t.Errorf("our end %d is open", i)
		}
	}
}
