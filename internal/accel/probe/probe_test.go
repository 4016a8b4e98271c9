package probe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"muster/internal/accel/nvline"
	"muster/internal/accel/probe"
	"muster/internal/errhint"
	"muster/internal/testutil"
)

func mustRun(t *testing.T, o probe.Options) *probe.Report {
	t.Helper()
	r, err := probe.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func complete(t *testing.T, r *probe.Report) {
	t.Helper()
	if !r.Complete || r.Err() != nil || r.Culprit != nil || r.Hung {
		t.Errorf("incomplete: %v (culprit %v, hung %v)\n%s", r.Err(), r.Culprit, r.Hung, r.Stderr)
	}
}

// incomplete checks how the probe ended, and in which call.
func incomplete(t *testing.T, r *probe.Report, problem string, culprit probe.Culprit) {
	t.Helper()
	if r.Complete || r.Err() == nil || r.Culprit == nil || *r.Culprit != culprit || !strings.Contains(r.Problem, problem) {
		t.Errorf("complete %v, problem %q, culprit %v; want %q in %v", r.Complete, r.Problem, r.Culprit, problem, culprit)
	}
}

func TestHealthyGPUs(t *testing.T) {
	r := mustRun(t,
		options(t, "count=8", "gpu=1", "ecc=2", "rows=1", "pending=1", "action=2", "down=4", "sram=1", "dbe=3", "apart=1", "fabric=3"))
	complete(t, r)
	if want := (probe.Sys{Driver: "550.54.15", NVML: "12.550.54.15", CUDA: 12040}); r.Sys != want {
		t.Errorf("sys %+v", r.Sys)
	}
	if r.Count != 8 || len(r.GPUs) != 8 || r.Fatal != nil || r.GoNVML != nvline.GoNVML {
		t.Fatalf("count %d, %d GPUs, fatal %v, go-nvml %q", r.Count, len(r.GPUs), r.Fatal, r.GoNVML)
	}
	links := []int{1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	want := nvline.GPU{
		Index: 1, UUID: "GPU-00000000-0000-0000-0000-000000000001", Name: "NVIDIA H100 80GB HBM3", BDF: "0000:1c:00.0", Minor: new(1),
		MemTotal: new(uint64(85520809984)), MemUsed: new(uint64(1048576)), MIG: new(false), MIGPending: new(false),
		Persistence: new(true), ComputeMode: new(0), ECC: new(true), ECCPending: new(true), ECCVolatile: new(uint64(2)),
		ECCAggregate: new(uint64(6)),
		SRAM:         new(true), RetiredSBE: new(0), RetiredDBE: new(3), P2P: []int{5}, Fabric: &nvline.Fabric{State: 3},
		TempSlow: new(87), TempMem: new(51), TempMemMax: new(95), Power: new(71234), PowerLimit: new(700000), ClockSM: new(345),
		ClockMem: new(2619),
		Remapped: &nvline.Remapped{Uncorrectable: 1, Pending: true}, Recovery: new(2), NVLink: links,
		PCIeWidth: new(16), PCIeWidthMax: new(16), PCIeGen: new(1), PCIeGenMax: new(5), Clocks: new(uint64(1)), Temperature: new(34),
		Processes: []nvline.Process{{PID: 4242, Mem: new(uint64(4096))}, {PID: 4243}, {PID: 4244}},
	}
	if d := cmp.Diff(want, r.GPUs[1]); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if g := r.GPUs[0]; g.Processes == nil || len(g.Processes) != 0 || *g.ECCVolatile != 0 {
		t.Errorf("GPU 0: %+v", g)
	}
	var na []probe.NA
	for _, v := range r.NA {
		if v.GPU == 2 {
			na = append(na, v)
		}
	}
	if d := cmp.Diff([]probe.NA{{2, "retired_pending", "not_supported"}, {2, "processes", "no_permission"}}, na); d != "" {
		t.Errorf("not available (-want +got)\n%s", d)
	}
	if r.GPUs[2].Processes != nil {
		t.Error("processes without permission are not none")
	}
	t.Logf("took %v", r.Took)
}

// Counters and reasons are read as often as was asked, a second apart.
func TestMoments(t *testing.T) {
	o := options(t, "count=2", "gpu=1", "crc=7", "replays=2")
	o.Moments = 2
	r := mustRun(t, o)
	complete(t, r)
	if len(r.Moments) != 2 || r.Moments[0].At >= r.Moments[1].At || r.Took < time.Second {
		t.Fatalf("after %v: %+v", r.Took, r.Moments)
	}
	want := nvline.Sample{
		Clocks: new(uint64(1)), PCIeReplays: new(4), NVLinkCRC: new(uint64(14)), NVLinkReplay: new(uint64(0)),
		NVLinkRecover: new(uint64(0)),
	}
	if d := cmp.Diff(want, r.Moments[1].GPUs[1]); d != "" || len(r.Moments[1].GPUs) != 2 || *r.Moments[0].GPUs[1].PCIeReplays != 2 {
		t.Errorf("(-want +got)\n%s%+v", d, r.Moments)
	}
}

func TestNoGPUs(t *testing.T) {
	r := mustRun(t, options(t, "count=0"))
	complete(t, r)
	if r.Count != 0 || len(r.GPUs) != 0 || r.Fatal != nil {
		t.Errorf("%+v", r)
	}
}

func TestLibraryAbsent(t *testing.T) {
	r := mustRun(t, with(t, realProbe(t), "/nonexistent/libnvidia-ml.so.1"))
	complete(t, r)
	if r.Fatal == nil || r.Fatal.RC != nvline.LibraryNotFound || r.Fatal.Call != "dlopen" ||
		!strings.Contains(r.Fatal.String(), "/nonexistent/libnvidia-ml.so.1") {
		t.Errorf("fatal %+v", r.Fatal)
	}
}

// Something that is no library is told from one that is not there.
func TestLibraryOfAnotherKind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if err := os.WriteFile(path, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := mustRun(t, with(t, realProbe(t), path))
	complete(t, r)
	if r.Fatal == nil || !strings.Contains(r.Fatal.Why, "too short") && !strings.Contains(r.Fatal.Why, "invalid ELF header") {
		t.Errorf("fatal %+v", r.Fatal)
	}
}

func TestDriverMismatch(t *testing.T) {
	r := mustRun(t, options(t, "init=18"))
	complete(t, r)
	if r.Fatal == nil || r.Fatal.RC != nvline.VersionMismatch || r.Fatal.Call != "nvmlInit_v2" ||
		!strings.Contains(r.Fatal.String(), "driver and library differ") {
		t.Errorf("fatal %v", r.Fatal)
	}
}

func TestLostGPU(t *testing.T) {
	r := mustRun(t, options(t, "lost=3"))
	complete(t, r)
	if len(r.GPUs) != 8 {
		t.Fatalf("%d GPUs", len(r.GPUs))
	}
	if g := r.GPUs[3]; g.RC != nvline.GPULost || g.Call != "nvmlDeviceGetHandleByIndex_v2" || g.UUID != "" {
		t.Errorf("GPU 3: %+v", g)
	}
	if g := r.GPUs[4]; g.RC != 0 || g.UUID == "" {
		t.Errorf("GPU 4: %+v", g)
	}
}

// A GPU that falls off the bus while it is asked keeps what it said, and is not asked more.
func TestGPULostOnTheWay(t *testing.T) {
	r := mustRun(t, options(t, "dies=3"))
	complete(t, r)
	if g := r.GPUs[3]; g.RC != nvline.GPULost || g.Call != "nvmlDeviceGetMemoryInfo" || g.UUID == "" || g.Temperature != nil ||
		g.Processes != nil {
		t.Errorf("GPU 3: %+v", g)
	}
}

func TestMissingSymbol(t *testing.T) {
	r := mustRun(t, with(t, realProbe(t), fakeOldLibrary(t), "count=2"))
	complete(t, r)
	var why []string
	for _, na := range r.NA {
		if na.Field == "remapped_rows" {
			why = append(why, na.Why)
		}
	}
	if d := cmp.Diff([]string{"symbol", "symbol"}, why); d != "" || len(r.GPUs) != 2 || r.GPUs[0].Remapped != nil ||
		r.GPUs[0].Temperature == nil {
		t.Errorf("(-want +got)\n%s%+v", d, r.GPUs)
	}
}

func TestHang(t *testing.T) {
	o := options(t, "hang=nvmlDeviceGetHandleByIndex_v2:3")
	o.Timeout = 500 * time.Millisecond
	begin := time.Now()
	r := mustRun(t, o)
	incomplete(t, r, "hung for 500ms and was killed", probe.Culprit{Call: "nvmlDeviceGetHandleByIndex_v2", GPU: 3})
	if !r.Hung || r.Abandoned != nil || len(r.GPUs) != 3 || r.Count != 8 {
		t.Errorf("hung %v, abandoned %v, %d GPUs", r.Hung, r.Abandoned, len(r.GPUs))
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if want := "the NVML probe hung for 500ms and was killed in nvmlDeviceGetHandleByIndex_v2 of GPU 3"; r.Err().Error() != want {
		t.Errorf("error %q", r.Err())
	}
}

func TestHangInInit(t *testing.T) {
	o := options(t, "hang=nvmlInit_v2:-1")
	o.Timeout = 500 * time.Millisecond
	incomplete(t, mustRun(t, o), "hung for 500ms", probe.Culprit{Call: "nvmlInit_v2", GPU: -1})
}

func TestAbort(t *testing.T) {
	r := mustRun(t, options(t, "abort=nvmlDeviceGetMemoryInfo:5"))
	incomplete(t, r, "SIGABRT", probe.Culprit{Call: "nvmlDeviceGetMemoryInfo", GPU: 5})
	if r.Hung || len(r.GPUs) != 5 {
		t.Errorf("hung %v, %d GPUs", r.Hung, len(r.GPUs))
	}
}

// What the library prints is not the probe's word, however much it is and whatever it looks like.
func TestLibraryPrints(t *testing.T) {
	r := mustRun(t, options(t, "print=1000000"))
	complete(t, r)
	if len(r.GPUs) != 8 || !strings.Contains(r.Stderr, "a complaint from the library") || len(r.Stderr) != 64<<10 {
		t.Errorf("%d GPUs, %d bytes of complaints", len(r.GPUs), len(r.Stderr))
	}
}

func TestGarbage(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"another program": {"echo hello there", `begins with "hello there"`},
		"silence":         {"exit 3", "it said nothing; it exited with status 3"},
		"binary":          {`printf '\000\001\002\n'`, "begins with"},
		"another version": {`echo '{"t":"hello","v":9}'`, "it speaks version 9"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := probe.Run(t.Context(), script(t, c.script))
			if !errors.Is(err, probe.ErrUnavailable) || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "$MUSTER_NVPROBE: ") {
				t.Errorf("error %v; want %q", err, c.want)
			}
		})
	}
	r := mustRun(t,
		script(t, `echo '{"t":"hello","v":1}'; echo '{"t":"at","call":"nvmlX","gpu":2}'; echo '{"t":[[[ NVRM'; echo '{"t":"done"}'`))
	incomplete(t, r, "not in its language", probe.Culprit{Call: "nvmlX", GPU: 2})
}

