package logtext

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/rs/zerolog"
)

// shown is one line of JSON as text.
func shown(t *testing.T, line string) string {
	t.Helper()
	var out bytes.Buffer
	if n, err := (&Writer{Out: &out}).Write([]byte(line)); err != nil || n != len(line) {
		t.Errorf("Write returned %d, %v for %d bytes", n, err, len(line))
	}
	return out.String()
}

func TestText(t *testing.T) {
	at := time.Date(2026, 7, 1, 17, 32, 59, 0, time.Local).Format(time.RFC3339)
	for _, c := range []struct{ line, want string }{
		{
			`{"level":"warn","nodes":"2 of 3 to 4 are there (node-0, node-2)","dur_ms":550151.29,"time":"` + at +
				`","message":"waiting for nodes"}`,
			"17:32:59 warn  waiting for nodes: 2 of 3 to 4 are there (node-0, node-2), for 9 min 10 s\n",
		},
		{`{"level":"info","message":"hello"}`, "info  hello\n"},
		{`{"level":"error","error":"no such file","path":"/a","message":"cannot write"}`, "error cannot write: no such file, /a\n"},
		{`{"level":"info","nodes":1,"world_size":1,"message":"m"}`, "info  m: 1 node, 1 worker\n"},
		{`{"level":"debug","error":"e","message":"cannot write: why"}`, "debug cannot write: why (e)\n"},
		{`{"level":"warn","given_up":false,"last":true,"stream":"stdout","message":"m"}`, "warn  m: last, stream stdout\n"},
		{`{"level":"warn","reason":"r","hint":"do it","message":"m"}`, "warn  m: r; hint: do it\n"},
		{ // what is to be pasted ends the line
			`{"level":"warn","agent":"node1","or":"b","try":"(a)","message":"debug mode: m"}`,
			"warn  debug mode: m (or b) [node1]; hint: (a)\n",
		},
		{`{"level":"warn","nodes":["a","b"],"message":"m"}`, "warn  m: a, b\n"},
		{`{"level":"warn","xs":[1,2,3,4,5,6,7,8,9,10],"message":"m"}`, "warn  m: xs 1, 2, 3, 4, 5, 6, 7, 8 and 2 more\n"},
		{`{"level":"warn","path":"/spec.yaml","message":"fake (/spec.yaml)"}`, "warn  fake (/spec.yaml)\n"},
		{`{"level":"info","agent":"node1","node":"node1","message":"m"}`, "info  m [node1]\n"},
		{ // who decided is not who is lost
			`{"level":"warn","reason":"node node-1 is lost","decided_by":"node-2","restart_count":0,"message":"m"}`,
			"warn  m: node node-1 is lost, decided by node-2\n",
		},
		{
			`{"level":"error","rank":1,"local_rank":1,"pid":7,"exit_code":3,"message":"worker ended"}`,
			"error worker ended: rank 1, exit status 3\n",
		},
		{
			`{"level":"warn","reason":"rank 1 ended","restart_count":1,"max_restarts":3,"delay_ms":0,"message":"restarting"}`,
			"warn  restarting: rank 1 ended, restart 1 of at most 3\n",
		},
		{`{"level":"warn","restart_count":2,"max_restarts":1,"message":"m"}`, "warn  m: restart 2, of which at most 1 count\n"},
		{`{"level":"warn","restart_count":2,"max_restarts":1000000000,"message":"m"}`, "warn  m: restart 2\n"},
		{
			`{"level":"warn","signal":"SIGTERM","grace_ms":30000,"message":"stopping"}`,
			"warn  stopping: SIGTERM, SIGKILL in 30 s, or at once with a second signal\n",
		},
		{`{"level":"warn","o":{"a":1},"n":null,"message":"m"}`, "warn  m: o map[a:1]\n"},
		{
			"{\"level\":\"warn\",\"a\\u001b[2Jb\":\"c\\u001b[2J\",\"message\":\"m\\n\\u001b[2J\"}",
			"warn  m\\n\\x1b[2J: a\\x1b[2Jb c\\x1b[2J\n",
		},
		{"no JSON\n", "no JSON\n"},
		{`{"other":"program"}` + "\n", `{"other":"program"}` + "\n"},
		{`{"level":"info","half`, `{"level":"info","half`},
	} {
		if got := shown(t, c.line); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q", c.line, got, c.want)
		}
	}
}

