package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// edl is the AITrainingJob of Baidu's guide: a launcher with a command, and trainers with rules of their own.
const edl = `apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata: {name: edl}
spec:
  completePolicy: Any
  failPolicy: Any
  faultTolerant: true
  plugin: {ssh: [""], discovery: [""]}
  %s
  replicaSpecs:
    launcher:
      replicaType: master
      restartPolicy: OnNodeFailWithExitCode
      faultTolerantPolicy: [{exitCodes: "129,101", restartPolicy: ExitCode, restartScope: Pod}]
      restartLimit: 2
      template: {spec: {containers: [{name: aitj-0, command: [/bin/bash, -c, %q]}]}}
    trainer:
      replicaType: worker
      replicas: %d
      minReplicas: 1
      maxReplicas: 5
      %s
      template: {spec: {containers: [{name: aitj-0, command: [/bin/bash, -c, /usr/sbin/sshd && sleep infinity]}]}}
`

// hostsOf are the hosts whose workers had a world of this size last, sorted.
func hostsOf(sizes map[string]int, size int) (hosts []string) {
	for name, s := range sizes {
		if host, _, _ := strings.Cut(name, ":"); s == size {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// loseHost kills the agent of a host, the parent of its workers, as if its machine were lost.
func loseHost(t *testing.T, runtimeDir, id, host string) {
	t.Helper()
	answer, _ := drive.StatusOf(t, runtimeDir, id)
	for _, r := range answer.Ranks {
		if r.Node != host {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.PID))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		parent, err := strconv.Atoi(fields[1])
		if err == nil {
			err = syscall.Kill(parent, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no worker is on %s: %+v", host, answer.Ranks)
}

// TestAITrainingJobHorovod trains with real Horovod: a host is lost, and one with another name takes its place, also where
// nobody has asked for that; hosts are added and taken away, and a third loss is beyond the limit.
func TestAITrainingJobHorovod(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	python := filepath.Join(testutil.Peer(t, "horovod"), "python")
	dir := t.TempDir()
	script := "export HOROVOD_GLOO_TIMEOUT_SECONDS=30 && horovodrun -np 2 --min-np=1 --max-np=5 --host-discovery-script " +
		"/etc/edl/discover_hosts.sh " + python + " -W ignore " + drive.HorovodWorker(t, "elastic_worker.py") + " " + dir
	j := drive.Start(t, nil, "run", "-f",
		writeJob(t, fmt.Sprintf(edl, "", script, 2, "failPolicy: None\n      restartPolicy: OnNodeFail\n      restartLimit: 2")))
	train := func(hosts ...string) {
		t.Helper()
		testutil.Eventually(t, 3*time.Minute, fmt.Sprintf("%s train together", hosts), func() bool {
			got := hostsOf(drive.HorovodWorlds(t, dir), len(hosts))
			for _, h := range hosts {
				if !slices.Contains(got, h) {
					return false
				}
			}
			return true
		})
	}
	train("127.0.0.1", "127.0.0.2")
	drive.Beside(t, j.RuntimeDir, "scale", "9", "edl").Expect(t, 2, "of its file allow 1 to 5")
	drive.Beside(t, j.RuntimeDir, "kill-node", "edl-trainer-7", "edl").Expect(t, 2, `no host "edl-trainer-7"`, "edl-trainer-1 (127.0.0.2)")
	drive.Beside(t, j.RuntimeDir, "scale", "3", "edl").Expect(t, 0, "finds 3 hosts from now on: edl-trainer-2 (127.0.0.3)")
	train("127.0.0.1", "127.0.0.2", "127.0.0.3")
	drive.Beside(t, j.RuntimeDir, "kill-node", "edl-trainer-1", "edl").Expect(t, 0,
		"edl-trainer-1 (127.0.0.2) is lost, and edl-trainer-3 (127.0.0.4) takes its place")
	train("127.0.0.1", "127.0.0.3", "127.0.0.4")
	loseHost(t, j.RuntimeDir, "edl-hosts", "127.0.0.4")
	train("127.0.0.1", "127.0.0.3", "127.0.0.5")
	if said := j.Err.String(); !strings.Contains(said, "edl-trainer-3 (127.0.0.4) is lost, and edl-trainer-4 (127.0.0.5) takes its place") {
		t.Errorf("nobody has said what took the place of a lost host:\n%s", said)
	}
	drive.Beside(t, j.RuntimeDir, "kill-node", "127.0.0.5", "edl").Expect(t, 0, "is not replaced: the limit of 2 is reached")
	train("127.0.0.1", "127.0.0.3")
	drive.Beside(t, j.RuntimeDir, "scale", "1", "edl").Expect(t, 0, "no more edl-trainer-2 (127.0.0.3)")
	train("127.0.0.1")
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := j.End(); got.Status != 0 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}
