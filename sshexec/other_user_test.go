package sshexec_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/sshexec/sshtest"
)

// otherUser is another user of a machine.
const otherUser = "12345"

// otherUserShell begins the scripts of TestBinaryOfAnotherUser: plant DIR [as] puts a program that tells what it is given
// under the name of our binary, with every kind of record that says it was read.
const otherUserShell = `
other() { setpriv --reuid ` + otherUser + ` --regid ` + otherUser + ` --clear-groups "$@"; }
plant() { ${2:-other} sh -c 'umask 022; mkdir -p "$1"; f=$1/muster-$2
	echo "#!/bin/sh
touch /tmp/ran; cat >/tmp/told" >$f; chmod 755 $f; touch -d @1 $f
	echo "$3 $(stat -c "%i %s %Y %Z" $f)" >$1/.muster-$2.ok' sh "$1" "$key" "$hash"; }
`

// A binary that somebody else has put where ours is looked for does not run, and is told nothing.
func TestBinaryOfAnotherUser(t *testing.T) {
	testutil.Long(t)
	if os.Geteuid() != 0 {
		testutil.Missing(t, "root, to mount file systems,")
	}
	text, err := os.ReadFile(script(t))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	hash := hex.EncodeToString(sum[:])
	for name, c := range map[string]struct {
		before string // as root, who starts the agent
		want   string // the directory that ours is put into
	}{
		"the cache is another user's": {`other mkdir -p /tmp/c; plant /tmp/c/muster/bin; xdg=/tmp/c`, "/tmp/muster-bin-0"},
		"a link of another user's": {
			`other mkdir -p /tmp/c; plant /tmp/c/muster/bin; other ln -s c /tmp/l; xdg=/tmp/l`,
			"/tmp/muster-bin-0",
		},
		"a directory above is open": {`chmod 777 "$home"/.cache; plant "$home"/.cache/muster/bin`, "/tmp/muster-bin-0"},
		"a directory above was moved": {
			`chmod 777 "$home"/.cache; mkdir -p -m 700 "$home"/.cache/x/bin; plant /tmp/p; ` +
				`cp /tmp/p/* /tmp/p/.m* "$home"/.cache/x/bin; other mv "$home"/.cache/x "$home"/.cache/muster`,
			"/tmp/muster-bin-0",
		},
		"open to all": {
			`mkdir -p "$home"/.cache/muster/bin; chmod 777 "$home"/.cache/muster/bin; plant "$home"/.cache/muster/bin`,
			"/tmp/muster-bin-0",
		},
		"open to a group": {`mkdir -p "$home"/.cache/muster/bin; chgrp ` + otherUser +
			` "$home"/.cache/muster/bin; chmod 770 "$home"/.cache/muster/bin; plant "$home"/.cache/muster/bin`, "/tmp/muster-bin-0"},
		"open to all before": {
			`mkdir -p "$home"/.cache/muster/bin; chmod 777 "$home"/.cache/muster/bin; ` +
				`plant "$home"/.cache/muster/bin; chmod 700 "$home"/.cache/muster/bin`, "",
		},
		"the record is another user's": {
			`mkdir -p "$home"/.cache/muster/bin; chmod 777 "$home"/.cache/muster/bin; ` +
				`plant "$home"/.cache/muster/bin; chmod 700 "$home"/.cache/muster/bin; chown 0 "$home"/.cache/muster/bin/muster-*`, "",
		},
		"the record is an old one":        {`plant "$home"/.cache/muster/bin env; : >"$home"/.cache/muster/bin/.muster-$key.ok`, ""},
		"the directory in /tmp":           {`full; plant /tmp/muster-bin-0`, "/dev/shm/muster-bin-0"},
		"the directory in /tmp is a link": {`full; mkdir -m 700 /tmp/x; other ln -s x /tmp/muster-bin-0`, "/dev/shm/muster-bin-0"},
		"the one in /tmp is open": {
			`full; mkdir -m 777 /tmp/muster-bin-0; chmod 777 /tmp/muster-bin-0; plant /tmp/muster-bin-0`,
			"/dev/shm/muster-bin-0",
		},
		"/tmp is not sticky": {`full; chmod 777 /tmp`, "/dev/shm/muster-bin-0"},
		"a link for a record": {
			`echo precious >/root.txt; mkdir -p "$home"/.cache/muster/bin; chmod 777 "$home"/.cache/muster/bin; ` +
				`other ln -s /root.txt "$home"/.cache/muster/bin/.muster-$key.ok; chmod 700 "$home"/.cache/muster/bin`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			// The machine's own files stay as they are: what is written goes into memory.
			mounts := `set -e; home=$1; key=$2; hash=$3; xdg=; full() { mount -t tmpfs -o size=64k tmpfs "$home"/.cache; }
				mount --make-rprivate /; mount -t tmpfs -o size=64m tmpfs /mnt; mkdir -p /mnt/home /mnt/dev-shm
				chmod 755 /mnt /mnt/home; home=/mnt/home
				mkdir "$home"/.cache; mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /dev/shm; chmod 1777 /tmp /dev/shm
			` + otherUserShell + strings.ReplaceAll(c.before, "/root.txt", "/mnt/precious") + "\necho \"xdg=$xdg\"; exec cat"
			hold := exec.CommandContext(ctx, "unshare", "-m", "sh", "-c", mounts, "sh", home, hash[:16], hash)
			hold.Stderr = os.Stderr
			_, stdout := testutil.StartPiped(t, hold)
			defer func() { cancel(); _ = hold.Wait() }()
			line := make([]byte, 200)
			n, err := stdout.Read(line)
			if err != nil {
				t.Fatal(err)
			}
			inside := func(command string) string {
				t.Helper()
				out, _ := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(hold.Process.Pid), "-m", "sh", "-c",
					command).CombinedOutput()
				return string(out)
			}
			shell := filepath.Join(t.TempDir(), "shell")
			text := fmt.Sprintf("#!/bin/sh\nexport HOME=/mnt/home %s\nexec nsenter -t %d -m /bin/sh \"$@\"\n", cacheHome(string(line[:n])),
				hold.Process.Pid)
			if err := os.WriteFile(shell, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			s := sshtest.New(t, sshtest.Config{Shell: shell})
			d := dialer(t, testutil.NewSSHClient(t), nil)
			for range 2 { // as it comes, and as it is found
				r, err := d.Start(t.Context(), at(s), []string{"agent", "with words"})
				if err != nil {
					t.Fatal(err)
				}
				timer := time.AfterFunc(long, func() { _ = r.Close() })
				greet(t, r)
				timer.Stop()
				_ = r.Close()
			}
			if got := inside("ls /tmp/ran /tmp/told 2>/dev/null"); got != "" {
				t.Errorf("what another user had put there was started: %s", got)
			}
			want := c.want
			if want == "" {
				want = "/mnt/home/.cache/muster/bin"
			}
			if got := inside("sha256sum <" + want + "/muster-" + hash[:16]); !strings.HasPrefix(got, hash) {
				t.Errorf("ours is not in %s: %s", want, got)
			}
			if s.Sessions() != 4 {
				t.Errorf("it took %d sessions, and not 3 and 1", s.Sessions())
			}
			if got := inside("cat /mnt/precious 2>/dev/null"); got != "" && got != "precious\n" {
				t.Errorf("a file elsewhere was overwritten: %s", got)
			}
		})
	}
}

// cacheHome makes a variable of the line in which a script has named a directory.
func cacheHome(line string) string {
	if dir, _ := strings.CutPrefix(strings.TrimSpace(line), "xdg="); dir != "" {
		return "XDG_CACHE_HOME=" + dir
	}
	return ""
}
