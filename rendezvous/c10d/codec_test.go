package c10d_test

import (
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/pickle"
	"muster/rendezvous/c10d"
)

var update = flag.Bool("update", false, "rewrite golden files")

// show writes a state in one line, times as seconds since epoch.
func show(s *c10d.State, epoch time.Time) string {
	if s == nil {
		return "no state"
	}
	since := func(t time.Time) string { return fmt.Sprintf("%.6g", t.Sub(epoch).Seconds()) }
	var b strings.Builder
	fmt.Fprintf(&b, "round %d", s.Round)
	if s.Complete {
		b.WriteString(" complete")
	}
	if s.Closed {
		b.WriteString(" closed")
	}
	if !s.Deadline.IsZero() {
		b.WriteString(" deadline=" + since(s.Deadline))
	}
	ranks := func(name string, m map[c10d.Node]int) {
		for i, n := range slices.SortedFunc(maps.Keys(m), c10d.Node.Compare) {
			if i == 0 {
				b.WriteString(" " + name)
			}
			fmt.Fprintf(&b, " %s:%d", n, m[n])
		}
	}
	ranks("participants", s.Participants)
	for _, list := range []struct {
		name  string
		nodes c10d.Nodes
	}{{"waiting", s.WaitList}, {"spare", s.RedundancyList}} {
		for i, n := range list.nodes.Sorted() {
			if i == 0 {
				b.WriteString(" " + list.name)
			}
			fmt.Fprintf(&b, " %s", n)
		}
	}
	for i, n := range slices.SortedFunc(maps.Keys(s.LastHeartbeats), c10d.Node.Compare) {
		if i == 0 {
			b.WriteString(" heartbeats")
		}
		fmt.Fprintf(&b, " %s@%s", n, since(s.LastHeartbeats[n]))
	}
	if s.RanksRound >= 0 {
		ranks(fmt.Sprintf("ranks of round %d", s.RanksRound), s.Ranks)
	}
	for _, k := range []struct {
		on   bool
		name string
	}{{s.Naive, "naive"}, {s.FQDN, "fqdn"}, {len(s.Unknown()) > 0, fmt.Sprint("unknown", s.Unknown())}} {
		if k.on {
			b.WriteString(" " + k.name)
		}
	}
	return b.String()
}

// realStates returns what real agents put into their store: the base64 lines of testdata/states, by file.
func realStates(t testing.TB) map[string][]string {
	t.Helper()
	files, err := filepath.Glob("testdata/states/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no states: %v", err)
	}
	states := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, " ") {
				states[file] = append(states[file], strings.TrimSpace(line))
			}
		}
	}
	return states
}