func TestFlood(t *testing.T) {
	r := mustRun(t, script(t, `echo '{"t":"hello","v":1}'; echo '{"t":"at","call":"nvmlX","gpu":0}'; exec yes`))
	incomplete(t, r, "wrote more than 4194304 bytes and was killed", probe.Culprit{Call: "nvmlX", GPU: 0})
	if r.Hung {
		t.Error("a flood is no hang")
	}
}

// Variables that would keep the probe from starting, or load something else into it, do not reach it.
func TestEnvironmentIsScrubbed(t *testing.T) {
	o := options(t)
	o.Environ = append(o.Environ, "LD_BIND_NOW=1", "LD_PRELOAD=/nonexistent/preload.so", "LD_AUDIT=/nonexistent/audit.so",
		"GODEBUG=inittrace=1")
	r := mustRun(t, o)
	complete(t, r)
	if r.Stderr != "" {
		t.Errorf("stderr %q", r.Stderr)
	}
	// The same without our care: this is why.
	cmd := exec.Command(realProbe(t))
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "undefined symbol") {
		t.Errorf("with LD_BIND_NOW: %v\n%s", err, out)
	}
}

func TestLibraryPath(t *testing.T) {
	o := options(t)
	o.Environ = append(o.Environ, nvline.LibraryVariable+"=", "LD_LIBRARY_PATH="+filepath.Dir(fakeLibrary(t)))
	r := mustRun(t, o)
	complete(t, r)
	if len(r.GPUs) != 8 {
		t.Errorf("%d GPUs", len(r.GPUs))
	}
}

