package rankmonitor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"muster/internal/pickle"
	"muster/launch/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded are messages of the real client.
func recorded(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/messages.hex")
	if err != nil {
		t.Fatal(err)
	}
	messages := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, digits, is := strings.Cut(strings.TrimSpace(line), " "); is && name != "#" {
			if messages[name], err = hex.DecodeString(digits); err != nil {
				t.Fatal(err)
			}
		}
	}
	return messages
}

// What the real client has written is what is read.
func TestDecode(t *testing.T) {
	want := map[string]any{
		"authkey": authkeyMsg{}, "init": initMsg{3, new(int64(4))}, "init-plain": initMsg{}, "heartbeat": heartbeatMsg{},
		"section-open":      sectionMsg{"step", sectionOpen, new(int64(7))},
		"section-close":     sectionMsg{"step", sectionClose, new(int64(7))},
		"section-close-all": sectionMsg{action: sectionCloseAll},
		"update": updateMsg{
			&heartbeatLimits{1500 * time.Millisecond, 2500 * time.Millisecond},
			&sectionLimits{map[string]time.Duration{"a": time.Second, "b": 0}, 4 * time.Second},
		},
		"update-heartbeats": updateMsg{heartbeats: &heartbeatLimits{first: 1500 * time.Millisecond}},
	}
	messages := recorded(t)
	if len(messages) != len(want) {
		t.Errorf("%d messages are recorded, want %d", len(messages), len(want))
	}
	for name, data := range messages {
		got, err := decode(data)
		if diff := cmp.Diff(want[name], got, cmp.AllowUnexported(initMsg{}, sectionMsg{}, updateMsg{}, heartbeatLimits{}, sectionLimits{},
			authkeyMsg{}, heartbeatMsg{})); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
	// A member of an enumeration by its name, as Python 3.11.0 writes it.
	byName := []byte("\x80\x02c" + dataModule + "\nSectionMsg\n)\x81}(X\x07\x00\x00\x00sectionX\x01\x00\x00\x00aX\x06\x00\x00\x00action" +
		"cbuiltins\ngetattr\nc" + dataModule + "\nSectionAction\nX\x05\x00\x00\x00CLOSE\x86Rub.")
	if got, err := decode(byName); err != nil || got.(sectionMsg).action != sectionClose {
		t.Errorf("%v %v", got, err)
	}
}

// What is no message is refused, whatever it is; nothing in it is run.
func FuzzDecode(f *testing.F) {
	for _, data := range recorded(f) {
		f.Add(data)
	}
	f.Add([]byte("\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."))
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := decode(data); (m == nil) == (err == nil) && err == nil {
			t.Errorf("%q: neither a message nor an error", data)
		}
	})
}

func rules() *job.RankMonitor {
	return &job.RankMonitor{
		First: 60 * time.Second, Heartbeat: 10 * time.Second, Outside: 20 * time.Second, Warmup: 2, Factor: 5, Signal: syscall.SIGTERM,
		Every: 5 * time.Second, Sections: []job.SectionLimit{{Name: "step", Limit: 30 * time.Second}, {Name: "free"}},
	}
}

