package topology_test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-multierror"
	"go.uber.org/goleak"

	"muster/internal/errhint"
	"muster/rendezvous/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parse(t testing.TB, text string) *topology.Topology {
	t.Helper()
	topo, err := topology.Parse("topo.txt", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func TestParse(t *testing.T) {
	topo := parse(t, "\ufeff# the machine room\r\n"+
		"asw-0 psw-0 192.168.0.1\r\n"+
		"\r\n"+
		"  asw-1\t\tpsw-0   192.168.0.2  # with a comment\n"+
		"\t \n"+
		"asw-1 psw-0 2001:DB8:0:0:0:0:0:1\n"+
		"psw-0 asw-0 ::ffff:192.168.0.3\n"+ // a name means something in its column only
		"asw#2 psw#2 fe80::1\n"+
		"asw-0 psw-0 192.168.0.1\n"+ // again, and the same
		"asw-0 psw-0 127.0.0.1") // without an end
	if topo.Len() != 6 {
		t.Errorf("%d nodes", topo.Len())
	}
	for _, tc := range []struct {
		addrs, want []string
	}{
		{[]string{"192.168.0.1"}, []string{"asw-0", "psw-0"}},
		{[]string{"::ffff:192.168.0.1"}, []string{"asw-0", "psw-0"}},
		{[]string{"192.168.0.2"}, []string{"asw-1", "psw-0"}},
		{[]string{"2001:db8::1"}, []string{"asw-1", "psw-0"}},
		{[]string{"192.168.0.3"}, []string{"psw-0", "asw-0"}},
		{[]string{"::ffff:192.168.0.3"}, []string{"psw-0", "asw-0"}},
		{[]string{"fe80::1%eth0"}, []string{"asw#2", "psw#2"}},
		{[]string{"127.0.0.1"}, []string{"asw-0", "psw-0"}},
		{[]string{"10.0.0.1", "192.168.0.2", "192.168.0.1"}, []string{"asw-1", "psw-0"}},
		{[]string{"10.0.0.1", "::192.168.0.1"}, nil}, // IPv4-compatible is not IPv4-mapped
		{nil, nil},
	} {
		if diff := cmp.Diff(tc.want, topo.Switches(addrs(tc.addrs...)...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.addrs, diff)
		}
	}
	if got := topo.Switches(netip.Addr{}); got != nil {
		t.Errorf("no address is under %v", got)
	}
	deep := parse(t, "a p 10.0.0.1 core west\nb q 10.0.0.2 core west")
	if diff := cmp.Diff([]string{"b", "q", "core", "west"}, deep.Switches(addrs("10.0.0.2")...)); diff != "" {
		t.Errorf("further columns (-want +got):\n%s", diff)
	}
	var nothing *topology.Topology
	for name, topo := range map[string]*topology.Topology{
		"nil": nothing, "empty": parse(t, ""),
		"comments": parse(t, "#\n # a b 10.0.0.1\n"),
	} {
		if topo.Len() != 0 || topo.Switches(addrs("10.0.0.1")...) != nil {
			t.Errorf("%s names nodes", name)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	name := strings.Repeat("n", 253)
	for text, want := range map[string]string{
		"asw-0 psw-0 10.0.0.1\nasw-0": "line 2: it has 1 column, want at least 3",
		"asw-0 psw-0":                 "line 1: it has 2 columns, want at least 3",
		"asw-0 psw-0 # 10.0.0.1":      "line 1: it has 2 columns, want at least 3",
		"\n\n10.0.0.1 asw-0 psw-0":    `line 3: "psw-0" is not an IP address`,
		"asw-0 psw-0 node0":           `line 1: "node0" is not an IP address`,
		"asw-0 psw-0 10.0.0.1/24":     `line 1: "10.0.0.1/24" is not an IP address`,
		"asw-0 psw-0 10.0.0.01":       `line 1: "10.0.0.01" is not an IP address`,
		"asw-0 psw-0 [::1]":           `line 1: "[::1]" is not an IP address`,
		"asw-0 psw-0 10.0.0.1\x00":    `line 1: "10.0.0.1\x00" is not an IP address`,
		"asw-0 psw-0 fe80::1%eth0": `line 1: "fe80::1%eth0" has a zone, ` +
			`which means something else on every node`,
		"asw-0 psw-0 0.0.0.0":                                 `line 1: "0.0.0.0" is not the address of a node`,
		"asw-0 psw-0 ::":                                      `line 1: "::" is not the address of a node`,
		"asw-0 psw-0 ff02::1":                                 `line 1: "ff02::1" is not the address of a node`,
		"a p 10.0.0.1\nb p ::ffff:10.0.0.1":                   `line 2: 10.0.0.1 is under "b" here, and under "a" in line 1`,
		"a p 2001:db8::1\nb p 2001:0db8::0:1":                 `line 2: 2001:db8::1 is under "b" here, and under "a" in line 1`,
		"a p 10.0.0.1\n\na q 10.0.0.2":                        `line 3: switch "a" is under "q" here, and under "p" in line 1`,
		"a p 10.0.0.1 x\nb p 10.0.0.2 y":                      `line 2: switch "p" is under "y" here, and under "x" in line 1`,
		"a p 10.0.0.1\nb p 10.0.0.2 x":                        "line 2: it has 4 columns, line 1 has 3",
		"a p 10.0.0.1 1 2":                                    "",
		"a p 10.0.0.1 1 2 3":                                  "line 1: it has 6 columns, limit 5",
		name + " p 10.0.0.1":                                  "",
		name + "n p 10.0.0.1":                                 "line 1: the name of a switch has 254 bytes, limit 253",
		"a " + name + "n 10.0.0.1":                            "line 1: the name of a switch has 254 bytes, limit 253",
		"a p 10.0.0.1 #" + strings.Repeat("x", 4082):          "",
		"a p 10.0.0.1 #" + strings.Repeat("x", 4083):          "line 1: it is longer than 4096 bytes",
		"a p 10.0.0.1 #" + strings.Repeat("x", 4082) + "\r\n": "",
		"a p " + strings.Repeat("9", 200):                     `line 1: "` + strings.Repeat("9", 100) + `" is not an IP address`,
	} {
		_, err := topology.Parse("topo.txt", strings.NewReader(text))
		if want == "" {
			if err != nil {
				t.Errorf("%.40q: %v", text, err)
			}
			continue
		}
		line, what, _ := strings.Cut(want, ": ")
		want = fmt.Sprintf("cannot use %s of topology file %q: %s", line, "topo.txt", what)
		if err == nil || err.Error() != want {
			t.Errorf("%.40q:\n got %v\nwant %s", text, err, want)
			continue
		}
		if errhint.CodeOf(err) != errhint.Usage || !strings.Contains(errhint.Of(err), "ASW PSW IP") {
			t.Errorf("%.40q: status %d, hint %q", text, errhint.CodeOf(err), errhint.Of(err))
		}
	}
}

// TestAllBadLinesAreTold counts what is told, once as many as fit and once more of them.
func TestAllBadLinesAreTold(t *testing.T) {
	for _, tc := range []struct{ bad, told int }{{2, 2}, {20, 20}, {21, 21}, {1000, 21}} {
		text := strings.Repeat("a p 10.0.0.1\nwrong\n", tc.bad)
		_, err := topology.Parse("topo.txt", strings.NewReader(text))
		many, ok := errors.AsType[*multierror.Error](err)
		if !ok || len(many.Errors) != tc.told {
			t.Fatalf("%d bad lines: %v", tc.bad, err)
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != tc.told || lines[1] != `cannot use line 4 of topology file "topo.txt": it has 1 column, want at least 3` {
			t.Errorf("%d bad lines: %v", tc.bad, err)
		}
		last := many.Errors[tc.told-1].Error()
		if more := strings.HasSuffix(last, "read no further after 20 bad lines"); more != (tc.bad > 20) {
			t.Errorf("%d bad lines end with %s", tc.bad, last)
		}
	}
}

func TestBounds(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.1")
	var b strings.Builder
	const most = 128 << 10
	for range most {
		fmt.Fprintf(&b, "a p %v\n", ip)
		ip = ip.Next()
	}
	again := b.String() + "a p 10.0.0.1\n" // no node more
	if topo := parse(t, again); topo.Len() != most {
		t.Errorf("%d nodes", topo.Len())
	}
	_, err := topology.Parse("topo.txt", strings.NewReader(fmt.Sprintf("%sa p %v\n", again, ip)))
	want := fmt.Sprintf(`cannot use line %d of topology file "topo.txt": it names one node more than the limit of %d`, most+2, most)
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	parse(t, strings.Repeat("\n", 16<<20))
	endless := &endlessBlanks{}
	if _, err := topology.Parse("topo.txt", endless); err == nil ||
		err.Error() != `cannot use topology file "topo.txt": it is longer than 16777216 bytes` || endless.read > 16<<20+1 {
		t.Errorf("%v after %d bytes", err, endless.read)
	}
}

type endlessBlanks struct{ read int }

func (e *endlessBlanks) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '\n'
	}
	e.read += len(b)
	return len(b), nil
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "topo.txt")
	if err := os.WriteFile(file, []byte("a p 10.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if topo, err := topology.Load(file); err != nil || topo.Len() != 1 {
		t.Errorf("%d nodes, %v", topo.Len(), err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := topology.Load(path); errhint.CodeOf(err) != errhint.Usage || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, status %d", err, errhint.CodeOf(err))
		}
	}
	if _, err := topology.Parse("topo.txt", iotest.ErrReader(io.ErrClosedPipe)); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// FuzzParse: whatever the file, it is refused with lines named, or it names nodes that Order can rank.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "\ufeffasw-0 psw-0 192.168.0.0\r\n# comment\nasw-1 psw-0 192.168.0.1 # 1\n", "a p ::1 x y\nb p ::2 x y\na p ::ffff:1.2.3.4 x y",
		"a p 10.0.0.1\na q 10.0.0.2", "a p fe80::1%x", "a p", "\x00\xff \u00a0 1.1.1.1",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		topo, err := topology.Parse("topo.txt", strings.NewReader(string(text)))
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "cannot use ") {
					t.Fatalf("%q", err)
				}
			}
			if errhint.CodeOf(err) != errhint.Usage {
				t.Fatalf("status %d: %v", errhint.CodeOf(err), err)
			}
			return
		}
		var nodes []topology.Node
		for field := range strings.FieldsSeq(string(text)) {
			if a, err := netip.ParseAddr(field); err == nil {
				nodes = append(nodes, topology.Node{Addrs: []netip.Addr{a}, Survivor: len(nodes)%3 == 0, Rank: len(text) - len(nodes)})
			}
		}
		if topo.Len() > len(nodes) {
			t.Fatalf("%d nodes from %d addresses", topo.Len(), len(nodes))
		}
		checkOrder(t, topo, nodes, topo.Order(nodes))
	})
}
