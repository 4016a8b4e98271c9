package hosts_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-multierror"

	"muster/internal/hosts"
)

// shown writes hosts in a line: user@name:slots, then port and devices where there are some.
func shown(list []hosts.Host) string {
	words := make([]string, len(list))
	for i, h := range list {
		text := h.Name
		if strings.ContainsRune(text, ':') {
			text = "[" + text + "]"
		}
		if h.User != "" {
			text = h.User + "@" + text
		}
		if h.Slots > 0 {
			text += fmt.Sprintf(":%d", h.Slots)
		}
		if h.Port > 0 {
			text += fmt.Sprintf("/port=%d", h.Port)
		}
		if h.Devices != nil {
			text += fmt.Sprint(h.Devices)
		}
		words[i] = text
	}
	return strings.Join(words, " ")
}

// problems are the texts of all that is wrong.
func problems(err error) string {
	all, ok := errors.AsType[*multierror.Error](err)
	if !ok {
		return err.Error()
	}
	var lines []string
	for _, one := range all.Errors {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

func TestParseList(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"node1", "node1"},
		{"node1:8,node2:8", "node1:8 node2:8"},
		{" node1:8 , node2 ,", "node1:8 node2"},
		{"user@node1:8,DOM\\u@10.0.0.1,a@b@c", `user@node1:8 DOM\u@10.0.0.1 a@b@c`},
		{
			"[2001:db8::1]:8,2001:db8::2,[::1],root@[fe80::1%eth0]:2,fe80::2%eth0",
			"[2001:db8::1]:8 [2001:db8::2] [::1] root@[fe80::1%eth0]:2 [fe80::2%eth0]",
		},
		{"2001:db8::1:8", "[2001:db8::1:8]"}, // without brackets all of it is the address
		{"node[01-03,7]:8,login", "node01:8 node02:8 node03:8 node7:8 login"},
		{"u@n[1-2]:4,[3-4]", "u@n1:4 u@n2:4 3 4"},
		{"node-1.x_y.example:4096", "node-1.x_y.example:4096"},
	} {
		got, err := hosts.ParseList(c.text)
		if err != nil || shown(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.text, shown(got), err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"", "it names no host"},
		{" ", "it names no host"},
		{"a,,b", "item 2: a host between two commas has no name"},
		{
			"a:x,b:0,c:-1",
			"item 1: \"x\" is no number of slots\nitem 2: a host with 0 slots takes no worker: leave it out\n" +
				"item 3: \"-1\" is no number of slots",
		},
		{"a:22222", "item 1: 22222 slots exceed the limit of 4096"},
		{"a:9999999999", `item 1: "9999999999" is no number of slots`},
		{"a:4,b,A:4", "item 3: the host A was there before, at item 1"},
		{"n[1-3],n2", "item 2: the host n2 was there before, at item 1"},
		{"-oProxyCommand=x", `item 1: "-oProxyCommand=x" is no name of a host`},
		{"-v", `item 1: "-v" is no name of a host`},
		{"-v@node", `item 1: "-v" is no user's name in front of @`},
		{"@node", `item 1: "" is no user's name in front of @`},
		{"user@", "item 1: a host between two commas has no name"},
		{"a b", `item 1: "a b" is no name of a host`},
		{"a;b", `item 1: "a;b" is no name of a host`},
		{"[2001:db8::g]:8", `item 1: "2001:db8::g" is no IPv6 address`},
		{"2001:db8::g", `item 1: "g" is no number of slots`},
		{"a:b:8", `item 1: "a:b:8" is neither a host nor an IPv6 address: write HOST:SLOTS, or [ADDRESS]:SLOTS`},
		{"fe80::1%a b", `item 1: "fe80::1%a b" is no IPv6 address`},
		{"n[1-2", "a bracket is not closed"},
		{"n[0-65535],m", "item 2: there are more than 65536 hosts"},
		{"n[0-9999999]", "item 1: there are more than 65536 hosts"},
		{strings.Repeat("a,", 64<<10) + "a", "a list of 131073 bytes exceeds the limit of 131072"},
	} {
		got, err := hosts.ParseList(c.text)
		if err == nil {
			t.Errorf("%.40q: %s", c.text, shown(got))
		} else if p := problems(err); p != c.want {
			t.Errorf("%.40q:\n%s\nwant\n%s", c.text, p, c.want)
		}
	}
}

