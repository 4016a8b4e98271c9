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
	l.to.Stacks = withoutOurs(parse(string(text[:n])))
}

// withoutOurs leaves out the thread of ours that waits to be asked.
func withoutOurs(stacks []evidence.Stack) []evidence.Stack {
	return slices.DeleteFunc(stacks, func(s evidence.Stack) bool {
		return slices.ContainsFunc(s.Frames, func(f evidence.Frame) bool {
			return f.Func == "answer" && strings.HasSuffix(f.File, "/sitecustomize.py")
		})
	})
}

// sources adds lines of the source to the stacks. A file system that hangs ends that.
func (l *look) sources(ctx context.Context) {
	stacks := l.to.Stacks
	texts := make([][2]string, len(stacks))
	if !risky(ctx, func() {
		known := map[string][]string{}
		for i := range stacks {
			own := stacks[i].Own()
			if own == nil {
				continue
			}
			texts[i][0] = sourceLine(known, own.File, own.Line)
			if strings.Contains(texts[i][0], "sleep(") {
				texts[i][1] = loopAround(known[own.File], own.Line)
			}
		}
	}) {
		return // the goroutine may still write to texts
	}
	for i := range stacks {
		if own := stacks[i].Own(); own != nil {
			own.Text, own.Loop = texts[i][0], texts[i][1]
		}
	}
}

// loopAround is the head of the innermost loop in which a line of Python is, empty for none.
func loopAround(lines []string, number int) string {
	const most = 200 // lines above it
	indent := func(text string) int { return len(text) - len(strings.TrimLeft(text, " \t")) }
	at := number - 1
	if at < 0 || at >= len(lines) {
		return ""
	}
	deep := indent(lines[at])
	for i := at - 1; i >= max(0, at-most) && deep > 0; i-- {
		text := strings.TrimSpace(lines[i])
		if text == "" || strings.HasPrefix(text, "#") || indent(lines[i]) >= deep {
			continue
		}
		deep = indent(lines[i])
		switch {
		case strings.HasPrefix(text, "while ") || strings.HasPrefix(text, "for ") || strings.HasPrefix(text, "async for "):
			if text = strings.TrimSuffix(text[:min(len(text), mostText)], ":"); text == "while True" {
				return ""
			}
			return text
		case strings.HasPrefix(text, "def ") || strings.HasPrefix(text, "class ") || strings.HasPrefix(text, "async def "):
			return ""
		}
	}
	return ""
}

// parse reads what faulthandler writes. The main thread is the first of the stacks, the innermost frame the last of
// each.
func parse(text string) []evidence.Stack {
	var stacks []evidence.Stack
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		if strings.HasSuffix(l, "(most recent call first):") || strings.HasSuffix(l, " first):") {
			l = strings.TrimPrefix(l, "Current thread ")
			name, _, _ := strings.Cut(strings.TrimPrefix(l, "Thread "), " (most recent")
			stacks = append(stacks, evidence.Stack{Thread: name})
			continue
		}
		if l == "  Garbage-collecting" && len(stacks) > 0 {
			stacks[len(stacks)-1].Collecting = true
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
