package sshexec

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"muster/internal/hosts"
)

// The scripts keep to what every login shell passes on as it is.
func TestScriptsAreQuotable(t *testing.T) {
	for name, script := range map[string]string{"find.sh": findScript, "bring.sh": bringScript} {
		line := shellLine(script, "a b")
		body := strings.TrimSuffix(strings.TrimPrefix(line, "exec /bin/sh -c '"), "' muster 'a b'")
		if len(body) != len(line)-len("exec /bin/sh -c '")-len("' muster 'a b'") || strings.ContainsAny(body, "'\\!\n") {
			t.Errorf("%s becomes %q", name, line)
		}
		if len(line) > 4<<10 {
			t.Errorf("%s has %d bytes", name, len(line))
		}
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", body).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// The messages of OpenSSH 9.2 and 9.9.
func TestReasonOf(t *testing.T) {
	for text, want := range map[string]Reason{
		"ssh: Could not resolve hostname nobody: Name or service not known":                                             NameUnknown,
		"ssh: connect to host 10.0.0.1 port 22: Connection refused":                                                     Refused,
		"ssh: connect to host 10.0.0.1 port 22: No route to host":                                                       Unreachable,
		"ssh: connect to host 10.0.0.1 port 22: Network is unreachable":                                                 Unreachable,
		"ssh: connect to host 10.0.0.1 port 22: Connection timed out":                                                   TimedOut,
		"Connection timed out during banner exchange":                                                                   TimedOut,
		"kex_exchange_identification: Connection closed by remote host":                                                 Closed,
		"Connection reset by 10.0.0.1 port 22":                                                                          Closed,
		"Timeout, server node1 not responding.":                                                                         Lost,
		"root@node1: Permission denied (publickey,password).":                                                           AuthFailed,
		"Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures":                                 AuthFailed,
		"No ED25519 host key is known for node1 and you have requested strict checking.\nHost key verification failed.": HostKeyUnknown,
		"@  WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!  @\nHost key verification failed.":                         HostKeyChanged,
		"": Failed,
	} {
		if got := reasonOf(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestParseJump(t *testing.T) {
	for text, want := range map[string]hosts.Host{
		"gate":                     {Name: "gate"},
		"me@gate:2222":             {Name: "gate", User: "me", Port: 2222},
		"me@corp@gate":             {Name: "gate", User: "me@corp"},
		"[fd66::1]:22":             {Name: "fd66::1", Port: 22},
		"ssh://me@[fd66::1]:2200/": {Name: "fd66::1", User: "me", Port: 2200},
		"fd66::1":                  {Name: "fd66::1"},
	} {
		if got, err := parseJump(text); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "me@", "gate:0", "gate:ssh", "gate:65536"} {
		if got, err := parseJump(text); err == nil {
			t.Errorf("%q is taken for %+v", text, got)
		}
	}
}

func TestSplitFiles(t *testing.T) {
	for list, want := range map[string][]string{
		"~/.ssh/a  /etc/b": {"~/.ssh/a", "/etc/b"}, `"/with space/a" b`: {"/with space/a", "b"}, "none": nil, "": nil,
	} {
		if diff := cmp.Diff(want, splitFiles(list)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", list, diff)
		}
	}
}

func TestReadAnswer(t *testing.T) {
	filler := func(n int) string { return strings.Repeat("x", n-1) + "\n" }
	for name, c := range map[string]struct {
		text, answer, rest string
		err                error
	}{
		"at once":           {"\nmuster-bootstrap: N run\nrest", "run", "rest", nil},
		"behind noise":      {"a\nno end muster-bootstrap: N need gzip\r\n", "need gzip", "", nil},
		"another's answer":  {"muster-bootstrap: M run\nmuster-bootstrap: N run\n", "run", "", nil},
		"limit":             {filler(noiseLimit-1) + "muster-bootstrap: N run\n", "run", "", nil},
		"over the limit":    {filler(noiseLimit) + "muster-bootstrap: N run\n", "", "", errNoise},
		"one endless line":  {strings.Repeat("x", 2*noiseLimit), "", "", errNoise},
		"no standard input": {"\nmuster-bootstrap: nostdin\n", "", "", errNoStdin},
	} {
		r := bufio.NewReader(strings.NewReader(c.text))
		answer, err := readAnswer(r, "N")
		if answer != c.answer || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
		if rest, _ := r.Peek(len(c.rest)); err == nil && (string(rest) != c.rest || r.Buffered() != len(c.rest)) {
			t.Errorf("%s: %q is left", name, rest)
		}
	}
}

// FuzzReadAnswer: whatever a machine says before our program runs there, only a line with the nonce is an answer, and
// not much is read.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("motd\nmuster-bootstrap: N need gzip\r\nrest"))
	f.Add([]byte("muster-bootstrap: nostdin\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		answer, err := readAnswer(bufio.NewReader(bytes.NewReader(text)), "N")
		if err == nil && (!bytes.Contains(text, []byte("muster-bootstrap: N "+answer)) || strings.ContainsAny(answer, "\n")) {
			t.Errorf("%q answers %q", text, answer)
		}
	})
}

// What a person writes into ssh's configuration, and what is made of it without OpenSSH's client.
func TestConditions(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, ".ssh")
	if err := os.MkdirAll(filepath.Join(dir, "conf.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(host, option string) []string {
		t.Helper()
		l, err := newConfigFiles(home, zerolog.Nop(), nil).of(t.Context(), hosts.Host{Name: host})
		if err != nil {
			t.Fatal(err)
		}
		return l(option)
	}
	write("config", "include conf.d/*.conf\nHost a\n  Port 1\nMatch host a user me\n  Port 2\n  User you\nHost *\n  port=3\n")
	write("conf.d/x.conf", "Host b !bb\n  User \"from x\"\n")
	for _, c := range []struct{ host, option, want string }{
		{"a", "port", "1,3"},
		{"c", "port", "3"},
		{"a", "user", ""},
		{"b", "user", "from x"},
	} {
		if got := strings.Join(read(c.host, c.option), ","); got != c.want {
			t.Errorf("%s of %s is %q, not %q", c.option, c.host, got, c.want)
		}
	}
	c := newConfigFiles(home, zerolog.Nop(), nil)
	at := func() string {
		text, err := os.ReadFile(c.user())
		if err != nil {
			t.Fatal(err)
		}
		return c.condition(c.user(), text, dir, 0)
	}
	if got := at(); got != c.user()+":4" {
		t.Errorf("the condition is at %q", got)
	}
	write("config", "Match all\n  Port 1\nInclude conf.d/*.conf\n")
	if got := at(); got != "" {
		t.Errorf("a condition is seen at %q", got)
	}
	write("conf.d/x.conf", "\n  Match exec \"true\"\n")
	if got := at(); got != filepath.Join(dir, "conf.d/x.conf")+":2" {
		t.Errorf("the condition is at %q", got)
	}
	write("config", "Include conf.d/*.conf\nHost a\n  Port 1\n")
	if got := read("a", "port"); got == nil {
		t.Error("what an included file has a condition for takes all away")
	}
}