func TestParseMPIList(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"h1:2,h2", "h1:2 h2:1"},
		{"h1,h1,h2:3,h1:4", "h1:6 h2:3"},
		{"aa,aa,bb", "aa:2 bb:1"},
	} {
		got, err := hosts.ParseMPIList(c.text)
		if err != nil || shown(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.text, shown(got), err, c.want)
		}
	}
	for _, text := range []string{"h:4000,h:4000", "h:*", "u@h,v@h", "+n0"} {
		if got, err := hosts.ParseMPIList(text); err == nil {
			t.Errorf("%s: %s", text, shown(got))
		}
	}
}

type form func(string, []byte) (hosts.File, error)

var forms = map[string]form{
	"any": hosts.Any, "mpi": hosts.MPI, "horovod": hosts.Horovod, "deepspeed": hosts.DeepSpeed, "colossal": hosts.Colossal,
}

// The forms differ in what they take: each file is shown to all of them.
func TestHostfiles(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          map[string]string // by form; what is missing is refused, with the text behind "!" where there is one
	}{
		{
			"plain names", "node1\nnode2\n",
			map[string]string{
				"any": "node1 node2", "mpi": "node1:1 node2:1", "horovod": "node1 node2", "colossal": "node1 node2",
				"deepspeed": `!f:1: "node1" is not of the form HOST slots=N`,
			},
		},
		{
			"slots", "worker-0 slots=4\nworker-1 slots=2",
			map[string]string{
				"any": "worker-0:4 worker-1:2", "mpi": "worker-0:4 worker-1:2", "horovod": "worker-0:4 worker-1:2",
				"deepspeed": "worker-0:4 worker-1:2", "colossal": `!f:1: the host "worker-0" has more behind it`,
			},
		},
		{
			"comments, blank lines, CRLF and a BOM",
			"\xef\xbb\xbf# the nodes\r\n\r\n  node1 slots=4  # first\r\n\t#x\r\nnode2\tslots=4\r\n \r\n",
			map[string]string{
				"any": "node1:4 node2:4", "mpi": "node1:4 node2:4", "horovod": "node1:4 node2:4",
				"deepspeed": "node1:4 node2:4",
			},
		},
		{
			"comments between names", "# launcher\nnode1 # x\n\nnode2\r\nnode3",
			map[string]string{
				"any": "node1 node2 node3", "mpi": "node1:1 node2:1 node3:1", "horovod": "node1 node2 node3",
				"colossal": "node1 node2 node3",
			},
		},
		{
			"colons", "node1:4\n10.0.0.2:2\n",
			map[string]string{
				"any": "node1:4 10.0.0.2:2", "mpi": "node1:4 10.0.0.2:2", "horovod": "node1:4 10.0.0.2:2",
				"colossal": `!f:1: "node1:4" is no IPv6 address`,
			},
		},
		{
			"IPv6", "[2001:db8::1]:4\n2001:db8::2 slots=2\n",
			map[string]string{
				"any": "[2001:db8::1]:4 [2001:db8::2]:2", "mpi": "[2001:db8::1]:4 [2001:db8::2]:2",
				"horovod": "[2001:db8::1]:4 [2001:db8::2]:2",
			},
		},
		{"bare IPv6", "2001:db8::1\n[::1]\n", map[string]string{
			"any": "[2001:db8::1] [::1]", "mpi": "[2001:db8::1]:1 [::1]:1",
			"horovod": "[2001:db8::1] [::1]", "colossal": "[2001:db8::1] [::1]",
		}},
		{
			"users and ports", "alice@node1 slots=2 port=2222\nnode1 port=2223 user=bob slots=1\n",
			map[string]string{
				"any": "alice@node1:2/port=2222 bob@node1:1/port=2223",
				"mpi": "alice@node1:2/port=2222 bob@node1:1/port=2223", "horovod": `!f:1: the setting "port" is unknown`,
				"deepspeed": "!f:2: \"node1 port=2223",
			},
		},
		{
			"a repeated host", "node1 slots=2\nnode2 slots=1\nnode1 slots=3\n",
			map[string]string{
				"mpi": "node1:5 node2:1", "any": "!f:3: the host node1 was there before, at f:1",
				"horovod":   "!f:3: the host node1 was there before, at f:1",
				"deepspeed": "!f:3: the host node1 was there before, at f:1",
			},
		},
		{"a repeated name", "node1\nnode1\n", map[string]string{
			"mpi": "node1:2", "any": "!f:2: the host node1 was", "horovod": "!f:2:",
			"colossal": "!f:2: the host node1 was there before, at f:1",
		}},
		{
			"bounds of Open MPI", "node1 slots=2 max_slots=4\nnode2 slots = 1 max-slots = 2\n",
			map[string]string{
				"any": "node1:2 node2:1", "mpi": "node1:2 node2:1", "horovod": "node1:2 node2:1",
				"deepspeed": `!f:2: "node2 slots = 1 max-slots = 2" is not`,
			},
		},
		{
			"Open MPI's words", "node1 cpu=2\nnode2 count=3",
			map[string]string{"mpi": "node1:2 node2:3", "any": `!f:1: the setting "cpu" is unknown`},
		},
		{"a host that is left out", "^node1\n", map[string]string{"mpi": `!f:1: "^node1" leaves hosts out`}},
		{"a hostlist", "node[01-03] slots=8\n", map[string]string{
			"any": "node01:8 node02:8 node03:8",
			"mpi": `!f:1: "node[01-03]" stands for 3 hosts`, "horovod": "!f:1:", "deepspeed": `!f:1: "node[01-03]" is no name`,
		}},
		{"a number alone", "node1 8\n", map[string]string{"any": `!f:1: "8" stands behind the host: write slots=…`}},
		{"a comma", "node1,node2\n", map[string]string{
			"any": `!f:1: "node1,node2" has a comma`, "mpi": `!f:1: "node1,node2" has a comma`,
			"colossal": `!f:1: "node1,node2" is no name of a host`,
		}},
		{
			"slots twice", "node1:8 slots=8\n",
			map[string]string{
				"any": "!f:1: the slots are there twice", "mpi": "!f:1: the slots are there twice",
				"horovod": "!f:1: the slots are there twice", "deepspeed": `!f:1: "node1:8" is no IPv6 address`,
			},
		},
		{"a setting twice", "node1 slots=8 slots=8\n", map[string]string{"any": "!f:1: slots is there twice", "deepspeed": "node1:8"}},
		{
			"no slots", "node1 slots=0\n",
			map[string]string{"any": "!f:1: a host with 0 slots takes no worker", "deepspeed": "!f:1: a host with 0 slots"},
		},
		{
			"a colon of DeepSpeed", "a:4\n",
			map[string]string{"any": "a:4", "mpi": "a:4", "horovod": "a:4", "deepspeed": `!f:1: "a:4" is not of the form`},
		},
		{
			"a trailing word", "node1 slots=4 max_slots=8 x\n",
			map[string]string{"deepspeed": "node1:4", "any": `!f:1: "x" stands behind the host`},
		},
		{
			"line 7", "a\nb\nc\nd\ne\nf\n-g\nh\n",
			map[string]string{"any": `!f:7: "-g" is no name of a host`, "mpi": "!f:7:", "horovod": "!f:7:", "colossal": "!f:7:"},
		},
		{"nothing", "", map[string]string{
			"any": "!f names no host", "mpi": "!f names no host", "horovod": "!f names no host",
			"deepspeed": "!f names no host", "colossal": "!f names no host",
		}},
		{"only comments", "# a\n\n", map[string]string{"any": "!f names no host", "deepspeed": "!f names no host"}},
		{"a control character", "node1\x00\n", map[string]string{"any": "!f:1: it is no text"}},
		{"no UTF-8", "node\xff\n", map[string]string{"any": "!f:1: it is no text"}},
		{
			"a long line", "node1\n" + strings.Repeat("x", 5000),
			map[string]string{"any": "!f:2: a line of 5000 bytes exceeds the limit of 4096"},
		},
		{"a large file", strings.Repeat("#", hosts.MaxFile+1), map[string]string{"any": "!cannot read f: 8388609 bytes exceed the limit"}},
	} {
		for name, read := range forms {
			want, accepted := c.want[name]
			refusal, refused := strings.CutPrefix(want, "!")
			got, err := read("f", []byte(c.content))
			switch {
			case accepted && !refused:
				if err != nil || shown(got.Hosts) != want {
					t.Errorf("%s as %s: %s, %v; want %s", c.name, name, shown(got.Hosts), err, want)
				}
			case err == nil:
				t.Errorf("%s as %s: %s; want an error", c.name, name, shown(got.Hosts))
			case !strings.Contains(problems(err), refusal):
				t.Errorf("%s as %s: %s; want %s", c.name, name, problems(err), refusal)
			}
		}
	}
	got, err := hosts.MPI("f", []byte("a slots=2 max_slots=4\nb slots=1 max-slots=2\n"))
	want := []string{
		"f:1: max_slots has no effect: muster starts no more workers than there are slots",
		"f:2: max_slots has no effect: muster starts no more workers than there are slots",
	}
	if diff := cmp.Diff(want, got.Warnings); err != nil || diff != "" {
		t.Errorf("%v, warnings (-want +got):\n%s", err, diff)
	}
}

