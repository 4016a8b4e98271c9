package meet

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// On one node nothing of muster's listens on anything but loopback, whatever the job is.
func TestOneNodeListensOnLoopback(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		sockets bool // some are listened on
	}{
		"run":              {[]string{"run", "-n", "2"}, true},
		"standalone":       {[]string{"torchrun", "--standalone", "--nproc-per-node", "2", "--no-python"}, true},
		"network check":    {[]string{"run", "-n", "2", "--network-check"}, true},
		"checkpoints":      {[]string{"run", "-n", "2", "--ckpt", "on", "--ckpt-dir", "CKPT"}, true},
		"horovod":          {[]string{"horovodrun", "-np", "2"}, true},
		"horovod on hosts": {[]string{"horovodrun", "-np", "2", "-H", "localhost:2"}, true},
		"elastic horovod":  {[]string{"horovodrun", "-np", "2", "--host-discovery-script", "echo localhost:2"}, true},
		"hosts":            {[]string{"run", "-n", "1", "--hosts", "localhost,127.0.0.1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			started := filepath.Join(dir, "started")
			for i := range c.args {
				c.args[i] = strings.ReplaceAll(c.args[i], "CKPT", filepath.Join(dir, "ckpt"))
			}
			j := drive.Start(t, nil, append(c.args,
				"sh", "-c", "mktemp "+started+".XXXXXX; while [ ! -e "+dir+"/stop ]; do sleep 0.05; done")...)
			testutil.Eventually(t, time.Minute, "workers run", func() bool {
				files, _ := filepath.Glob(started + ".*")
				return len(files) == 2
			})
			all := family(j.Process.Pid)
			found := 0
			for _, pid := range all {
				for _, at := range listeners(t, pid) {
					found++
					if !at.Addr().Unmap().IsLoopback() {
						line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
						t.Errorf("%s is listened on by %q", at, strings.ReplaceAll(string(line), "\x00", " "))
					}
				}
			}
			if found == 0 == c.sockets {
				t.Errorf("%d sockets are listened on by %d processes", found, len(all))
			}
			if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := j.End(); got.Status != 0 {
				t.Errorf("status %d: %s", got.Status, got.Stderr)
			}
		})
	}
}

// family returns a process and all that descend from it.
func family(pid int) []int {
	all := []int{pid}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range children {
		text, _ := os.ReadFile(file)
		for word := range strings.FieldsSeq(string(text)) {
			var child int
			if _, err := fmt.Sscan(word, &child); err == nil {
				all = append(all, family(child)...)
			}
		}
	}
	return all
}

// listeners are the addresses on which a process takes TCP connections.
func listeners(t *testing.T, pid int) (found []netip.AddrPort) {
	t.Helper()
	own := map[string]bool{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && strings.HasPrefix(target, "socket:[") {
			own[strings.Trim(target, "socket:[]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			continue // it has ended, or there is no IPv6
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			const listening = "0A"
			words := strings.Fields(lines.Text())
			if len(words) < 10 || words[3] != listening || !own[words[9]] {
				continue
			}
			host, port, _ := strings.Cut(words[1], ":")
			raw, err := hex.DecodeString(host)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i+4 <= len(raw); i += 4 { // words of 32 bits in the order of the machine
				raw[i], raw[i+1], raw[i+2], raw[i+3] = raw[i+3], raw[i+2], raw[i+1], raw[i]
			}
			addr, _ := netip.AddrFromSlice(raw)
			var n uint16
			_, _ = fmt.Sscanf(port, "%x", &n)
			found = append(found, netip.AddrPortFrom(addr, n))
		}
		_ = f.Close()
	}
	return found
}
