package gather

import (
	"bufio"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/launch/evidence"
)

const (
	// quiet is how long nothing is written to a dump that is complete.
	quiet     = 40 * time.Millisecond
	mostDump  = 2 << 20 // bytes; faulthandler writes 100 threads of 100 frames
	mostText  = 160     // bytes of a line of source
	mostLines = 200000  // of a source
)

// stacks takes what the process has written.
func (l *look) stacks(ctx context.Context) {
	if !l.asked {
		if l.to.NoStacks == "" {
			l.to.NoStacks = "its Python takes no signal now"
		}
		return
	}
	size, same := int64(-1), time.Now()
	for ctx.Err() == nil {
		info, err := l.memory.Stat()
		if err != nil {
			break
		}
		if info.Size() != size {
			size, same = info.Size(), time.Now()
		} else if size > 0 && time.Since(same) >= quiet {
			break
		}
		sleep(ctx, quiet/4)
	}
	if size <= 0 {
		l.to.NoStacks = "its Python has not answered in time"
		return
	}
	text := make([]byte, min(size, mostDump))
	n, _ := l.memory.ReadAt(text, 0) // what was there is read
	l.to.Stacks = Parse(string(text[:n]))
	sources := map[string][]string{}
	for i := range l.to.Stacks {
		if own := l.to.Stacks[i].Own(); own != nil {
			own.Text = sourceLine(sources, own.File, own.Line)
		}
	}
}

// Parse reads what faulthandler writes. The main thread is the first of the stacks, the innermost frame the last of
// each.
func Parse(text string) []evidence.Stack {
	var stacks []evidence.Stack
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		if strings.HasSuffix(l, "(most recent call first):") || strings.HasSuffix(l, " first):") {
			l = strings.TrimPrefix(l, "Current thread ")
			name, _, _ := strings.Cut(strings.TrimPrefix(l, "Thread "), " (most recent")
			stacks = append(stacks, evidence.Stack{Thread: name})
			continue
		}
		rest, is := strings.CutPrefix(l, `  File "`)
		if !is || len(stacks) == 0 {
			continue
		}
		at := strings.LastIndex(rest, `", line `) // a file may be called anything
		if at < 0 {
			continue
		}
		number, name, is := strings.Cut(rest[at+len(`", line `):], " in ")
		if n, err := strconv.Atoi(number); is && err == nil {
			s := &stacks[len(stacks)-1]
			s.Frames = append(s.Frames, evidence.Frame{Func: name, File: rest[:at], Line: n})
		}
	}
	slices.Reverse(stacks) // the interpreter has its newest thread first
	for i := range stacks {
		slices.Reverse(stacks[i].Frames)
	}
	return stacks
}

// sourceLine is a line of a source file, empty where it cannot be read as such.
func sourceLine(sources map[string][]string, file string, number int) string {
	lines, known := sources[file]
	if !known {
		lines = readLines(file)
		sources[file] = lines
	}
	if number < 1 || number > len(lines) {
		return ""
	}
	text := strings.TrimSpace(lines[number-1])
	return text[:min(len(text), mostText)]
}

func readLines(file string) (lines []string) {
	if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() || info.Size() > 4<<20 {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan() && len(lines) < mostLines; {
		lines = append(lines, s.Text())
	}
	return lines
}