// What is wrong with a file is told at once, up to a bound.
func TestHostfileProblems(t *testing.T) {
	_, err := hosts.Any("f", []byte("a\n-b\nc d\ne:0\n"))
	if err == nil ||
		problems(err) != "f:2: \"-b\" is no name of a host\nf:3: \"d\" stands behind the host: write slots=…, port=…, user=…\n"+
			"f:4: a host with 0 slots takes no worker: leave it out" {
		t.Error(err)
	}
	_, err = hosts.Any("f", []byte(strings.Repeat("a b c\n", 1000)))
	if n := strings.Count(problems(err), "\n") + 1; n != 20 {
		t.Errorf("%d problems", n)
	}
	var b strings.Builder
	for i := range hosts.MaxHosts + 10 {
		fmt.Fprintf(&b, "n%d\n", i)
	}
	_, err = hosts.Any("f", []byte(b.String()))
	if err == nil || problems(err) != "f:65537: there are more than 65536 hosts" {
		t.Error(err)
	}
}

func mustList(t *testing.T, text string) []hosts.Host {
	t.Helper()
	list, err := hosts.ParseList(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The vectors are those of DeepSpeed's documentation, and what it refuses there; its own parser reads some of them
// otherwise.
func TestFilters(t *testing.T) {
	const two, four = "worker-0:4,worker-1:4", "worker-0:4,worker-1:4,worker-2:4,worker-3:4"
	for _, c := range []struct{ list, include, exclude, want string }{
		{two, "worker-0@worker-1:0,2", "", "worker-0:4 worker-1:2[0 2]"},
		{two, "worker-0", "", "worker-0:4"},
		{four, "worker-2:0,1", "", "worker-2:2[0 1]"},
		{two, "worker-1:0,7", "", "!the host worker-1 has no slot 7: it has 4, from 0"},
		{two, "", "worker-1:0", "worker-0:4 worker-1:3[1 2 3]"},
		{four, "", "worker-2:0@worker-3:0,1", "worker-0:4 worker-1:4 worker-2:3[1 2 3] worker-3:2[2 3]"},
		{four, "", "worker-1", "worker-0:4 worker-2:4 worker-3:4"},
		{"localhost:4", "localhost:0,1", "", "localhost:2[0 1]"},

		{four, "worker-3@worker-1", "", "worker-1:4 worker-3:4"}, // the order is the hostfile's
		{two, "worker-1:2@worker-1:0,2", "", "worker-1:2[0 2]"},
		{two, "worker-1:2@worker-1", "", "worker-1:4"},
		{two, "WORKER-1", "", "worker-1:4"},
		{two, "worker-0 @ worker-1: 0 , 1", "", "worker-0:4 worker-1:2[0 1]"},
		{"a,b", "b:0,3", "", "b:2[0 3]"}, // nothing says how many slots b has
		{"a,b", "", "b", "a"},
		{"u@a:2,b:2", "a", "", "u@a:2"},
		{"[2001:db8::1]:4,[2001:db8::1:2]:4", "2001:db8::1@[2001:db8::1:2]:0", "", "[2001:db8::1]:4 [2001:db8::1:2]:1[0]"},
		{two, "", "worker-1:0,1,2,3", "worker-0:4"},
		{two, "", "worker-0@worker-1", "!no host is left"},
		{two, "worker-2", "", `!there is no host "worker-2": there are worker-0, worker-1`},
		{two, "", "worker-2", `!there is no host "worker-2"`},
		{two, "", "worker-1:4", "!the host worker-1 has no slot 4"},
		{two, "worker-0,worker-1", "", `!there is no host "worker-0,worker-1"`},
		{two, "worker-0:", "", `!"" is no number of a slot`},
		{two, "worker-0:0-2", "", `!"0-2" is no number of a slot: write worker-0:0,2`},
		{two, "worker-0@", "", "!a host has no name"},
		{two, "worker-0@@worker-1", "", "!a host has no name"},
		{"a,b", "", "b:0", "!nothing says how many slots the host b has"},
		{"n[1-12]", "m", "", `!there is no host "m": there are n1, n2, n3, n4, n5, n6, n7, n8, and 4 more`},
	} {
		filter, text := hosts.Include, c.include
		if c.exclude != "" {
			filter, text = hosts.Exclude, c.exclude
		}
		got, err := filter(mustList(t, c.list), text)
		want, refused := strings.CutPrefix(c.want, "!")
		if refused && (err == nil || !strings.Contains(err.Error(), want)) || !refused && (err != nil || shown(got) != want) {
			t.Errorf("%s of %s: %s, %v; want %s", text, c.list, shown(got), err, c.want)
		}
	}
	// One name with several ports is several hosts.
	file, err := hosts.Any("f", []byte("h port=1 slots=2\nh port=2 slots=2\ng\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := hosts.Include(file.Hosts, "h:1"); err != nil || shown(got) != "h:1/port=1[1] h:1/port=2[1]" {
		t.Errorf("%s, %v", shown(got), err)
	}
}

func TestNameFilters(t *testing.T) {
	list := mustList(t, "a:2,b,c,d")
	for _, c := range []struct{ include, exclude, want string }{
		{"c,a", "", "c a:2"},
		{" d , b ", "", "d b"},
		{"", "c,a", "b d"},
		{"e", "", `!there is no host "e": there are a, b, c, d`},
		{"a,a", "", "!the host a is named twice"},
		{"a,", "", "!a host has no name"},
		{"", "e", `!there is no host "e"`},
		{"", "a,b,c,d", "!no host is left"},
	} {
		filter, text := hosts.IncludeNames, c.include
		if c.exclude != "" {
			filter, text = hosts.ExcludeNames, c.exclude
		}
		got, err := filter(list, text)
		want, refused := strings.CutPrefix(c.want, "!")
		if refused && (err == nil || !strings.Contains(err.Error(), want)) || !refused && (err != nil || shown(got) != want) {
			t.Errorf("%s: %s, %v; want %s", text, shown(got), err, c.want)
		}
	}
}

// checkHosts fails where hosts are not fit to be shown, to be handed to ssh, and to be told apart.
func checkHosts(t *testing.T, list []hosts.Host) {
	t.Helper()
	if len(list) == 0 || len(list) > hosts.MaxHosts {
		t.Fatalf("%d hosts", len(list))
	}
	seen := map[string]bool{}
	for _, h := range list[:min(len(list), 100)] {
		addr, err := netip.ParseAddr(h.Name)
		if v6 := err == nil && addr.Is6(); !v6 && (!hosts.IsName(h.Name) || h.Name[0] == '-') || strings.HasPrefix(h.User, "-") ||
			strings.ContainsAny(h.Name+h.User, " \t\n\x00;'\"") {
			t.Fatalf("%+v", h)
		}
		if h.Slots < 0 || h.Slots > hosts.MaxSlots || h.Port < 0 || h.Port > 65535 {
			t.Fatalf("%+v", h)
		}
		key := fmt.Sprint(strings.ToLower(h.Name), " ", h.Port)
		if seen[key] {
			t.Fatalf("%s is there twice", key)
		}
		seen[key] = true
	}
}

// FuzzParseList: any text is refused, or gives hosts that mean themselves when they are written again.
func FuzzParseList(f *testing.F) {
	for _, seed := range []string{
		"node1:8,node2:8", "u@n[01-16]:8", "[2001:db8::1]:8,fe80::1%eth0", "a,,b", "h:1,h:2", "[1-2]", "@", ":",
		"[::]:1", "a@b@c:3,",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := hosts.ParseMPIList(text); err == nil {
			checkHosts(t, list)
		}
		list, err := hosts.ParseList(text)
		if err != nil {
			return
		}
		checkHosts(t, list)
		written := strings.ReplaceAll(shown(list), " ", ",")
		again, err := hosts.ParseList(written)
		if len(written) <= 128<<10 && (err != nil || cmp.Diff(list, again) != "") {
			t.Errorf("%q was written as %q, which is %s, %v", text, written, shown(again), err)
		}
	})
}

// FuzzHostfile: any file is refused by each form, with the file's name, or gives hosts.
func FuzzHostfile(f *testing.F) {
	for _, seed := range []string{
		"node1 slots=4\nnode2 slots=4\n", "\xef\xbb\xbf# x\r\na:4\r\n", "u@h port=22 max_slots=3", "[::1]:2\n", "n[1-3] slots = 2",
		"^a\n+e0\n", "a slots=1\na slots=2", "=\n", "a =b\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		for name, read := range forms {
			file, err := read("hostfile", content)
			if err == nil {
				checkHosts(t, file.Hosts)
			} else if !strings.Contains(err.Error(), "hostfile") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// FuzzFilter: what a filter leaves is a part of the hosts, in their order.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{"a", "a:0,1@b", "b:3", "[2001:db8::1]:0@a", "a,b", "@", "c:0@c:1@c", ":", "2001:db8::1:0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := mustList(t, "a:4,b:2,c,[2001:db8::1]:2")
		for name, filter := range map[string]func([]hosts.Host, string) ([]hosts.Host, error){
			"include": hosts.Include, "exclude": hosts.Exclude, "include names": hosts.IncludeNames, "exclude names": hosts.ExcludeNames,
		} {
			got, err := filter(list, text)
			if err != nil {
				continue
			}
			checkHosts(t, got)
			next := 0
			for _, h := range got {
				at := next
				for at < len(list) && list[at].Name != h.Name {
					at++
				}
				if next = at + 1; at == len(list) && name != "include names" {
					t.Fatalf("%s %q: %s", name, text, shown(got))
				}
				if h.Devices != nil && len(h.Devices) != h.Slots {
					t.Fatalf("%s %q: %s", name, text, shown(got))
				}
			}
		}
	})
}