// When a worker takes too long, by what it has told.
func TestDue(t *testing.T) {
	began := time.Unix(1000, 0)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	step := func(n int64, a action) sectionMsg { return sectionMsg{stepSection, a, new(n)} }
	for name, c := range map[string]struct {
		rules  func(*job.RankMonitor)
		do     func(*watch)
		want   int // seconds; 0: never
		key    string
		reason string
	}{
		"nothing said":    {want: 60, key: ftFirst, reason: "has sent no first heartbeat"},
		"first heartbeat": {do: func(w *watch) { w.heard = at(3) }, want: 13, key: ftNext, reason: "has sent no heartbeat"},
		"in a section":    {do: does(at(5), step(1, sectionOpen)), want: 35, key: ftSections, reason: `is in section "step"`},
		"without a limit": {rules: unbound, do: does(at(5), sectionMsg{"free", sectionOpen, nil})},
		"before a step":   {rules: unbound},
		"no sections": {
			rules: func(r *job.RankMonitor) { r.First, r.Sections = 0, nil }, want: 20, key: ftOutside,
			reason: "is outside of all sections",
		},
		"outside": {
			do: does(at(2), step(1, sectionOpen), step(1, sectionClose)), want: 22, key: ftOutside, reason: "is outside of all sections",
		},
		"closed all": {
			do: does(at(4), step(1, sectionOpen), sectionMsg{action: sectionCloseAll}), want: 24, key: ftOutside,
			reason: "is outside of all sections",
		},
		"the first steps": {
			rules: warmup, do: does(at(1), step(8, sectionOpen)), want: 41, key: ftSections, reason: `is in section "step"`,
		},
		"after the first": {
			rules: warmup, do: does(at(2), step(8, sectionOpen), step(8, sectionClose), step(10, sectionOpen)), want: 32, key: ftSections,
			reason: `is in section "step"`,
		},
		"forgiven": {
			do: func(w *watch) { w.heard = at(3); w.forgive(at(100)) }, want: 110, key: ftNext, reason: "has sent no heartbeat",
		},
		"warmup, no steps": {rules: warmup, want: 20, key: ftOutside, reason: "is outside of all sections"},
	} {
		r := rules()
		if c.rules != nil {
			c.rules(r)
		}
		l := newLimits(r)
		w := newWatch(initMsg{rank: 7}, &l, began)
		if c.do != nil {
			c.do(w)
		}
		due, o := w.due()
		if c.want == 0 {
			if !due.IsZero() {
				t.Errorf("%s: due after %v: %+v", name, due.Sub(began), o)
			}
		} else if due != at(c.want) || o.Key != c.key || o.What != c.reason || o.Rank != 7 {
			t.Errorf("%s: due after %v: %+v", name, due.Sub(began), o)
		}
	}
	l := newLimits(rules())
	w := newWatch(initMsg{}, &l, began)
	if err := w.section(step(1, sectionClose), began); err == nil {
		t.Error("a section that is not open was closed")
	}
	if err := w.section(step(1, sectionOpen), began); err != nil {
		t.Error(err)
	}
	if err := w.section(step(1, sectionOpen), began); err == nil {
		t.Error("a section was opened twice")
	}
	for i := range 2 * mostOpen {
		_ = w.section(sectionMsg{strconv.Itoa(i), sectionOpen, nil}, began)
	}
	if len(w.open) > mostOpen {
		t.Errorf("%d sections are open", len(w.open))
	}
}

// Keys of NVRx's configuration.
const (
	ftFirst    = "initial_rank_heartbeat_timeout"
	ftNext     = "rank_heartbeat_timeout"
	ftSections = "rank_section_timeouts"
	ftOutside  = "rank_out_of_section_timeout"
)

// does enters and leaves sections, all at once.
func does(at time.Time, messages ...sectionMsg) func(*watch) {
	return func(w *watch) {
		for _, m := range messages {
			_ = w.section(m, at)
		}
	}
}

func unbound(r *job.RankMonitor) { r.First = 0 }

func warmup(r *job.RankMonitor) {
	r.First = 0
	r.Sections = append(r.Sections, job.SectionLimit{Name: warmupSection, Limit: 40 * time.Second})
}

// opened is a server of one worker, and a client of it.
func opened(t *testing.T, r *job.RankMonitor, tell func(Overdue)) (*Server, net.Conn) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120)) // longer than an address may be
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := func(n int) string { return filepath.Join(dir, strconv.Itoa(n)) }
	s, err := Open(path, 1, r, zerolog.New(t.Output()), func(_ context.Context, o Overdue) { tell(o) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	short := filepath.Join(t.TempDir(), "s")
	if err := os.Symlink(dir, short); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", filepath.Join(short, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return s, conn
}

func send(t *testing.T, to io.Writer, data []byte) {
	t.Helper()
	if _, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)); err != nil {
		t.Fatal(err)
	}
}

func answer(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(conn, data); err != nil {
		t.Fatal(err)
	}
	return data
}

