package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// edl is an AITrainingJob with two trainers, no more and no fewer, one of which may be replaced.
const edl = `apiVersion: kongming.cce.baiudbce.com/v1
kind: AITrainingJob
metadata: {name: edl}
spec:
  plugin: {ssh: [""], discovery: [""]}
  replicaSpecs:
    launcher:
      replicaType: master
      template: {spec: {containers: [{name: aitj-0, command: [/bin/bash, -c, %q]}]}}
    trainer:
      replicaType: worker
      replicas: 2
      restartPolicy: OnNodeFail
      restartLimit: 1
      failPolicy: None
      template: {spec: {containers: [{name: aitj-0, command: [/bin/bash, -c, /usr/sbin/sshd && sleep infinity]}]}}
`

// TestHostsAITrainingJob cuts a trainer's host off: the spare host takes its place, though the number of trainers is
// fixed. When that one is cut off, too, the limit is reached: the other trains on alone.
func TestHostsAITrainingJob(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	python := filepath.Join(testutil.Peer(t, "horovod"), "python")
	j := drive.NewHostsJob(t, 3)
	dir, out := t.TempDir(), t.TempDir()
	script := "export HOROVOD_GLOO_TIMEOUT_SECONDS=30 && horovodrun -np 2 --min-np=1 --max-np=2 --host-discovery-script " +
		"/etc/edl/discover_hosts.sh " + python + " -W ignore " + drive.HorovodWorker(t, "elastic_worker.py") + " " + out
	path := filepath.Join(dir, "edl.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, edl, script), 0o600); err != nil {
		t.Fatal(err)
	}
	r := j.Start("run", "-f", path, "--hosts", j.Names())
	trains := func(hosts ...string) {
		t.Helper()
		testutil.Eventually(t, 3*time.Minute, fmt.Sprintf("%s train together", hosts), func() bool {
			together := map[string]bool{}
			for worker, size := range drive.HorovodWorlds(t, out) {
				if host, _, _ := strings.Cut(worker, ":"); size == len(hosts) {
					together[host] = true
				}
			}
			return !slices.ContainsFunc(hosts, func(h string) bool { return !together[h] })
		})
	}
	trains("node1", "node2")
	j.On[1].Cut()
	trains("node1", "node3")
	if said := r.Err.String(); !strings.Contains(said, "edl-trainer-1 (node2) is lost, and edl-trainer-2 (node3) takes its place") {
		t.Errorf("nobody has said what took the place of a lost host:\n%s", said)
	}
	j.On[2].Cut()
	trains("node1")
	testutil.Eventually(t, time.Minute, "the limit was told", func() bool {
		return strings.Contains(r.Err.String(),
			"edl-trainer-2 (node3) is lost, and is not replaced: the limit of 1 is reached (restartLimit)")
	})
	if err := os.WriteFile(filepath.Join(out, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.Ends(r, 0)
}
