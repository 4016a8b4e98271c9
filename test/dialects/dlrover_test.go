package dialects

import (
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"muster/internal/testutil"
	"muster/test/drive"
)

// Another server at DLROVER_MASTER_ADDR is told from a store that is late, and from DLRover's own master.
func TestDLRoverMasterIsRefused(t *testing.T) {
	testutil.Long(t)
	t.Parallel()
	master, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	go func() {
		for {
			conn, err := master.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Write([]byte("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"))
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
		}
	}()
	got := drive.Run(t, []string{"DLROVER_MASTER_ADDR=" + master.Addr().String()}, "dlrover-run", "--nnodes=2", "--no-python", "true")
	for _, want := range []string{
		"DLROVER_MASTER_ADDR=" + master.Addr().String() +
			": a gRPC server answers there, and neither a store of muster nor a master of DLRover: ",
		"hint: muster's agents need no master: run muster store",
	} {
		if !strings.Contains(got.Stderr, want) {
			t.Errorf("no %q in:\n%s", want, got.Stderr)
		}
	}
	if got.Status != 2 || got.Elapsed > time.Minute {
		t.Errorf("status %d after %v", got.Status, got.Elapsed)
	}
}

// Two nodes meet at a store in the place of the master, and their workers at a port that the platform keeps free.
func TestDLRoverNodesMeetAtTheMaster(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	ports := []string{strconv.Itoa(taken.Addr().(*net.TCPAddr).Port), drive.FreePort(t), drive.FreePort(t)}
	store := drive.Start(t, nil, "store", "--bind", "127.0.0.1:0")
	testutil.Eventually(t, 20*time.Second, "the store tells where it listens",
		func() bool { return strings.Contains(store.Out.String(), "\n") })
	environ := []string{
		"DLROVER_MASTER_ADDR=" + strings.TrimSpace(store.Out.String()), "ELASTIC_JOB_NAME=job", "POD_IP=127.0.0.1",
		"HOST_PORTS=" + strings.Join(ports, ","),
		"NODE_NUM=2", "NODE_RANK=0", "NODE_ID=5",
	}
	var nodes []*drive.Job
	for range 2 {
		nodes = append(nodes, drive.Start(t, environ, "dlrover-run", "--auto_config", "--nproc_per_node=2", "--no-python",
			"sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT $ROLE_NAME $TORCHELASTIC_RUN_ID"))
	}
	all := ""
	for _, n := range nodes {
		got := n.End()
		if got.Status != 0 {
			t.Fatalf("status %d:\n%s", got.Status, got.Stderr)
		}
		all += got.Stdout
	}
	for rank := range 4 {
		line := `(?m)^rank ` + strconv.Itoa(rank) + ` of 4 at 127\.0\.0\.1:(` + ports[1] + `|` + ports[2] + `) dlrover-trainer job$`
		if !regexp.MustCompile(line).MatchString(all) {
			t.Errorf("no %s in:\n%s", line, all)
		}
	}
	store.Signal(syscall.SIGTERM)
	if got := store.End(); got.Status != 0 {
		t.Errorf("the store ended with %d:\n%s", got.Status, got.Stderr)
	}
}

// One node takes the first of the ports that is free, and any other where none is.
func TestHostPorts(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	port, free := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port), drive.FreePort(t)
	got := drive.Run(t, []string{"HOST_PORTS=" + port + "," + free}, "dlrover-run", "--no-python", "sh", "-c", "echo $MASTER_PORT")
	if got.Status != 0 || strings.TrimSpace(got.Stdout) != free {
		t.Errorf("status %d, port %q, want %s\n%s", got.Status, got.Stdout, free, got.Stderr)
	}
	got = drive.Run(t, []string{"HOST_PORTS=" + port}, "dlrover-run", "--no-python", "sh", "-c", "echo $MASTER_PORT")
	if got.Status != 0 || strings.TrimSpace(got.Stdout) == port {
		t.Errorf("status %d, port %q\n%s", got.Status, got.Stdout, got.Stderr)
	}
}
