package dialects

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"muster/internal/testutil"
	"muster/test/drive"
)

func TestHorovodrunStatic(t *testing.T) {
	t.Parallel()
	bin := testutil.Peer(t, "horovod")
	dir := t.TempDir()
	got := drive.Run(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, append(drive.Warm("auto"), "--log-level", "error",
		"horovodrun", "-np", "3", "-H", "localhost:2,127.0.0.1:2",
		"--output-filename", dir, "python", "-W", "ignore", drive.HorovodWorker(t, "static_worker.py"))...)
	if got.Status != 0 {
		t.Fatalf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
	for rank := range 3 {
		line := fmt.Sprintf("rank %d of 3: 7\n", rank)
		if !strings.Contains(got.Stdout, fmt.Sprintf("[%d]<stdout>:%s", rank, line)) {
			t.Errorf("no %q in %q", line, got.Stdout)
		}
		if file, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank.%d", rank), "stdout")); err != nil || string(file) != line {
			t.Errorf("rank %d: %q %v", rank, file, err)
		}
	}
}

func TestHorovodrunStatus(t *testing.T) {
	t.Parallel()
	for status, args := range map[int][]string{
		3: {"-np", "2", "sh", "-c", "test $HOROVOD_RANK = 0 || exit 3; exec sleep 100"},
		2: {"-np", "2", "--host-discovery-script", "echo no such thing >&2; exit 7", "true"},
		4: {"-np", "1", "--host-discovery-script", "echo localhost:1", "sh", "-c", "exit 4"},
		0: {"-np", "2", "--host-discovery-script", "echo localhost:2", "true"},
	} {
		if got := drive.Run(t, nil, append([]string{"horovodrun"}, args...)...); got.Status != status {
			t.Errorf("%q: status %d, want %d\n%s%s", args, got.Status, status, got.Stdout, got.Stderr)
		}
	}
	got := drive.Run(t, nil, "horovodrun", "-np", "2", "--elastic-timeout", "1", "--host-discovery-script", "echo localhost:1", "true")
	if got.Status != 75 || !strings.Contains(got.Stderr, "only 1 slots of the 2 needed") {
		t.Errorf("too few slots: status %d\n%s", got.Status, got.Stderr)
	}
}

// The environment of workers is that of the real horovodrun's, but for these.
func TestHorovodrunEnvironment(t *testing.T) {
	t.Parallel()
	bin := testutil.Peer(t, "horovod")
	environ := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "KEPT=a b\nc", "OMP_NUM_THREADS=1"}
	args := func(dir string) []string {
		return []string{
			"-np", "3", "-H", "localhost:2,127.0.0.1:1", "--gloo", "--tcp", "--cycle-time-ms", "3", "sh", "-c",
			"env -0 > " + dir + "/$HOROVOD_RANK",
		}
	}
	read := func(dir string) []map[string]string {
		var all []map[string]string
		for rank := range 3 {
			text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(rank)))
			if err != nil {
				t.Fatal(err)
			}
			env := map[string]string{}
			for kv := range strings.SplitSeq(strings.TrimRight(string(text), "\x00"), "\x00") {
				name, value, _ := strings.Cut(kv, "=")
				env[name] = value
			}
			all = append(all, env)
		}
		return all
	}
	theirDir, ourDir := t.TempDir(), t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "horovodrun"), args(theirDir)...)
	cmd.Env = append(drive.PeerEnviron(), environ...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("horovodrun: %v\n%s", err, out)
	}
	if got := drive.Run(t, environ, append([]string{"horovodrun"}, args(ourDir)...)...); got.Status != 0 {
		t.Fatalf("status %d\n%s", got.Status, got.Stderr)
	}
	theirs, ours := read(theirDir), read(ourDir)
	differ := map[string]string{
		"HOROVOD_GLOO_RENDEZVOUS_PORT": "a free port each time",
		"PWD":                          "of a shell", "OLDPWD": "of a shell", "SHLVL": "of a shell", "_": "of a shell",
		"LC_CTYPE":        "set by its Python where no locale is",
		"XDG_RUNTIME_DIR": "of this test", "MUSTER_RUN_DIR": "muster's own", "MUSTER_AGENT": "muster's own", "MUSTER_ROUND": "muster's own",
		"MUSTER_LAUNCHER": "muster's own",
	}
	for rank := range 3 {
		drop := func(name, _ string) bool { _, ok := differ[name]; return ok }
		maps.DeleteFunc(theirs[rank], drop)
		maps.DeleteFunc(ours[rank], drop)
		if diff := cmp.Diff(theirs[rank], ours[rank]); diff != "" {
			t.Errorf("rank %d (-horovodrun +muster):\n%s", rank, diff)
		}
	}
}

