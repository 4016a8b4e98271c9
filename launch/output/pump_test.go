package output

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// written is something a worker writes at a time since the start of the test.
type written struct {
	at   time.Duration
	text string
}

// timeline is a source that plays a worker's writes in the bubble's time. An empty text at the end is the end's time.
type timeline struct {
	start time.Time
	rest  []written
}

func (s *timeline) read(p []byte, d time.Duration) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	due := time.Until(s.start.Add(s.rest[0].at))
	if d >= 0 && d < due {
		time.Sleep(d)
		return 0, errIdle
	}
	time.Sleep(max(0, due))
	n := copy(p, s.rest[0].text)
	if s.rest[0].text = s.rest[0].text[n:]; s.rest[0].text == "" {
		s.rest = s.rest[1:]
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (s *timeline) stop()  {}
func (s *timeline) close() {}

// play shows the workers' writes on one console, behind which there is a terminal, and returns what it showed.
func play(t *testing.T, prefixed bool, workers ...[]written) string {
	t.Helper()
	return playOn(t, true, prefixed, workers...)
}

// playOn is play where live says whether there is a terminal.
func playOn(t *testing.T, live, prefixed bool, workers ...[]written) string {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		c := newConsole("stdout", &out, zerolog.Nop())
		c.live = live
		var all sync.WaitGroup
		start := time.Now()
		for rank, writes := range workers {
			p := &pump{
				src: &timeline{start: start, rest: writes}, out: c, localRank: rank, alone: len(workers) == 1, tail: &tail{},
				prefixed: prefixed, prefix: []byte{'0' + byte(rank), ':'}, calledOff: make(chan struct{}),
			}
			all.Go(p.run)
		}
		all.Wait()
	})
	return out.String()
}

const ms = time.Millisecond

