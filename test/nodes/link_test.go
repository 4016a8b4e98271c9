package nodes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/launch/diagnose"
	"muster/test/drive"
)

// cutWorkers has a host take nothing any more that is said to its workers, or by them: all connections but those of the
// store.
const cutWorkers = `add table inet cutworkers
add chain inet cutworkers in { type filter hook input priority 0 ; }
add rule inet cutworkers in iifname "lo" accept
add rule inet cutworkers in tcp dport 29400 accept
add rule inet cutworkers in tcp sport 29400 accept
add rule inet cutworkers in meta l4proto tcp drop
`

// exchanging starts a job of PyTorch on two hosts that exchanges numbers, and waits until it does.
func exchanging(t *testing.T, id string, worker, own []string) (j *nodes, ready string) {
	t.Helper()
	testutil.Torch(t)
	j = newNodes(t, 2, drive.Script(t, "nodes/exchange.py"))
	ready = filepath.Join(j.dir, "ready")
	j.worker, j.own = slices.Concat(j.worker, []string{ready}, worker), append(own, "--grace=1s")
	j.flags = []string{"--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=" + id}
	for host := range 2 {
		j.start(host, "muster")
	}
	testutil.Eventually(t, 2*time.Minute, "the ranks exchange numbers", func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	return j, ready
}

// TestNodesCutLink: where nothing gets through any more between the workers of two hosts, the connection is named, by
// whoever asks and by the look at a hang, and no rank is blamed for anything else.
func TestNodesCutLink(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	j, _ := exchanging(t, "cut", nil, []string{"--hang-timeout=40s", "--on-hang=fail"})
	for host := range 2 {
		cut := j.hosts[host].Command("nft", "-f", "-")
		cut.Stdin = strings.NewReader(cutWorkers)
		if out, err := cut.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	said := func(sentence string) bool {
		return strings.Contains(sentence, "the connection between rank 0 on node ") &&
			strings.Contains(sentence, " does not get through (") && strings.Contains(sentence, "all ranks wait in all_reduce")
	}
	for host := range 2 {
		var v diagnose.Verdict
		testutil.Eventually(t, 30*time.Second, "the cut connection is named", func() bool {
			out, err := j.hosts[host].Command("muster", "diagnose", "-o", "json").Output()
			v = diagnose.Verdict{}
			return err == nil && json.Unmarshal(out, &v) == nil && v.Kind == diagnose.Link
		})
		if !said(v.Sentence) || !slices.Equal(v.Culprits, []int{0, 1}) {
			t.Errorf("asked on host %d: %+v", host, v)
		}
	}
	for host := range 2 {
		j.ends(j.agentOn(host), 2*time.Minute, 124)
		if text := j.agentOn(host).err.String(); !said(text) {
			t.Errorf("host %d does not say why:\n%s", host, text)
		}
	}
}

// TestNodesHangAuto: the time-out is learned from the steps of the workers of two hosts, and one of them that goes on no
// more is named when it is over.
func TestNodesHangAuto(t *testing.T) {
	testutil.SoakOnly(t)
	t.Parallel()
	j, ready := exchanging(t, "auto", []string{"steps"}, []string{"--ckpt=on", "--hang-timeout=auto", "--on-hang=fail"})
	if err := os.WriteFile(ready+".wait", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for host := range 2 {
		j.ends(j.agentOn(host), 5*time.Minute, 124)
		text := j.agentOn(host).err.String()
		for _, says := range []string{
			" (--hang-timeout auto: ", "rank 1 on node ", "has not come to all_reduce: it sleeps at exchange.py:",
		} {
			if !strings.Contains(text, says) {
				t.Errorf("host %d does not say %q:\n%s", host, says, text)
			}
		}
	}
}

// TestNodesHangExclude: the node leaves whose worker the kernel keeps (state D) while the other waits for it, and the
// workers start again without it.
func TestNodesHangExclude(t *testing.T) {
	testutil.Torch(t)
	testutil.SoakOnly(t)
	t.Parallel()
	j := newNodes(t, 2, drive.Script(t, "hang.py"))
	j.worker = append(j.worker, "kernel", filepath.Join(j.dir, "ready"))
	j.own = []string{"--hang-timeout=20s", "--on-hang=dump,exclude", "--grace=1s"}
	j.flags = []string{
		"--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--rdzv-id=d",
		"--rdzv-conf=last_call_timeout=60,join_timeout=120",
	}
	for host := range 2 {
		j.start(host, "muster")
	}
	left := 0
	for host := range 2 {
		a := j.agentOn(host)
		testutil.Eventually(t, 4*time.Minute, "the agent on "+a.Host().Name+" ends", func() bool {
			select {
			case <-a.Ended():
				return true
			default:
				return false
			}
		})
		switch status := a.Status(); status {
		case 0:
		case 80:
			left++
			if text := a.err.String(); !strings.Contains(text,
				"has to leave: rank 1 on node "+a.Host().Name+" has not come to all_reduce") ||
				!strings.Contains(text, "where no signal reaches it") {
				t.Errorf("the node does not say why it leaves:\n%s", text)
			}
		default:
			t.Errorf("status %d on %s", status, a.Host().Name)
		}
	}
	if left != 1 {
		t.Errorf("%d nodes have left", left)
	}
}
