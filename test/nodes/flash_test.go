package nodes

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/checkpointd"
	"muster/internal/testutil"
	"muster/test/drive"
)

// flashNodes is a job of hosts whose workers save each of so many steps to memory.
type flashNodes struct{ *nodes }

func newFlashNodes(t *testing.T, hosts, steps int, own ...string) *flashNodes {
	t.Helper()
	j := &flashNodes{newNodes(t, hosts, drive.Script(t, "nodes", "flash.py"))}
	j.worker = append(j.worker, j.dir, fmt.Sprint(steps))
	token := filepath.Join(j.dir, "token")
	if err := os.WriteFile(token, []byte("a token of this job, long enough"), 0o600); err != nil {
		t.Fatal(err)
	}
	j.own = append([]string{"--ckpt=on", "--token-file=" + token}, own...)
	j.python = drive.ForkedPython(t)
	if testutil.Soak() { // which has no forks of ours
		j.own = append(j.own, "--warm=auto")
	}
	j.flags = []string{
		fmt.Sprintf("--nnodes=%d", hosts), "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400",
		"--rdzv-id=flash",
	}
	return j
}

// ckpt runs muster ckpt on a host, which has memory of its own, and returns its status and all that it says.
func (j *flashNodes) ckpt(host int, args ...string) (int, string) {
	j.t.Helper()
	c := j.hosts[host].Command("muster", append([]string{"ckpt"}, args...)...)
	out, err := c.CombinedOutput()
	if err != nil && c.ProcessState == nil {
		j.t.Fatal(err)
	}
	return c.Status(), string(out)
}

// restored is what workers have said of where they began.
func (j *flashNodes) restored() (all []string) {
	for _, a := range j.agents {
		for line := range strings.Lines(a.out.String()) {
			if at := strings.Index(line, "restored "); at >= 0 {
				all = append(all, strings.TrimSpace(line[at:]))
			}
		}
	}
	return all
}

// begins waits until workers have begun so many times, and are at the tenth step after another one.
func (j *flashNodes) begins(what string, step, times int) {
	j.t.Helper()
	testutil.Eventually(j.t, time.Minute, what, func() bool { return len(j.restored()) == times })
	j.hold(step + 10)
	testutil.Eventually(j.t, time.Minute, what+", and trains", func() bool { return j.step() == step+10 })
}

// complete lets the job come to its end, which leaves the last step on disk and no process.
func (j *flashNodes) complete(steps int64) {
	j.t.Helper()
	j.release()
	for host := range j.hosts {
		j.ends(j.agentOn(host), time.Minute, 0)
	}
	found, err := checkpointd.List(filepath.Join(j.dir, "ckpt"))
	if err != nil || len(found) == 0 || found[0].Step != steps || found[0].Verify() != nil || len(found[0].Files) != len(j.hosts) {
		j.t.Fatalf("on disk: %+v: %v", found, err)
	}
	for host, h := range j.hosts {
		if left := h.Processes(); len(left) > 0 {
			j.t.Errorf("left on %s: %v", h.Name, left)
		}
		if _, left := j.ckpt(host, "ls"); left != "no checkpoints in memory\n" {
			j.t.Errorf("left in memory of %s: %s", h.Name, left)
		}
	}
}

// TestNodesFlashCheckpoint has three hosts keep their workers' states in memory, each on two of them. A worker dies,
// with MUSTER_SOAK=1 then a whole host, and the one that leads among them: each time all ranks go on from the same step
// in memory, and what is on disk at the end is the last.
func TestNodesFlashCheckpoint(t *testing.T) {
	testutil.Torch(t)
	t.Parallel()
	const steps = 60
	j := newFlashNodes(t, 3, steps, "--ckpt-replicas=2")
	begins := func(what string, step, times int) {
		t.Helper()
		j.begins(what, step, times)
		time.Sleep(time.Second) // for the copies; a copy that is late is no failure, but an older step
	}
	lose := func(host int) {
		j.hosts[host].PowerOff()
		j.hosts[host].Boot()
		j.start(host, "muster")
	}
	j.hold(10)
	for host := range 3 {
		j.start(host, "muster")
	}
	begins("the job starts", 0, 3)
	j.killWorker(2)
	begins("a worker was killed", 10, 6)
	step, times := 20, 9
	if testutil.Soak() {
		lose(2)
		begins("a host was lost", step, times)
		step, times = step+10, times+3
	}
	lose(0)
	begins("the host that leads was lost", step, times)
	j.complete(steps)
	for i, line := range j.restored() {
		var step, rank int
		var source string
		if _, err := fmt.Sscanf(line, "restored %d %s rank %d", &step, &source, &rank); err != nil {
			t.Fatal(err)
		}
		if source == "disk" || source == "none" && step != -1 {
			t.Errorf("%d: %s", i, line)
		}
	}
}

// TestNodesFlashNoToken has three hosts without a job token keep their own workers' states. After a worker's death all
// go on from memory; after a host's, which serves the store and comes back when the others have chosen another, from
// the newest step on disk.
func TestNodesFlashNoToken(t *testing.T) {
	testutil.Torch(t)
	t.Parallel()
	const steps, count = 30, 3 // two do not go on without the third
	j := newFlashNodes(t, count, steps)
	j.own = slices.DeleteFunc(j.own, func(flag string) bool { return strings.HasPrefix(flag, "--token-file=") })
	j.hold(10)
	for host := range count {
		j.start(host, "muster")
	}
	j.begins("the job starts", 0, count)
	j.killWorker(count - 1)
	j.begins("a worker was killed", 10, 2*count)
	j.hosts[1].PowerOff()
	time.Sleep(12 * time.Second) // the others choose another host for the store, and wait there for the third node
	j.hosts[1].Boot()
	j.start(1, "muster")
	j.begins("a host was lost", 10, 3*count)
	j.complete(steps)
	counts := map[string]int{}
	for _, line := range j.restored() {
		counts[regexp.MustCompile(`restored ([89]|10) `).ReplaceAllString(strings.Split(line, " rank ")[0],
			"restored ")]++ // a save may be late
	}
	if want := map[string]int{"restored -1 none": count, "restored memory": count, "restored disk": count}; !maps.Equal(counts, want) {
		t.Errorf("%v, want %v", counts, want)
	}
}