// Hosts are added, a worker is killed, and the others go on.
func TestHorovodrunElastic(t *testing.T) {
	t.Parallel()
	bin := testutil.Peer(t, "horovod")
	dir := t.TempDir()
	hosts := filepath.Join(t.TempDir(), "hosts")
	set := func(text string) {
		if err := os.WriteFile(hosts+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(hosts+".new", hosts); err != nil {
			t.Fatal(err)
		}
	}
	set("localhost:1\n")
	j := drive.Start(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "OMP_NUM_THREADS=1", "HOROVOD_GLOO_TIMEOUT_SECONDS=12"},
		"horovodrun", "-np", "1", "--min-np=1", "--max-np=5", "--verbose", "--host-discovery-script", "cat "+hosts,
		"python", "-W", "ignore", drive.HorovodWorker(t, "elastic_worker.py"), dir)
	// last returns what the workers of a size wrote, by their file.
	world := func(size int) map[string]string {
		found := map[string]string{}
		files, _ := filepath.Glob(filepath.Join(dir, "*:*"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			if fields := strings.Fields(lines[len(lines)-1]); err == nil && len(fields) == 4 && fields[1] == strconv.Itoa(size) &&
				fields[3] == fields[1] {
				found[filepath.Base(file)] = lines[len(lines)-1]
			}
		}
		return found
	}
	reaches := func(size int) map[string]string {
		t.Helper()
		testutil.Eventually(t, 90*time.Second, fmt.Sprintf("a world of %d", size), func() bool { return len(world(size)) == size })
		return world(size)
	}
	first := slices.Collect(maps.Keys(reaches(1)))[0]
	set("localhost:1\n127.0.0.1:1\n")
	second := ""
	for name := range reaches(2) {
		if name != first {
			second = name
		}
	}
	pid, err := strconv.Atoi(second[strings.LastIndex(second, ".")+1:])
	if err != nil || !strings.HasPrefix(second, "127.0.0.1:0.") {
		t.Fatalf("the second worker is %q", second)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if alone := reaches(1); alone[first] == "" {
		t.Errorf("the first worker did not go on: %v", alone)
	}
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := j.End(); got.Status != 0 || strings.Count(got.Stderr, "new world") != 3 {
		t.Errorf("status %d\n%s%s", got.Status, got.Stdout, got.Stderr)
	}
}

// A launcher that is killed leaves no worker behind.
func TestHorovodrunKilled(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprint("100.", os.Getpid())
	j := drive.Start(t, nil, "horovodrun", "-np", "2", "--host-discovery-script", "echo localhost:2", "sleep", mark)
	testutil.Eventually(t, 30*time.Second, "workers run",
		func() bool { return len(drive.Processes(t, "sleep\x00"+mark)) > 2 }) // with the launcher
	if err := j.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	j.End()
	testutil.Eventually(t, 30*time.Second, "no worker is left", func() bool { return len(drive.Processes(t, "sleep\x00"+mark)) == 0 })
}

// A host that is still being reached when the job is told to end does not hold the launcher, nor is anything started
// there later.
func TestHorovodrunInterruptedWhileReaching(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	slow := filepath.Join(dir, "kubexec.sh")
	text := "#!/bin/sh\ntouch " + dir + "/asked\nsleep 3\nshift\nexec sh -c \"$*\"\n"
	if err := os.WriteFile(slow, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	j := drive.Start(t, []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache")}, "--ssh-program", slow, "horovodrun", "-np", "2",
		"--min-np", "1",
		"--host-discovery-script", "echo localhost:1; echo elsewhere:1", "sleep", "1000")
	testutil.Eventually(t, time.Minute, "the other host is being reached", func() bool {
		_, err := os.Stat(filepath.Join(dir, "asked"))
		return err == nil
	})
	if err := j.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan drive.Outcome, 1)
	go func() { ended <- j.End() }()
	select {
	case got := <-ended:
		if got.Status != 143 {
			t.Errorf("status %d, want 143\n%s", got.Status, got.Stderr)
		}
	case <-time.After(30 * time.Second):
		_ = j.Process.Kill()
		t.Fatal("the launcher does not end")
	}
}
