package discovery_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/horovod/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func hosts(text string) []horovod.Host {
	var all []horovod.Host
	for item := range strings.FieldsSeq(text) {
		name, n, _ := strings.Cut(item, ":")
		all = append(all, horovod.Host{Name: name, Slots: int(n[0] - '0')})
	}
	return all
}

// The outputs of upstream's test_elastic_discovery.py, and what it does not define.
func TestParseHosts(t *testing.T) {
	for _, c := range []struct {
		text  string
		slots int
		want  string
		warn  int
		err   string
	}{
		{"host-1:2\nhost-2:4\n", 0, "host-1:2 host-2:4", 0, ""},
		{"host-1\nhost-2", 4, "host-1:4 host-2:4", 0, ""},
		{"host-1:1\nhost-2\n", 4, "host-1:1 host-2:4", 0, ""},
		{"\n  host-1:2  \r\n\n\thost-2:4", 0, "host-1:2 host-2:4", 0, ""},
		{"", 0, "", 0, ""},
		{" \n\n", 0, "", 0, ""},
		{"job-worker-0.job.ns.svc:2\n10.0.0.1:1", 0, "job-worker-0.job.ns.svc:2 10.0.0.1:1", 0, ""},
		{"a:1\nb:1\na:3", 0, "a:3 b:1", 1, ""},
		{"a:0\nb:1", 0, "a:0 b:1", 0, ""},
		{"a\n", 0, "", 0, "line 1, a: it says no number of slots"},
		{"a:1\n\nb:x", 0, "", 0, "line 3, b:x: slots are a number"},
		{"a:-1", 0, "", 0, "slots are a number"},
		{"a:", 1, "", 0, "slots are a number"},
		{"a:99999999999999999999", 0, "", 0, "slots are a number up to 4096"},
		{":2", 0, "", 0, "no host's name"},
		{"Error from server: pods is forbidden", 1, "", 0, "line 1, Error from server: pods is forbidden"},
		{"\x1b[31mred", 1, "", 0, `line 1, \x1b[31mred: this is no host's name`},
		{"fe80::1:2", 0, "", 0, "slots are a number"},
		{strings.Repeat("x", 300), 1, "", 0, "no host's name"},
	} {
		got, warnings, err := discovery.ParseHosts(c.text, c.slots)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: %v, want %q", c.text, err, c.err)
			}
			continue
		}
		if diff := cmp.Diff(hosts(c.want), got); diff != "" || err != nil || len(warnings) != c.warn {
			t.Errorf("%q: %v, warnings %q (-want +got):\n%s", c.text, err, warnings, diff)
		}
	}
}

func FuzzParseHosts(f *testing.F) {
	f.Add("host-1:2\nhost-2\n", 4)
	f.Add("a:1\r\n\x00:\n", 0)
	f.Fuzz(func(t *testing.T, text string, slots int) {
		got, _, err := discovery.ParseHosts(text, slots%16)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, h := range got {
			if seen[h.Name] || h.Name == "" || strings.ContainsAny(h.Name, ": \n/") {
				t.Fatalf("%q: %v", text, got)
			}
			seen[h.Name] = true
		}
	})
}

// The orders and updates of upstream's test_elastic_driver.py.
func TestTableOrdersAndCompares(t *testing.T) {
	table := discovery.NewTable(discovery.Cooldown{})
	now := time.Unix(0, 0)
	for _, c := range []struct {
		found, want string
		change      notify.Change
	}{
		{"", "", notify.NoChange},
		{"a:2", "a:2", notify.Added},
		{"b:1 a:2", "a:2 b:1", notify.Added},
		{"b:1 a:2", "a:2 b:1", notify.NoChange},
		{"a:2 b:1", "a:2 b:1", notify.NoChange},
		{"c:1 b:1 a:2", "a:2 b:1 c:1", notify.Added},
		{"d:1 c:1 b:1", "b:1 c:1 d:1", notify.Mixed},
		{"a:1 b:1 c:1", "b:1 c:1 a:1", notify.Mixed},
		{"b:1 c:1", "b:1 c:1", notify.Removed},
		{"b:2 c:1", "b:2 c:1", notify.Added},
		{"b:1 c:1", "b:1 c:1", notify.Removed},
		{"b:0 c:2", "c:2", notify.Mixed},
		{"", "", notify.Removed},
	} {
		table.Found(hosts(c.found))
		got, change := table.Look(now)
		if diff := cmp.Diff(hosts(c.want), got); diff != "" || change != c.change {
			t.Errorf("found %s: %v, want %v (-want +got):\n%s", c.found, change, c.change, diff)
		}
	}
}