func TestTextInColor(t *testing.T) {
	var out bytes.Buffer
	if _, err := (&Writer{Out: &out, Color: true}).Write([]byte(`{"level":"warn","message":"m"}`)); err != nil ||
		out.String() != "\x1b[33mwarn \x1b[0m m\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestLevels: what one format shows the other shows, too.
func TestLevels(t *testing.T) {
	for level := zerolog.DebugLevel; level <= zerolog.ErrorLevel; level++ {
		var text, raw bytes.Buffer
		for _, log := range []zerolog.Logger{zerolog.New(&Writer{Out: &text}).Level(level), zerolog.New(&raw).Level(level)} {
			log.Debug().Msg("debug")
			log.Info().Msg("info")
			log.Warn().Msg("warn")
			log.Error().Msg("error")
		}
		if n := strings.Count(text.String(), "\n"); n != strings.Count(raw.String(), "\n") || n != int(zerolog.ErrorLevel-level)+1 {
			t.Errorf("%v: %q and %q", level, text.String(), raw.String())
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 400 * time.Microsecond: "0.4 ms", 15 * time.Millisecond: "15 ms", 999600 * time.Microsecond: "1 s",
		3240 * time.Millisecond: "3.2 s", 3 * time.Second: "3 s", 9990 * time.Millisecond: "10 s", 42400 * time.Millisecond: "42 s",
		time.Minute:                  "1 min",
		550151290 * time.Microsecond: "9 min 10 s", time.Hour - time.Millisecond: "1 h", 125 * time.Minute: "2 h 5 min",
		50 * time.Hour: "2 d 2 h", -time.Second: "-1 s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// said is a line of a node's log.
func said(node, level, message string, fields ...string) []byte {
	var more string
	for i := 0; i+1 < len(fields); i += 2 {
		more += fmt.Sprintf(`%q:%s,`, fields[i], fields[i+1])
	}
	return fmt.Appendf(nil, `{"level":%q,%q:%q,%s"message":%q}`+"\n", level, NodeKey, node, more, message)
}

// lines are what a merger has shown.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

func (l *lines) want(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := strings.Join(l.all, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	l.all = nil
}

func TestMerger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		m := NewMerger(&Writer{Out: &out}, 3)
		say := func(line []byte) {
			t.Helper()
			if n, err := m.Write(line); n != len(line) || err != nil {
				t.Errorf("Write returned %d, %v", n, err)
			}
		}
		// All nodes: at once, when the last has said it, with what they have in common.
		say(said("node-10", "info", "begins", "group_rank", "2", "dur_ms", "1.5", "size", "3"))
		say(said("node-2", "info", "begins", "group_rank", "1", "dur_ms", "2.5", "size", "3"))
		out.want(t)
		say(said("node-1", "info", "begins", "group_rank", "0", "dur_ms", "0.5", "size", "3"))
		out.want(t, "info  begins: size 3 [node-1, node-2, node-10]")
		// Some of them: when the time is over, in the order in which they were said.
		say(said("a", "warn", "first"))
		say(said("b", "warn", "second"))
		say(said("a", "warn", "second"))
		say(said("c", "warn", "second"))
		out.want(t)
		time.Sleep(mergeWindow + time.Millisecond)
		out.want(t, "warn  first [a]", "warn  second [a, b, c]")
		// An error does not wait, and comes behind what its node has said before.
		say(said("a", "warn", "before"))
		say(said("b", "warn", "other"))
		say(said("a", "error", "lost"))
		out.want(t, "warn  before [a]", "error lost [a]")
		say(said("c", "error", "lost"))
		say(said("b", "error", "lost"))
		time.Sleep(mergeWindow + time.Millisecond)
		out.want(t, "warn  other [b]", "error lost [b, c]")
		// What one node says twice was said twice.
		say(said("a", "info", "again"))
		say(said("a", "info", "again"))
		out.want(t, "info  again [a]")
		m.Flush()
		out.want(t, "info  again [a]")
		// A check that was passed is one event, whoever the partners were.
		say(said("a", "info", "check", "status", `"PASS"`, "reason", `"passed with b"`))
		say(said("b", "info", "check", "status", `"PASS"`, "reason", `"passed with a"`))
		m.Flush()
		out.want(t, "info  check: PASS [a, b]")
		// A node that names itself says the same as others that do.
		say(said("a", "warn", `fake (node "a")`))
		say(said("b", "warn", `fake (node "b")`))
		say([]byte("no JSON\n"))
		m.Flush()
		out.want(t, "no JSON", "warn  fake (node of its name) [a, b]")
	})
}

func TestRepeats(t *testing.T) {
	var out lines
	now := time.Now()
	r := &Repeats{Out: &Writer{Out: &out}, now: func() time.Time { return now }}
	var told []int
	for s := 0; s <= 300; s += 5 {
		at := now
		for node := range 2 {
			if _, err := r.Write(said(fmt.Sprint(node), "warn", "waiting for nodes", "nodes", `"1 of 2"`, "dur_ms",
				fmt.Sprint(1000*s))); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(out.all); n == 2 {
			told = append(told, s)
		} else if n != 0 {
			t.Fatalf("%d lines at once", n)
		}
		out.all, now = nil, at.Add(5*time.Second)
	}
	if got := fmt.Sprint(told); got != "[0 5 15 35 75 135 195 255]" {
		t.Errorf("told after %s s", got)
	}
	for _, news := range [][]byte{
		said("0", "warn", "waiting for nodes", "nodes", `"2 of 3"`), said("0", "warn", "hello"),
		said("0", "warn", "hello"), said("0", "error", "waiting for nodes"),
	} {
		if _, err := r.Write(news); err != nil || len(out.all) != 1 {
			t.Errorf("%s: %q, %v", news, out.all, err)
		}
		out.all = nil
	}
}

func FuzzText(f *testing.F) {
	f.Add(`{"level":"warn","a":["b",{"c":[]}],"dur_ms":"x","time":"y","message":"m"}`)
	f.Fuzz(func(t *testing.T, line string) {
		e, ok := parse([]byte(line))
		if !ok {
			return
		}
		for _, r := range e.text(false) {
			if !unicode.IsPrint(r) {
				t.Errorf("%q in %q", r, e.text(false))
			}
		}
	})
}