func TestPumpShowsLines(t *testing.T) {
	long := strings.Repeat("x", 3*pumpBytes)
	for _, c := range []struct {
		name          string
		workers       [][]written
		raw, prefixed string
	}{
		{
			"whole lines",
			[][]written{{{0, "a\nb\n"}}},
			"a\nb\n", "0:a\n0:b\n",
		},
		{
			"a last line without newline",
			[][]written{{{0, "a\nb"}}},
			"a\nb", "0:a\n0:b\n",
		},
		{
			"empty lines, and lines of Windows",
			[][]written{{{0, "\n\na\r\n\r\n"}}},
			"\n\na\r\n\r\n", "0:\n0:\n0:a\r\n0:\r\n",
		},
		{
			"nothing at all",
			[][]written{{}},
			"", "",
		},
		{
			"a prompt is shown while it waits, and its line goes on",
			[][]written{{{0, "name? "}, {3 * time.Second, "thanks\nbye\n"}}},
			"name? thanks\nbye\n", "0:name? thanks\n0:bye\n",
		},
		{
			"a line in two blocks is not torn by another worker",
			[][]written{{{0, "first"}, {2 * time.Second, " half\n"}}, {{1 * time.Second, "other\n"}}},
			"other\nfirst half\n", "1:other\n0:first half\n",
		},
		{
			"a worker that hangs in a line shows where, and others go on",
			[][]written{{{0, "load"}, {9 * time.Second, "ed\n"}}, {{6 * time.Second, "other\n"}}},
			"load\nother\ned\n", "0:load\n1:other\n0:ed\n",
		},
		{
			"a line longer than the buffer keeps the others waiting",
			[][]written{{{0, long}, {500 * ms, "end\n"}}, {{100 * ms, "other\n"}}},
			long + "end\nother\n", "0:" + long + "end\n1:other\n",
		},
		{
			"a long line that stalls lets the others in",
			[][]written{{{0, long}, {9 * time.Second, "end\n"}}, {{100 * ms, "other\n"}}},
			long + "\nother\nend\n", "0:" + long + "\n1:other\n0:end\n",
		},
		{
			"a long line that trickles lets the others in",
			[][]written{
				{
					{0, long},
					{900 * ms, "1"},
					{1800 * ms, "2"},
					{2700 * ms, "3"},
					{3600 * ms, "4"},
					{4500 * ms, "5"},
					{5400 * ms, "6"},
					{6300 * ms, "7"},
					{7200 * ms, "8"},
					{8100 * ms, "9"},
					{9 * time.Second, "a"},
					{9900 * ms, "b"},
					{10800 * ms, "c"},
					{11700 * ms, "\n"},
				},
				{{100 * ms, "other\n"}},
			},
			long + "\nother\n123456789abc\n", "0:" + long + "\n1:other\n0:123456789abc\n",
		},
		{
			"a line that was shown and ended by somebody else has no second end behind a prefix",
			[][]written{{{0, "load"}, {9 * time.Second, "\nnext\n"}}, {{6 * time.Second, "other\n"}}},
			"load\nother\n\nnext\n", "0:load\n1:other\n0:next\n",
		},
		{
			"the prompt of a worker that then ends gets its newline behind a prefix",
			[][]written{{{0, "name? "}, {3 * time.Second, ""}}},
			"name? ", "0:name? \n",
		},
		{
			"a progress bar in one write",
			[][]written{{{0, "\r1%\r50%\r100%\ndone\n"}}},
			"\r1%\r50%\r100%\ndone\n", "0:100%\n0:done\n",
		},
		{
			"updates are shown without a newline, and rewritten in place",
			[][]written{{{0, "\r1%"}, {time.Second, "\r50%"}, {2 * time.Second, "\r100%"}, {3 * time.Second, "\n"}}},
			"\r1%\r50%\r100%\n", "0:1%\r0:50%\r0:100%\n",
		},
		{
			"carriage returns behind the updates",
			[][]written{{{0, "1%\r"}, {time.Second, "50%\r"}, {2 * time.Second, "100%\r"}, {3 * time.Second, "\n"}}},
			"1%\r50%\r100%\r\n", "0:1%\r0:50%\r0:100%\n",
		},
		{
			"a bar that runs while another worker writes takes a line for each update shown",
			[][]written{{{0, "\r1%"}, {time.Second, "\r50%"}, {4 * time.Second, "\n"}}, {{500 * ms, "other\n"}}},
			"\r1%\nother\n\r50%\n", "0:1%\n1:other\n0:50%\n",
		},
		{
			"UTF-8 in pieces",
			[][]written{{{0, "\xc3"}, {time.Second, "\xa9\xff\n"}}},
			"\u00e9\xff\n", "0:\u00e9\xff\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.raw, play(t, false, clone(c.workers)...)); diff != "" {
				t.Errorf("without prefix (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.prefixed, play(t, true, clone(c.workers)...)); diff != "" {
				t.Errorf("with prefix (-want +got):\n%s", diff)
			}
		})
	}
}

// clone gives each run writes of its own: timeline uses them up.
func clone(workers [][]written) [][]written {
	all := make([][]written, len(workers))
	for i, w := range workers {
		all[i] = append(all[i], w...)
	}
	return all
}

func TestProgressDoesNotFloodBehindAPrefix(t *testing.T) {
	bar := func(seconds int) []written { // 50 updates a second
		var w []written
		for i := range seconds * 50 {
			w = append(w, written{time.Duration(i) * 20 * ms, "\r" + strings.Repeat("#", i%80)})
		}
		return append(w, written{time.Duration(seconds) * time.Second, "\rend\n"})
	}
	alone := play(t, true, bar(10))
	if n := strings.Count(alone, "0:"); n < 50 || n > 102 {
		t.Errorf("%d of 500 updates in 10 s were shown, want about ten a second", n)
	}
	if !strings.HasSuffix(alone, "0:end\n") {
		t.Errorf("the last state is missing: %q", alone[max(0, len(alone)-40):])
	}
	together := play(t, true, bar(10), bar(10))
	if n := strings.Count(together, "\n"); n < 8 || n > 30 {
		t.Errorf("two bars took %d lines in 10 s, want about one a second each", n)
	}
}

