package hosts

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// TestHostsDryRun shows a job on hosts without reaching any, and tells no secret.
func TestHostsDryRun(t *testing.T) {
	t.Parallel()
	reached := filepath.Join(t.TempDir(), "reached")
	environ := []string{"HOME=" + testutil.NewSSHClient(t).Home, "API_TOKEN=hush-1", "PLAIN=shown"}
	script := drive.WriteScript(t, "train.py", "")
	file := drive.WriteScript(t, "env", "DB_PASSWORD=hush-2\n")
	for name, args := range map[string][]string{
		"run": {
			"run", "--hosts", "node[01-16]:8", "--ssh-program", "touch " + reached, "--env", "SECRET_KEY=hush-3", "--env-file", file,
			"--env", "PLAIN_TOO=shown", "--", "python", script,
		},
		"deepspeed": {
			"--ssh-program", "touch " + reached, "--env", "SECRET_KEY=hush-3", "deepspeed", "--hostfile",
			drive.WriteScript(t, "slots", "node01 slots=8\nnode02 slots=8\n"), script,
		},
		"colossalai": {
			"--ssh-program", "touch " + reached, "colossalai", "run", "--host", "node01,node02", "--nproc_per_node",
			"8", script,
		},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			text := drive.Run(t, environ, append([]string{"--dry-run"}, args...)...)
			took := time.Since(began)
			object := drive.Run(t, environ, append([]string{"--dry-run", "--json"}, args...)...)
			if text.Status != 0 || object.Status != 0 {
				t.Fatalf("status %d and %d:\n%s%s", text.Status, object.Status, text.Stderr, object.Stderr)
			}
			for _, word := range []string{"node01", "node02", "ssh", "8 workers", "ranks 8 to 15"} {
				if !strings.Contains(text.Stdout, word) {
					t.Errorf("no %q in:\n%s", word, text.Stdout)
				}
			}
			var plan struct {
				Dialect string
				Nodes   []struct {
					Name    string
					Reached string `json:"reached_by"`
					Workers []struct{ Rank int }
				}
			}
			if err := json.Unmarshal([]byte(object.Stdout), &plan); err != nil {
				t.Fatalf("%v:\n%s", err, object.Stdout)
			}
			rank := 0
			for _, n := range plan.Nodes {
				for _, w := range n.Workers {
					if w.Rank != rank || n.Reached != "ssh" {
						t.Errorf("node %s, reached by %s, has rank %d, want %d", n.Name, n.Reached, w.Rank, rank)
					}
					rank++
				}
			}
			if rank != 8*len(plan.Nodes) || rank < 16 || plan.Dialect != name {
				t.Errorf("%d workers on %d nodes of %s", rank, len(plan.Nodes), plan.Dialect)
			}
			for _, said := range []string{text.Stdout, text.Stderr, object.Stdout, object.Stderr} {
				if strings.Contains(said, "hush") {
					t.Errorf("a secret is told:\n%s", said)
				}
			}
			if _, err := os.Stat(reached); !os.IsNotExist(err) {
				t.Errorf("a host was reached: %v", err)
			}
			t.Logf("it took %v", took.Round(time.Millisecond))
		})
	}
}

// TestHostsDryRunTellsNoTales: nothing of what only the hosts know is shown as if it were settled: how many devices
// they have, which need not be those of the machine where somebody types, and by which addresses they reach each other.
func TestHostsDryRunTellsNoTales(t *testing.T) {
	t.Parallel()
	for args, c := range map[string]struct{ want, never []string }{
		"--hosts a,b -n gpu": {
			[]string{
				`a +by ssh +workers counted there \(gpu\) +ranks from 0\n`,
				`b +by ssh +workers counted there \(gpu\) +ranks behind those of the node above\n`,
				`workers +<counted on each host>, by gpu\n`,
				`WORLD_SIZE +<counted on each host>`, `LOCAL_WORLD_SIZE +<counted on each host>`, ` RANK +0 `,
			},
			[]string{`(  |LOCAL_)WORLD_SIZE +\d`},
		},
		"--hosts a:2,b -n gpu": {[]string{`a +by ssh +workers counted there`, ` WORLD_SIZE +<counted`}, nil},
		"--hosts a -n auto":    {[]string{` WORLD_SIZE +<counted`, `MASTER_ADDR +127\.0\.0\.1`}, nil},
		"--hosts a,b --nnodes 1:2 -n gpu": {[]string{
			`a +by ssh +workers counted there \(gpu\) +ranks are decided when nodes meet\n`,
			`they meet by +muster at <address of a>:<a free port>\n`,
		}, []string{":0\n"}},
		"--hosts a,b --numa-binding node":    {[]string{`NUMA binding +node\n`}, nil},
		"--hosts a,b -n 2 --isolate-devices": {[]string{`WORLD_SIZE +4`}, nil},
		"--hosts localhost,127.0.0.2,192.0.2.7": {[]string{
			`MASTER_ADDR +<address of localhost>`,
			`localhost +as a process of this machine +1 worker +rank 0\n`, `192.0.2.7 +by ssh +1 worker +rank 2\n`,
		}, nil},
		"--hosts 192.0.2.7,a": {[]string{
			`MASTER_ADDR +192\.0\.2\.7`, `192.0.2.7 +by ssh +1 worker +rank 0\n`,
			`variables of rank 0 `,
		}, nil},
		"--hosts a,b --master-addr c": {[]string{`MASTER_ADDR +c `}, nil},
		"--hosts localhost:2":         {[]string{`MASTER_ADDR +127\.0\.0\.1`, `2 workers +ranks 0 to 1\n`}, nil},
		"-n 1":                        {[]string{`variables of rank 0 `}, nil},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			got := drive.Run(t, nil, append(append([]string{"run", "--dry-run"}, strings.Fields(args)...), "--", "true")...)
			if got.Status != 0 {
				t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
			}
			for _, want := range c.want {
				if !regexp.MustCompile(want).MatchString(got.Stdout) {
					t.Errorf("no %q in:\n%s", want, got.Stdout)
				}
			}
			for _, never := range append(c.never, `MASTER_ADDR +localhost`, `\b1 workers`, `ranks (\d+) to 0\b`, `(?m)^rank \d.*\n\n`) {
				if regexp.MustCompile(never).MatchString(got.Stdout) {
					t.Errorf("%q is in:\n%s", never, got.Stdout)
				}
			}
		})
	}
}

// TestHostsDryRunNames does not wait for a name server that is silent.
func TestHostsDryRunNames(t *testing.T) {
	t.Parallel()
	testutil.Long(t)
	h := testutil.Hosts(t, 1)[0]
	for name, text := range map[string]string{"nsswitch.conf": "hosts: files dns\n", "resolv.conf": "nameserver 127.0.0.1\n"} {
		if err := os.WriteFile(filepath.Join(h.Dir, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	asked := make(chan struct{}, 1)
	if err := h.Do(func() error {
		conn, err := net.ListenPacket("udp", "127.0.0.1:53")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() { // ends with the connection
			if _, _, err := conn.ReadFrom(make([]byte, 512)); err == nil {
				asked <- struct{}{}
			}
		}()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c := h.Command("muster", "run", "--dry-run", "--hosts", "node0,rack[1-2]-[01-08]", "--", "true")
	c.Env = drive.CleanEnviron()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	select {
	case <-asked:
	default:
		t.Error("the name server was not asked: this test tests nothing")
	}
	if took := time.Since(began); took > 4*time.Second { // one attempt of a resolver is 5 seconds
		t.Errorf("it took %v", took)
	}
	for _, want := range []string{"node0 +as a process", "rack2-08 +by ssh"} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