// embed makes the real probe the embedded one for a test.
func embed(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(realProbe(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(probe.SetBlob(string(b)))
}

// embedded returns options that have only the embedded probe, and a directory for files.
func embedded(t *testing.T) probe.Options {
	t.Helper()
	o := options(t)
	o.Environ = append(o.Environ, probe.Variable+"=", "TMPDIR="+t.TempDir(), "PATH=/nonexistent")
	embed(t)
	return o
}

func TestFromMemory(t *testing.T) {
	before := openFiles(t)
	o := embedded(t)
	var slowest time.Duration
	for range 5 {
		r := mustRun(t, o)
		complete(t, r)
		if r.Via != "memfd" || len(r.GPUs) != 8 {
			t.Fatalf("via %q, %d GPUs", r.Via, len(r.GPUs))
		}
		slowest = max(slowest, r.Took)
	}
	t.Logf("slowest of 5: %v", slowest)
	if after := openFiles(t); after > before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestFromFile(t *testing.T) {
	o := embedded(t)
	o.Exec = probe.ExecFile
	dir := t.TempDir()
	o.Environ = append(o.Environ, "TMPDIR="+dir)
	r := mustRun(t, o)
	complete(t, r)
	if filepath.Dir(r.Via) != dir {
		t.Errorf("via %q", r.Via)
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// under runs the embedded probe in a process with obstacles; namespaces says that they need a mount namespace.
func under(t *testing.T, obstacles string, namespaces bool, env ...string) outcome {
	t.Helper()
	o := options(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(o.Environ, probe.Variable+"=", "PATH=/nonexistent", "XDG_CACHE_HOME="+t.TempDir(), roleVariable+"="+obstacles,
		"PROBE_TEST_BLOB="+realProbe(t))
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if namespaces {
		if os.Getuid() != 0 {
			testutil.Missing(t, "root, for a mount namespace")
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} // with private propagation
	}
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var out outcome
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%v: %q", err, b)
	}
	return out
}

func TestMemfdDenied(t *testing.T) {
	dir := t.TempDir()
	out := under(t, "no-memfd", false, "TMPDIR="+dir)
	if !out.Complete || filepath.Dir(out.Via) != dir || out.GPUs != 8 {
		t.Errorf("%+v", out)
	}
}

func TestNoexecDirectory(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	out := under(t, "no-memfd,noexec", true, "TMPDIR="+dir, "XDG_CACHE_HOME="+cache)
	if !out.Complete || filepath.Dir(out.Via) != cache || out.GPUs != 8 {
		t.Errorf("%+v", out)
	}
	// From memory nobody asks where files may be executed.
	if out := under(t, "noexec", true, "TMPDIR="+dir); out.Via != "memfd" || !out.Complete {
		t.Errorf("%+v", out)
	}
}

func TestEveryAttemptIsNamed(t *testing.T) {
	out := under(t, "no-memfd,noexec", true, "TMPDIR="+t.TempDir(), "PROBE_TEST_EXEC=memfd")
	if !strings.Contains(out.Err, "memfd: memfd_create: operation not permitted") || !strings.Contains(out.Err, "PATH: has no nvprobe") {
		t.Errorf("%+v", out)
	}
	restore := probe.SetBlob("")
	defer restore()
	_, err := probe.Run(t.Context(), probe.Options{Executable: "/opt/bin/muster", Environ: []string{"PATH=relative:/nonexistent"}})
	want := "cannot run the NVML probe: /opt/bin/nvprobe: no such file or directory; PATH: has no nvprobe; this muster was built " +
		"without one"
	if err == nil || err.Error() != want || !errors.Is(err, probe.ErrUnavailable) || !strings.Contains(errhint.Of(err), probe.Variable) {
		t.Errorf("error %v (hint %q)", err, errhint.Of(err))
	}
	// Who names a probe gets no other one.
	_, err = probe.Run(t.Context(), probe.Options{Environ: []string{probe.Variable + "=/nonexistent/nvprobe"}})
	if err == nil || strings.Contains(err.Error(), "PATH") || !strings.Contains(err.Error(), "$MUSTER_NVPROBE: no such file") {
		t.Errorf("error %v", err)
	}
}

// Without the proc file system a memfd cannot be named; a file can.
func TestWithoutProc(t *testing.T) {
	dir := t.TempDir()
	out := under(t, "no-proc", true, "TMPDIR="+dir)
	if !out.Complete || filepath.Dir(out.Via) != dir {
		t.Errorf("%+v", out)
	}
}

func TestNoLoader(t *testing.T) {
	b, err := os.ReadFile(realProbe(t))
	if err != nil {
		t.Fatal(err)
	}
	// As on musl or in an empty image: the file is there and its interpreter is not.
	i := bytes.Index(b, []byte("/lib64/ld-linux"))
	if i < 0 {
		if i = bytes.Index(b, []byte("/lib/ld-linux")); i < 0 {
			t.Skip("no known interpreter in the probe")
		}
	}
	b[i+1] = 'x'
	o := embedded(t)
	defer probe.SetBlob(string(b))()
	_, err = probe.Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "memfd: this system has no glibc loader") || strings.Contains(err.Error(), "PATH") {
		t.Errorf("error %v", err)
	}
}

func TestInstalledProbe(t *testing.T) {
	o := options(t)
	dir := filepath.Dir(realProbe(t))
	o.Environ = append(o.Environ, probe.Variable+"=", "PATH=/nonexistent:"+dir)
	restore := probe.SetBlob("")
	defer restore()
	for name, executable := range map[string]string{"beside": dir + "/muster", "on PATH": "/nonexistent/muster"} {
		t.Run(name, func(t *testing.T) {
			o.Executable = executable
			r := mustRun(t, o)
			complete(t, r)
			if r.Via != realProbe(t) {
				t.Errorf("via %q", r.Via)
			}
		})
	}
}

func TestCanceled(t *testing.T) {
	o := options(t, "hang=nvmlInit_v2:-1")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("enough"))
	defer cancel()
	if r, err := probe.Run(ctx, o); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestSwitchedOff(t *testing.T) {
	if _, err := probe.Run(t.Context(), probe.Options{Exec: probe.ExecNone}); !errors.Is(err, probe.ErrUnavailable) {
		t.Errorf("none: %v", err)
	}
	if _, err := probe.Run(t.Context(), probe.Options{Exec: "always"}); errhint.CodeOf(err) != errhint.Usage {
		t.Errorf("always: %v", err)
	}
}

func TestNoSecondProbeAfterAnAbandonedOne(t *testing.T) {
	probe.SetAbandoned(4711)
	defer probe.ForgetAbandoned()
	if _, err := probe.Run(t.Context(), script(t, "exit 0")); !errors.Is(err, probe.ErrAbandoned) ||
		!strings.Contains(err.Error(), "4711") {
		t.Errorf("error %v", err)
	}
}

// A probe in uninterruptible sleep: a write to a file system that is frozen. Everybody who syncs waits for as long.
func TestUninterruptible(t *testing.T) {
	testutil.Long(t)
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil || os.Getuid() != 0 {
			t.Skipf("%s or root is missing", tool)
		}
	}
	dir := t.TempDir()
	image, mnt := dir+"/image", dir+"/mnt"
	sh := exec.Command("sh", "-ec", `truncate -s 8M "$1"; mkfs.ext4 -q "$1"; mkdir "$2"; mount -o loop "$1" "$2"`, "sh", image, mnt)
	if out, err := sh.CombinedOutput(); err != nil {
		t.Skipf("loop mounts are not to be had: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mnt).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	o := options(t, "stuck=nvmlDeviceGetHandleByIndex_v2:3", "block="+mnt+"/file")
	o.Timeout = time.Second
	at, err := os.Open(mnt)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = at.Close() }()
	const freeze, thaw = 0xc0045877, 0xc0045878 // FIFREEZE and FITHAW of linux/fs.h
	if err := os.WriteFile(mnt+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(at.Fd()), freeze, 0); err != nil {
		t.Skipf("cannot freeze: %v", err)
	}
	r, err := probe.Run(t.Context(), o)
	if thawed := unix.IoctlSetInt(int(at.Fd()), thaw, 0); thawed != nil {
		t.Errorf("cannot thaw: %v", thawed)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer probe.ForgetAbandoned()
	incomplete(t, r, "hung for 1s", probe.Culprit{Call: "nvmlDeviceGetHandleByIndex_v2", GPU: 3})
	if !r.Hung || r.Abandoned == nil || r.Abandoned.State != "D" || r.Took > 10*time.Second || len(r.GPUs) != 3 {
		t.Fatalf("hung %v, abandoned %v, took %v, %d GPUs", r.Hung, r.Abandoned, r.Took, len(r.GPUs))
	}
	t.Logf("%v after %v", r.Err(), r.Took)
	if _, err := probe.Run(t.Context(), o); !errors.Is(err, probe.ErrAbandoned) {
		t.Errorf("a second probe: %v", err)
	}
	testutil.Eventually(t, 30*time.Second, "the abandoned probe ends when the file system thaws", func() bool {
		return errors.Is(unix.Kill(r.Abandoned.PID, 0), unix.ESRCH)
	})
}

func TestDescribe(t *testing.T) {
	restore := probe.SetBlob("")
	if d := probe.Describe(); d.Embedded || !strings.Contains(d.String(), "none inside") {
		t.Errorf("%v", d)
	}
	restore()
	defer probe.SetBlob("probe")()
	d := probe.Describe()
	if !d.Embedded || d.Bytes == 0 || d.GoNVML != nvline.GoNVML {
		t.Errorf("%+v", d)
	}
}