// TestRealStates reads what real agents wrote: the line below each state says what it is. Written and read again, it
// must be the same.
func TestRealStates(t *testing.T) {
	for file, states := range realStates(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "#") {
					got.WriteString(line)
				}
			}
			var epoch time.Time
			for _, text := range states {
				s, err := c10d.Decode([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if s != nil && epoch.IsZero() {
					for _, h := range s.LastHeartbeats {
						epoch = h
					}
				}
				fmt.Fprintf(&got, "%s\n  %s\n", text, show(s, epoch))
				if s == nil {
					continue
				}
				back, err := c10d.Encode(s)
				if err != nil {
					t.Fatal(err)
				}
				again, err := c10d.Decode(back)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(s, again, equalStates); diff != "" {
					t.Errorf("after writing and reading (-want +got):\n%s", diff)
				}
				// Upstream's own pickle is the measure for the size: every node moves four times with each write.
				if len(back) > len(text)+len(text)/4 {
					t.Errorf("we write %d bytes for %d of upstream", len(back), len(text))
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(text), got.String()); diff != "" {
				t.Errorf("states differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPickleBytes pins the bytes of a small state. Python's pickletools shows them as written in c10d.md §2.3, with a
// memo.
func TestPickleBytes(t *testing.T) {
	s := c10d.NewState()
	s.Participants[c10d.Node{Addr: "a", PID: 300}] = 0
	s.LastHeartbeats[c10d.Node{Addr: "a", PID: 300}] = someTime
	got, err := c10d.MarshalPickle(s)
	if err != nil {
		t.Fatal(err)
	}
	const module = "torch.distributed.elastic.rendezvous.dynamic_rendezvous\n"
	want := "\x80\x04c" + module + "_RendezvousState\n\x94)\x81}(" +
		"\x8c\x05roundK\x00\x8c\x08complete\x89\x8c\x08deadlineN\x8c\x06closed\x89" +
		"\x8c\x0cparticipants}(c" + module +
		"_NodeDesc\n\x94)\x81}(\x8c\x04addr\x94\x8c\x01a\x8c\x03pid\x94M\x2c\x01\x8c\x08local_id\x94K\x00ub\x94K\x00u" +
		"\x8c\x09wait_list\x8f(\x90\x8c\x0fredundancy_list\x8f(\x90" +
		"\x8c\x0flast_heartbeats}(h\x05cdatetime\ndatetime\n\x94C\x0a\x07\xea\x0b\x15\x01\x33\x22\x00\x73\x9b" +
		"cdatetime\ntimezone\n\x94cdatetime\ntimedelta\n\x94K\x00K\x00K\x00\x87R\x85R\x94\x86Ruub."
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("pickle (-want +got):\n%s", diff)
	}
}

// TestEncodeRefuses checks the limits of what Python holds.
func TestEncodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*c10d.State){
		"year is 10000":  func(s *c10d.State) { s.Deadline = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"year is 0":      func(s *c10d.State) { s.Deadline = time.Date(0, 12, 31, 23, 59, 59, 0, time.UTC) },
		"it is not UTF-": func(s *c10d.State) { s.WaitList[c10d.Node{Addr: "\xff"}] = struct{}{} },
	} {
		s := c10d.NewState()
		change(s)
		if text, err := c10d.Encode(s); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Encode = %q, %v; want an error with %q", text, err, name)
		}
	}
	for _, year := range []int{1, 9999} {
		s := c10d.NewState()
		s.Deadline = time.Date(year, 12, 31, 23, 59, 59, 999999000, time.UTC)
		text, err := c10d.Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c10d.Decode(text); err != nil || !got.Deadline.Equal(s.Deadline) {
			t.Errorf("year %d comes back as %+v, %v", year, got, err)
		}
	}
}

// stateWith returns a pickle of a state that ends with an unknown attribute, given as opcodes.
func stateWith(value string) string {
	p, err := c10d.MarshalPickle(c10d.NewState())
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(string(p), "ub.") + "\x8c\x01x" + value + "ub."
}

// TestRefused feeds pickles that no agent writes. Each error names the opcode and its place, or the attribute.
func TestRefused(t *testing.T) {
	const module = "torch.distributed.elastic.rendezvous.dynamic_rendezvous\n"
	for _, c := range []struct{ name, pickle, want string }{
		{"empty", "", "ends at offset 0 without STOP"},
		{"no protocol", "N.", "NONE (0x4e) at offset 0: PROTO must be first"},
		{"protocol 1", "\x80\x01N.", "PROTO (0x80) at offset 0: protocol is 1, limits are 2 and 5"},
		{"protocol 6", "\x80\x06N.", "PROTO (0x80) at offset 0: protocol is 6, limits are 2 and 5"},
		{"protocol twice", "\x80\x04\x80\x04N.", "PROTO (0x80) at offset 2"},
		{"a call", "\x80\x04cos\nsystem\n\x8c\x02id\x85R.", `GLOBAL (0x63) at offset 2: global "os.system" is not allowed`},
		{
			"a call by name", "\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
			`STACK_GLOBAL (0x93) at offset 17: global "posix.system" is not allowed`,
		},
		{
			"eval", "\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.",
			`GLOBAL (0x63) at offset 2: global "__builtin__.eval" is not allowed`,
		},
		{"an attribute of a class", "\x80\x04cdatetime\ndatetime.now\n)R.", `global "datetime.datetime.now" is not allowed`},
		{"a name over two lines", "\x80\x04cdatetime datetime\n\n)R.", `is not allowed`},
		{"an instance by call", "\x80\x04c" + module + "_NodeDesc\n)R.", "REDUCE (0x52) at offset 70: cannot call this with a tuple of 0"},
		{"the protocol 0 call", "\x80\x04(cos\nsystem\no.", `global "os.system" is not allowed`},
		{"INST", "\x80\x04(ios\nsystem\n.", "INST (0x69) at offset 3: is not allowed"},
		{"extension registry", "\x80\x04\x82\x01.", "EXT1 (0x82) at offset 2: is not allowed"},
		{"persistent id", "\x80\x04\x8c\x01aQ.", "BINPERSID (0x51) at offset 5: is not allowed"},
		{"out of band buffer", "\x80\x05\x97.", "NEXT_BUFFER (0x97) at offset 2: is not allowed"},
		{"no opcode", "\x80\x04\xff.", "opcode (0xff) at offset 2: is not allowed"},
		{"trailing bytes", "\x80\x04N.N", "STOP (0x2e) at offset 3: 1 bytes follow"},
		{"two values", "\x80\x04NN.", "STOP (0x2e) at offset 4: 2 values and 0 marks are left"},
		{"open mark", "\x80\x04N(.", "1 values and 1 marks are left"},
		{"no value", "\x80\x04.", "0 values and 0 marks"},
		{"below the mark", "\x80\x04N(\x94.", "MEMOIZE (0x94) at offset 4: the stack is empty"},
		{"pop below the mark", "\x80\x04K\x01(\x85.", "TUPLE1 (0x85) at offset 5: the stack holds 0 values, want 1"},
		{"no mark", "\x80\x04}u.", "SETITEMS (0x75) at offset 3: there is no mark"},
		{"odd items", "\x80\x04}(Nu.", "SETITEMS (0x75) at offset 5: 1 items, want pairs"},
		{"filling a number", "\x80\x04K\x01(Ne.", "APPENDS (0x65) at offset 6: cannot fill an int"},
		{"memo without", "\x80\x04h\x07.", "BINGET (0x68) at offset 2: the memo holds nothing under 7"},
		{"text too long", "\x80\x04X\xff\xff\xff\xff.", "BINUNICODE (0x58) at offset 2: argument of 4294967295 bytes, 1 are left"},
		{
			"text of 2^64", "\x80\x04\x8d" + strings.Repeat("\xff", 8) + ".",
			"BINUNICODE8 (0x8d) at offset 2: argument of 18446744073709551615 bytes",
		},
		{"frame too long", "\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00N", "FRAME (0x95) at offset 2: frame of 2 bytes, 1 are left"},
		{"cut number", "\x80\x04J\x00", "BININT (0x4a) at offset 2: argument of 4 bytes, 1 are left"},
		{"large int", "\x80\x04\x8a\x09" + strings.Repeat("\x01", 9) + ".", "LONG1 (0x8a) at offset 2: int of 9 bytes, limit is 8"},
		{"not UTF-8", "\x80\x04\x8c\x01\xff.", "SHORT_BINUNICODE (0x8c) at offset 2: text is not UTF-8"},
		{
			"no date", "\x80\x04cdatetime\ndatetime\nC\x0a\x07\xea\x02\x1e\x00\x00\x00\x00\x00\x00\x85R.",
			"REDUCE (0x52) at offset 34: datetime 07 ea 02 1e",
		},
		{"short date", "\x80\x04cdatetime\ndatetime\nC\x01\x07\x85R.", "datetime holds bytes, want ten bytes"},
		{
			"a zone of days", "\x80\x04cdatetime\ntimezone\ncdatetime\ntimedelta\nK\x01K\x00K\x00\x87R\x85R.",
			"time zone is 24h0m0s from UTC",
		},
		{"built twice", "\x80\x04c" + module + "_NodeDesc\n)\x81}b}b.", "BUILD (0x62) at offset 74: a _NodeDesc is built twice"},
		{"not a state", "\x80\x04}.", "cannot read rendezvous state: it is a dict"},
		{"empty state", "\x80\x04c" + module + "_RendezvousState\n)\x81}b.", `attribute "round" is missing`},
		{"a list in itself", stateWith("]\x94h\x00a"), `attribute "x": holds a class`},
		{"nested", stateWith(strings.Repeat("]", 18) + strings.Repeat("a", 17)), `attribute "x": is nested deeper than 16`},
		{"a laugh", stateWith(bomb(9)), `attribute "x": unfolds to more than the pickle's own size`},
		{"a long text over and over", stateWith("(X\x00\x01\x00\x00" + strings.Repeat("a", 256) + "\x94" + strings.Repeat("h\x01", 300) +
			"t"), `unfolds to more than`},
		{"twice", stateWith("N\x8c\x01xN"), `attribute "x": stands twice`},
		{"named by a number", stateWith("NK\x01N"), "attribute is named by an int"},
		{"a class kept", stateWith("h\x00"), `attribute "x": holds a class`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := c10d.UnmarshalPickle([]byte(c.pickle))
			if err == nil {
				t.Fatalf("read as %+v", s)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %q, want it to say %q", err, c.want)
			}
			if perr, ok := errors.AsType[*pickle.Error](err); ok && perr.Op != c.pickle[perr.Offset] {
				t.Errorf("error names opcode %#x at %d, there is %#x", perr.Op, perr.Offset, c.pickle[perr.Offset])
			}
		})
	}
}

// bomb returns opcodes of a list of lists of lists, ten of each: a few bytes a level, ten times the size.
func bomb(levels int) string {
	out := "]\x94"
	for i := range levels {
		out += "0](" + strings.Repeat(fmt.Sprintf("h%c", 1+i), 10) + "e\x94"
	}
	return out
}

// TestDecodeRefuses checks the layer of base64.
func TestDecodeRefuses(t *testing.T) {
	if s, err := c10d.Decode([]byte(c10d.NoState)); s != nil || err != nil {
		t.Errorf("Decode(NoState) = %v, %v; want neither", s, err)
	}
	for _, text := range []string{"", "!", "gASV\n", "gA", "gB=="} {
		if s, err := c10d.Decode([]byte(text)); err == nil {
			t.Errorf("Decode(%q) = %+v, want an error", text, s)
		}
	}
	over := base64.StdEncoding.EncodeToString(make([]byte, c10d.MaxPickle+3))
	if _, err := c10d.Decode([]byte(over)); err == nil || !strings.Contains(err.Error(), "limit is") {
		t.Errorf("Decode of a pickle over the limit: %v", err)
	}
	at := base64.StdEncoding.EncodeToString(make([]byte, c10d.MaxPickle))
	if _, err := c10d.Decode([]byte(at)); err == nil || strings.Contains(err.Error(), "limit is") {
		t.Errorf("Decode of a pickle at the limit: %v", err)
	}
}

// TestUnpickleIsBounded measures what pickles made for it cost: memory in proportion to their size, also where they
// name the same large value with every byte.
func TestUnpickleIsBounded(t *testing.T) {
	const size = 1 << 16
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	node := "c" + "torch.distributed.elastic.rendezvous.dynamic_rendezvous\n_NodeDesc\n\x94"
	for name, p := range map[string]string{
		"dicts":        fill("}"),
		"marks":        fill("("),
		"memo":         "N" + fill("\x94"),
		"put":          "N" + fill("r\xff\xff\xff\xff"),
		"long texts":   "X\x00\x40\x00\x00" + strings.Repeat("a", 1<<14) + "\x94" + fill("h\x00"),
		"sets of list": "cbuiltins\nset\n\x94](" + strings.Repeat("N", 1<<14) + "e\x94" + fill("h\x00h\x01\x85R"),
		"nodes":        "}(" + strings.Repeat("NN", 1<<13) + "u\x94" + node + fill("h\x01)\x81h\x00b"),
		"encode": "c_codecs\nencode\n\x94X\x00\x40\x00\x00" + strings.Repeat("a", 1<<14) + "\x94\x8c\x06latin1\x94" +
			fill("h\x00h\x01h\x02\x86R"),
		"dates": fill("cdatetime\ndatetime\nC\x0a\x07\xea\x02\x01\x00\x00\x00\x00\x00\x00\x85R"),
	} {
		p := []byte("\x80\x04" + p)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := c10d.Unpickle(p)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: no error, want one for the missing STOP at least", name)
		}
		// A container is up to 64 bytes and its place on the stack 16; growing the stack or the memo's table copies
		// them a few times.
		if took := after.TotalAlloc - before.TotalAlloc; took > 256*uint64(len(p)) {
			t.Errorf("%s: %d bytes of pickle took %d of memory", name, len(p), took)
		}
	}
}