// A client is told its limits, and one that is silent for too long is told of, again and again; what one calculates
// outlives it.
func TestServer(t *testing.T) {
	messages := recorded(t)
	r := rules()
	r.First, r.Every = 100*time.Millisecond, 100*time.Millisecond
	told := make(chan Overdue, 100)
	s, conn := opened(t, r, func(o Overdue) {
		select {
		case told <- o:
		default:
		}
	})
	send(t, conn, messages["authkey"])
	if got := answer(t, conn); !bytes.Equal(got, encode(instance{module: dataModule, class: "OkMsg"})) {
		t.Errorf("%q", got)
	}
	send(t, conn, messages["init"])
	if got := answer(t, conn); !bytes.Contains(got, []byte("FaultToleranceConfig")) {
		t.Errorf("%q", got)
	}
	for i := range 2 {
		select {
		case o := <-told:
			if o.Rank != 3 || o.LocalRank != 0 || o.Key != "initial_rank_heartbeat_timeout" || o.Again != (i > 0) {
				t.Errorf("%+v", o)
			}
		case <-time.After(time.Minute):
			t.Fatal("nobody is told of")
		}
	}
	send(t, conn, messages["update"])
	answer(t, conn)
	_ = conn.Close()
	s.ranks[0].mu.Lock()
	defer s.ranks[0].mu.Unlock()
	if l := s.ranks[0].limits; l.first != 1500*time.Millisecond || l.sections["a"] != time.Second {
		t.Errorf("%+v", l)
	}
}

// What is no message ends the connection, and no other one.
func TestServerWrongInput(t *testing.T) {
	messages := recorded(t)
	for name, data := range map[string][]byte{
		"too long": {0xff, 0xff, 0xff, 0xff}, "no pickle": {0, 0, 0, 2, 'h', 'i'},
		"not who": append(binary.BigEndian.AppendUint32(nil, uint32(len(messages["heartbeat"]))), messages["heartbeat"]...),
	} {
		r := rules()
		r.Answers = true
		s, conn := opened(t, r, func(Overdue) { t.Error("a worker is told of") })
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %d %v", name, n, err)
		}
		s.Close()
	}
}

// Python reads what is answered: here as classes of the same names, in TestFTLauncher as NVRx's own.
func TestPythonReads(t *testing.T) {
	l := newLimits(rules())
	cmd := exec.CommandContext(t.Context(), "python3", "-c", `
import pickle, signal, sys, types
for name in ("nvidia_resiliency_ext", "nvidia_resiliency_ext.fault_tolerance"):
    sys.modules[name] = types.ModuleType(name)
data = sys.modules["nvidia_resiliency_ext.fault_tolerance.data"] = types.ModuleType("data")
config = sys.modules["nvidia_resiliency_ext.fault_tolerance.config"] = types.ModuleType("config")
class OkMsg: pass
class FaultToleranceConfig: pass
data.OkMsg, config.FaultToleranceConfig = OkMsg, FaultToleranceConfig
cfg = pickle.loads(sys.stdin.buffer.read()).cfg
assert cfg.rank_termination_signal is signal.SIGTERM
for name in sorted(vars(cfg)): print(name, getattr(cfg, name))
`)
	cmd.Stdin = bytes.NewReader(encode(instance{dataModule, "OkMsg", []pickle.Pair{{Key: "cfg", Value: l.config(rules())}}}))
	out, err := cmd.CombinedOutput()
	want := map[string]string{
		"initial_rank_heartbeat_timeout": "60.0", "rank_heartbeat_timeout": "10.0", "rank_out_of_section_timeout": "20.0",
		"rank_section_timeouts": "{'free': None, 'step': 30.0}", "safety_factor": "5.0", "skip_section_response": "True",
		"install_exception_hook": "False", "num_warmup_iterations": "2", "workload_check_interval": "5.0",
	}
	got := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		got[name] = value
	}
	delete(got, "rank_termination_signal") // an enumeration's name differs by version
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s\n%s", err, diff, out)
	}
}
