package warm

import (
	"os"
	"strings"
	"testing"
)

// TestPrinted gives the end mark in pieces, with output behind it, and between the streams.
func TestPrinted(t *testing.T) {
	t.Parallel()
	const end = "muster-END"
	var p printed
	var pipes [2]*os.File
	done := make(chan struct{}, 2)
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pipes[i] = w
		go func() {
			p.read(r, string(rune('1'+i)), []byte(end))
			done <- struct{}{}
		}()
	}
	say := func(i int, text string) {
		if _, err := pipes[i].WriteString(text); err != nil {
			t.Error(err)
		}
	}
	for i, text := range []string{"out muster-", "err "} {
		say(i, text)
	}
	for i := range pipes {
		for _, letter := range "muster-EN and more " + end + "dropped" {
			say(i, string(letter))
		}
	}
	pieces, err := p.await(nil)
	got := map[byte]string{}
	for _, piece := range pieces {
		got[piece[0]] += piece[1:]
	}
	if got['1'] != "out muster-muster-EN and more " || got['2'] != "err muster-EN and more " || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, w := range pipes {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		<-done
	}
}

func TestPrintedTooMuch(t *testing.T) {
	t.Parallel()
	var p printed
	for range 3 {
		p.add("1", make([]byte, printLimit/2))
	}
	p.finish()
	p.finish()
	if _, err := p.await(nil); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too much was printed, and it says %v", err)
	}
	gone := make(chan struct{})
	close(gone)
	if _, err := new(printed).await(gone); err == nil {
		t.Error("all is well with a template that has ended")
	}
}