// TestProgressInAFile: where no terminal shows a bar moving, its last state is a line at most every 10 s, and at its
// end.
func TestProgressInAFile(t *testing.T) {
	bar := func(begin, seconds int) []written { // ten updates a second, as tqdm writes them
		var w []written
		for i := range seconds * 10 {
			w = append(w, written{time.Duration(begin)*time.Second + time.Duration(i)*100*ms, fmt.Sprintf("\r%d", i)})
		}
		return append(w, written{time.Duration(begin+seconds)*time.Second - ms, "\rend\n"})
	}
	for _, c := range []struct {
		name    string
		workers [][]written
		want    string
	}{
		{"one bar", [][]written{bar(0, 25)}, "0:99\n0:199\n0:end\n"},
		{"two bars", [][]written{bar(0, 2), bar(0, 2)}, "0:end\n1:end\n"},
		{"a bar that is done when it ends", [][]written{{{0, "1%\r"}, {time.Second, "100%\r"}, {2 * time.Second, "\n"}}}, "0:100%\n"},
		{"the end was shown", [][]written{{{0, "\r1%"}, {time.Second, "\r100%"}, {30 * time.Second, "\nbye\n"}}}, "0:100%\n0:bye\n"},
		{
			"a bar that stands still",
			[][]written{{{0, "\r1%"}, {time.Second, "\r2%"}, {30 * time.Second, "\r3%"}, {31 * time.Second, "\n"}}},
			"0:2%\n0:3%\n",
		},
		{"a bar that is not ended", [][]written{{{0, "\r1%"}, {time.Second, "\r2%"}}}, "0:2%\n"},
		{"one bar after the other", [][]written{append(bar(0, 2), bar(2, 2)...)}, "0:end\n0:end\n"},
		{"a bar behind a text", [][]written{{{0, "load: "}, {time.Second, "\r1%"}, {2 * time.Second, "\r2%\n"}}}, "0:load: \n0:2%\n"},
		{"lines of Windows", [][]written{{{0, "a\r"}, {ms, "\nb\r\n"}}}, "0:a\n0:b\r\n"},
		{"others in between", [][]written{
			{{0, "\r1%"}, {12 * time.Second, "\r2%"}, {13 * time.Second, "\r3%\n"}},
			{{time.Second, "other\n"}},
		}, "1:other\n0:1%\n0:3%\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := playOn(t, false, true, c.workers...)
			if c.name == "two bars" {
				got = sortedLines(got) + "\n"
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestOwnMessagesStandOnTheirOwnLine(t *testing.T) {
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		c := newConsole("stderr", &out, zerolog.Nop())
		p := &pump{
			src: &timeline{start: time.Now(), rest: []written{{0, "wait: "}, {2 * time.Second, "ok\n"}}},
			out: c, alone: true, calledOff: make(chan struct{}),
		}
		var all sync.WaitGroup
		all.Go(p.run)
		time.Sleep(time.Second)
		if n, err := c.Write([]byte("message\n")); n != 8 || err != nil {
			t.Errorf("Write returned %d, %v", n, err)
		}
		all.Wait()
	})
	if diff := cmp.Diff("wait: \nmessage\nok\n", out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOwnMessageGivesUpOnAConsoleThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConsole("stderr", io.Discard, zerolog.Nop())
		c.take(nil)
		for _, want := range []time.Duration{ownMessageWait, promptWait, promptWait} {
			start := time.Now()
			if _, err := c.Write([]byte("lost\n")); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d != want {
				t.Errorf("gave up after %v, want %v", d, want)
			}
		}
		c.release()
		if _, err := c.Write([]byte("shown\n")); err != nil || c.stuck.Load() {
			t.Errorf("a message got through: stuck is %v, %v", c.stuck.Load(), err)
		}
	})
}

// late is a log's writer that is known only after the log.
type late struct{ w io.Writer }

func (l *late) Write(p []byte) (int, error) { return l.w.Write(p) }

// broken is an output that is full at first and then has no reader.
type broken struct{ writes int }

func (b *broken) Write([]byte) (int, error) {
	if b.writes++; b.writes == 1 {
		return 0, unix.ENOSPC
	}
	return 0, unix.EPIPE
}

func TestTheLogMayGoToTheConsoleThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &late{}
		out := &broken{}
		c := newConsole("stderr", out, zerolog.New(to))
		to.w = c
		start := time.Now()
		p := &pump{
			src: &timeline{start: start, rest: []written{{0, "a\n"}, {time.Second, "b\n"}, {2 * time.Second, "c\n"}}},
			out: c, alone: true, calledOff: make(chan struct{}),
		}
		p.run()
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("it took %v, the worker 2 s", d)
		}
		if !c.lost.Load() || out.writes < 2 || out.writes > 3 {
			t.Errorf("lost is %v after %d writes", c.lost.Load(), out.writes)
		}
	})
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		name, data string
		cut        bool
		n          int
		want       []string
	}{
		{"none", "", false, 3, nil},
		{"only newlines", "\n\n", false, 3, nil},
		{"fewer than asked for", "a\nb\n", false, 3, []string{"a", "b"}},
		{"more than asked for", "a\nb\nc\n", false, 2, []string{"b", "c"}},
		{"no final newline", "a\nb", false, 2, []string{"a", "b"}},
		{"empty lines inside", "a\n\nb\n\n\n", false, 9, []string{"a", "", "b"}},
		{"progress and CRLF", "x\r1%\r2%\r\nend\r\n", false, 9, []string{"2%", "end"}},
		{"cut in a line", "alf\nb\n", true, 9, []string{"b"}},
		{"cut in the only line", "alf", true, 9, []string{"alf"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, lastLines([]byte(c.data), c.cut, c.n)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTailIsBounded(t *testing.T) {
	var all bytes.Buffer
	tl := &tail{}
	for i := range 3000 {
		chunk := bytes.Repeat([]byte{'a' + byte(i%26)}, i%(3*tailBytes/100))
		chunk = append(chunk, '\n')
		if i%500 == 499 {
			chunk = append(bytes.Repeat([]byte{'x'}, 2*tailBytes), "\nbehind\n"...)
		}
		tl.add(chunk)
		all.Write(chunk)
		if len(tl.buf) > 2*tailBytes {
			t.Fatalf("%d bytes are kept", len(tl.buf))
		}
		if i%100 != 98 {
			continue
		}
		if got, want := tl.lines(5), lastLines(all.Bytes(), false, 5); cmp.Diff(want, got) != "" {
			t.Fatalf("after %d chunks (-want +got):\n%s", i, cmp.Diff(want, got))
		}
	}
}

func TestTemplate(t *testing.T) {
	// Expectations come from Python 3.11's string.Template(...).safe_substitute(role_name="default", local_rank=11,
	// ...).
	w := Identity{LocalRank: 11, Rank: 107, Role: "default", Host: "n1"}
	for template, want := range map[string]string{
		"":                                     "[default11]:",
		"[${role_name}${local_rank}]:":         "[default11]:",
		"${hostname}:${rank}: ":                "n1:107: ",
		"$rank|$local_rank|$rank_":             "107|11|$rank_",
		"${unknown} ${rank":                    "${unknown} ${rank",
		"$$rank $ $$$rank 5$ ${} ${9} ${rank}": "$rank $ $107 5$ ${} ${9} 107",
		"${RANK}":                              "${RANK}",
		"plain ":                               "plain ",
	} {
		if got := linePrefix(template, w); got != want {
			t.Errorf("template %q gave %q, want %q", template, got, want)
		}
	}
}
