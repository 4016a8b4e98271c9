package output

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestCatchUp: the last words of a worker are known, although something that it started holds its pipe open and goes on
// writing, and reading them has an end when a console takes nothing.
func TestCatchUp(t *testing.T) {
	poll, err := openPipePoller()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := poll.close(); err != nil {
			t.Error(err)
		}
	}()
	src, end, err := openPipe(poll)
	if err != nil {
		t.Fatal(err)
	}
	p := &pump{src: src, tail: &tail{}, calledOff: make(chan struct{})}
	w := &Worker{pipes: []*pipeSource{src}, last: [2]func(int) []string{p.tail.lines, p.tail.lines}}
	reading := make(chan struct{})
	write := func(text string) {
		if _, err := end.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 500 {
		write(strings.Repeat("x", i*40) + "\n")
		text := fmt.Sprintf("last words %d", i)
		write(text)
		if i == 0 { // nobody reads yet
			none, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			w.CatchUp(none)
			cancel()
			if lines := w.LastLines(1); lines != nil {
				t.Errorf("%q", lines)
			}
			go func() {
				p.run()
				close(reading)
			}()
		}
		w.CatchUp(ctx)
		if lines := w.LastLines(1); len(lines) != 1 || lines[0] != text {
			t.Fatalf("%q, want %q", lines, text)
		}
		write("\n")
	}
	if err := end.Close(); err != nil {
		t.Fatal(err)
	}
	<-reading
	w.CatchUp(ctx) // nobody reads any more
	if ctx.Err() != nil {
		t.Error("it took a minute")
	}
}