// TestNodesFlashKilled kills the agents of all hosts, and with MUSTER_SOAK=1 then one: nothing was written to disk, and
// each time all ranks go on from the newest step that was in memory.
func TestNodesFlashKilled(t *testing.T) {
	testutil.Torch(t)
	t.Parallel()
	const steps = 30
	count := 2
	if testutil.Soak() {
		count = 3
	}
	j := newFlashNodes(t, count, steps)
	inMemory := func(step int64) {
		t.Helper()
		testutil.Eventually(t, 20*time.Second, fmt.Sprintf("step %d in memory", step), func() bool {
			for host := range j.hosts {
				if _, listed := j.ckpt(host, "ls"); !regexp.MustCompile(fmt.Sprintf(
					`(?m)^flash +%d +%d .* its job runs; 1 of %d shards`, step, count, count)).MatchString(listed) {
					return false
				}
			}
			return true
		})
	}
	kill := func(hosts ...int) {
		t.Helper()
		for _, host := range hosts {
			if err := j.agentOn(host).Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		for _, host := range hosts {
			a := j.agentOn(host)
			j.ends(a, 20*time.Second, 128+9)
			testutil.Eventually(t, 20*time.Second, "nothing runs", func() bool { return len(j.hosts[host].Processes()) == 0 })
			if !strings.Contains(a.err.String(), checkpointd.HowToGoOn) {
				t.Errorf("the guardian on %s does not say what is left", j.hosts[host].Name)
			}
		}
	}
	all := []int{0, 1, 2}[:count]
	j.hold(10)
	for _, host := range all {
		j.start(host, "muster")
	}
	j.begins("the job starts", 0, count)
	inMemory(10)
	kill(all...)
	if found, err := checkpointd.List(filepath.Join(j.dir, "ckpt")); err != nil || len(found) > 0 {
		t.Errorf("on disk already: %+v: %v", found, err)
	}
	if _, listed := j.ckpt(1, "ls"); !strings.Contains(listed,
		fmt.Sprintf("its job has ended; 1 of %d shards, the others are on other nodes", count)) {
		t.Error(listed)
	}
	if status, said := j.ckpt(1, "save"); status != 1 || !strings.Contains(said, "--rdzv-id") {
		t.Errorf("status %d: %s", status, said)
	}
	for _, host := range all {
		j.start(host, "muster")
	}
	j.begins("all were killed", 10, 2*count)
	want := map[string]int{"restored -1 none": count, "restored 10 memory": count}
	if testutil.Soak() {
		inMemory(20)
		kill(0)
		j.start(0, "muster")
		j.begins("one was killed", 20, 3*count)
		want["restored 20 memory"] = count
	}
	j.complete(steps)
	counts := map[string]int{}
	for _, line := range j.restored() {
		counts[strings.Split(line, " rank ")[0]]++
	}
	if !maps.Equal(counts, want) {
		t.Errorf("%v, want %v", counts, want)
	}
}

// TestNodesPause pauses hosts that train. What their workers have saved to memory is on disk then, the host that
// leads is lost while the job is paused, and all ranks go on from the newest step when it is resumed.
func TestNodesPause(t *testing.T) {
	testutil.Torch(t)
	t.Parallel()
	const steps = 40
	const count = 3
	j := newFlashNodes(t, count, steps, "--ckpt-replicas=2")
	steer := func(host int, verb, says string) {
		t.Helper()
		c := j.hosts[host].Command("muster", verb)
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), says) {
			t.Fatalf("muster %s: %v: %s", verb, err, out)
		}
	}
	paused := func(host int) {
		t.Helper()
		testutil.Eventually(t, time.Minute, "all nodes are paused", func() bool {
			out, _ := j.hosts[host].Command("muster", "status", "-o", "json").CombinedOutput()
			return strings.Count(string(out), `"phase": "Paused"`)+strings.Count(string(out), `"phase":"Paused"`) == count+1
		})
	}
	j.hold(10)
	for host := range count {
		j.start(host, "muster")
	}
	j.begins("the job starts", 0, count)
	steer(1, "pause", "is being paused")
	paused(count - 1)
	testutil.Eventually(t, time.Minute, "the newest step is on disk", func() bool {
		found, err := checkpointd.List(filepath.Join(j.dir, "ckpt"))
		return err == nil && len(found) > 0 && found[0].Step >= 10 && found[0].Verify() == nil
	})
	j.hosts[0].PowerOff()
	j.hosts[0].Boot()
	j.start(0, "muster")
	paused(0)
	if n := len(j.restored()); n != count {
		t.Errorf("workers have begun %d times", n)
	}
	steer(0, "resume", "is resumed")
	j.begins("the job is resumed", 10, 2*count)
	j.complete(steps)
	if said := strings.Join(j.restored(), "\n"); strings.Count(said, "restored 10 memory ") != count {
		t.Errorf("not all ranks have gone on from the newest step in memory:\n%s", said)
	}
}