func TestBlacklist(t *testing.T) {
	now := time.Unix(1000, 0)
	table := discovery.NewTable(discovery.Cooldown{})
	table.Found(hosts("a:1 b:1"))
	table.Look(now)
	if until := table.Blacklist("a", now); !until.IsZero() {
		t.Errorf("without a cool-down: %v", until)
	}
	if got, change := table.Look(now.Add(100 * 365 * 24 * time.Hour)); len(got) != 1 || change != notify.NoChange {
		t.Errorf("a host came back: %v %v", got, change)
	}

	table = discovery.NewTable(discovery.Cooldown{Min: 10 * time.Second, Max: 100 * time.Second})
	table.Found(hosts("a:1 b:1"))
	table.Look(now)
	for times, least := range []int{10, 20, 40, 80, 100, 100} {
		until := table.Blacklist("a", now)
		delay := until.Sub(now)
		if want := time.Duration(least) * time.Second; delay < want || delay > min(want+10*time.Second, 100*time.Second) {
			t.Errorf("the cool-down no. %d is %v, want at least %v", times+1, delay, want)
		}
		if again := table.Blacklist("a", now.Add(delay/2)); !again.Equal(until) {
			t.Errorf("a second failure moves %v to %v", until, again)
		}
		if got, change := table.Look(until.Add(-1)); len(got) != 1 || change != notify.NoChange || !table.Bad("a", until.Add(-1)) {
			t.Errorf("during the cool-down: %v %v", got, change)
		}
		got, change := table.Look(until)
		if diff := cmp.Diff(hosts("b:1 a:1"), got); diff != "" || change != notify.Added {
			t.Errorf("after the cool-down: %v (-want +got):\n%s", change, diff)
		}
		now = until
	}
}

// lateRunner ends each command because of its deadline.
type lateRunner struct{}

func (lateRunner) Run(context.Context, string) ([]byte, error) { return nil, context.DeadlineExceeded }

func TestScript(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, []byte("a:1\nb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var said []string
	shell := discovery.Shell{
		Env:    []string{"PATH=" + os.Getenv("PATH"), "FILE=" + file},
		Stderr: func(line string) { said = append(said, line) },
	}
	find := func(command string, timeout time.Duration) ([]horovod.Host, error) {
		got, _, err := discovery.Script{Command: command, Runner: shell, Slots: 3, Timeout: timeout}.Find(t.Context())
		return got, err
	}
	got, err := find(`echo to the log >&2; cat "$FILE"`, 0)
	if diff := cmp.Diff(hosts("a:1 b:3"), got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]string{"to the log"}, said); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	for command, want := range map[string]string{
		"echo a; exit 3":                `status 3`,
		"echo no such thing >&2; false": "status 1: no such thing",
		"/nonexistent":                  "status 127",
		"kill -9 $$":                    "status 137",
		"echo a b c d":                  "no host's name",
	} {
		if got, err := find(command, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v, want %q", command, got, err, want)
		}
	}
	early := discovery.Script{Command: "true", Runner: lateRunner{}, Timeout: time.Hour}
	if _, _, err := early.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "longer than 1h") {
		t.Errorf("a runner whose clock is ahead: %v", err)
	}
	begin := time.Now()
	if _, err := find("echo a; sleep 100 & sleep 100", 300*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "longer than 300ms") {
		t.Errorf("a script that hangs: %v", err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("a script that hangs took %v", took)
	}
	if _, err := find("while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done",
		20*time.Second); err == nil ||
		!strings.Contains(err.Error(), "more than 4194304 bytes") {
		t.Errorf("a script that floods: %v", err)
	}
}

type names map[string][]string

func (n names) LookupHost(_ context.Context, name string) ([]string, error) {
	if addrs, ok := n[name]; ok {
		return addrs, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: name == "none", IsTemporary: name != "none"}
}

func TestDNS(t *testing.T) {
	known := names{"job.ns.svc": {"10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1"}}
	got, warnings, err := discovery.DNS{Name: "job.ns.svc", Resolver: known, Slots: 2}.Find(t.Context())
	if diff := cmp.Diff([]horovod.Host{{Name: "10.0.0.1", Slots: 2}, {Name: "10.0.0.2", Slots: 2}}, got); diff != "" || err != nil ||
		len(warnings) != 1 {
		t.Errorf("%v %q (-want +got):\n%s", err, warnings, diff)
	}
	if got, _, err := (discovery.DNS{Name: "none", Resolver: known}).Find(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("a name without pods: %v %v", got, err)
	}
	if _, _, err := (discovery.DNS{Name: "broken", Resolver: known}).Find(t.Context()); err == nil {
		t.Error("a server that is down is no job without hosts")
	}
}

func TestFile(t *testing.T) {
	content, fail := "a:1", error(nil)
	f := discovery.File{
		Name: "hosts", Read: func(string) ([]byte, error) { return []byte(content), fail },
		Parse: func(text string) ([]horovod.Host, error) { return hosts(text), nil },
	}
	for _, text := range []string{"a:1", "a:1 b:2"} {
		content = text
		got, _, err := f.Find(t.Context())
		if diff := cmp.Diff(hosts(text), got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	fail = errors.New("gone")
	if _, _, err := f.Find(t.Context()); err == nil {
		t.Error("a file that is gone is no error")
	}
}

// What is said of a script has no secret of its command line in it, where a shown form is given.
func TestScriptShown(t *testing.T) {
	s := discovery.Script{Command: "hosts --token hunter2", Shown: "(21 characters, not shown)"}
	if got := s.String(); got != `the host discovery script "(21 characters, not shown)"` {
		t.Error(got)
	}
	if got := (discovery.Script{Command: "hosts"}).String(); got != `the host discovery script "hosts"` {
		t.Error(got)
	}
}
