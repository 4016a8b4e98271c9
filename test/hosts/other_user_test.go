package hosts

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// horovodHost is a Horovod job whose workers are on two hosts, and a client of its rendezvous on the second of them.
type horovodHost struct {
	*drive.HostsJob
	run        *drive.HostsRun
	addr, port string
}

// startHorovodHosts starts a job, and returns when its workers run.
func startHorovodHosts(t *testing.T, worker string, args ...string) *horovodHost {
	t.Helper()
	j := &horovodHost{HostsJob: drive.NewHostsJob(t, 2)}
	j.Env = append(j.Env, "HOROVOD_START_TIMEOUT=120") // on a busy machine 30 s are short for two hosts
	j.run = j.Start(append(append([]string{"horovodrun", "-np", "2"}, args...), "sh", "-c",
		`env >"$OUT/$HOROVOD_RANK~" && mv "$OUT/$HOROVOD_RANK~" "$OUT/$HOROVOD_RANK"`+"\n"+worker)...)
	testutil.Eventually(t, time.Minute, "workers run", func() bool {
		for _, rank := range []string{"0", "1"} {
			if _, err := os.Stat(filepath.Join(j.Out, rank)); err != nil {
				return false
			}
		}
		return true
	})
	text, err := os.ReadFile(filepath.Join(j.Out, "1"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name {
		case "HOROVOD_GLOO_RENDEZVOUS_ADDR":
			j.addr = value
		case "HOROVOD_GLOO_RENDEZVOUS_PORT":
			j.port = value
		}
	}
	return j
}

// asks returns the first line of an answer to a user's process on the second host, and waits for it for 2 s: who asks
// for a place waits.
func (j *horovodHost) asks(uid int, method, path, body string) string {
	j.T.Helper()
	request := method + " " + path + ` HTTP/1.1\r\nHost: x\r\nContent-Length: ` + strconv.Itoa(len(body)) + `\r\n\r\n` + body
	cmd := j.On[1].Command("setpriv", "--reuid", strconv.Itoa(uid), "--clear-groups", "timeout", "2", "bash", "-c",
		`exec 3<>"/dev/tcp/$0/$1" && printf "$2" >&3 && head -n 1 <&3`, j.addr, j.port, request)
	cmd.Dir = "/"
	out, _ := cmd.Output() // timeout ends it where nothing comes
	return strings.TrimSpace(string(out))
}

// TestHorovodOtherUserOnHost: another user of a host who asks for a worker's place there, as if it were ready for
// another world, does not have the job succeed while that worker is at work.
func TestHorovodOtherUserOnHost(t *testing.T) {
	t.Parallel()
	j := startHorovodHosts(t, `until [ -e "$OUT/go" ]; do sleep 0.05; done
		[ "$HOROVOD_RANK" != 0 ] || exit 0
		sleep 3; : >"$OUT/done"`, "--min-np", "2", "--host-discovery-script", "echo node1:1; echo node2:1")
	for _, c := range [][3]string{
		{"GET", "/rank_and_size/node2:0", ""},
		{"PUT", "/worker_addresses/node2:0", "x"},
		{"PUT", "/global/rank_1", "x"},
		{"DELETE", "/global/1", ""},
	} {
		if got := j.asks(testutil.OtherUserID, c[0], c[1], c[2]); !strings.Contains(got, " 403 ") {
			t.Errorf("%s %s: %q", c[0], c[1], got)
		}
	}
	if err := os.WriteFile(filepath.Join(j.Out, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.Ends(j.run, 0, "the job has succeeded")
	if _, err := os.Stat(filepath.Join(j.Out, "done")); err != nil {
		t.Errorf("the job has succeeded, and its work is not done: %v", err)
	}
	if n := strings.Count(j.run.Err.String(), "new world"); n != 1 {
		t.Errorf("there were %d worlds", n)
	}
	j.Clean(30 * time.Second)
}

// TestHorovodOtherUserOnHostOfWorld: the same of a world that does not change, whose own user is answered.
func TestHorovodOtherUserOnHostOfWorld(t *testing.T) {
	t.Parallel()
	j := startHorovodHosts(t, `until [ -e "$OUT/go" ]; do sleep 0.05; done`, "-H", "node1:1,node2:1")
	if got := j.asks(testutil.OtherUserID, "PUT", "/global/1", "x"); !strings.Contains(got, " 403 ") {
		t.Errorf("another user: %q", got)
	}
	if got := j.asks(os.Geteuid(), "PUT", "/global/1", "x"); !strings.Contains(got, " 200 ") {
		t.Errorf("the job's user: %q", got)
	}
	if err := os.WriteFile(filepath.Join(j.Out, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.Ends(j.run, 0)
	j.Clean(30 * time.Second)
}
