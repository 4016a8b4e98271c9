package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	fewHosts  = 8
	manyHosts = 64
)

// overHosts measures jobs that muster starts on hosts over ssh, beside those of colossalai run and deepspeed on the
// same hosts, and reading command lines.
func overHosts(ctx context.Context, b *bench) (rows []row, err error) {
	rows, err = b.onFewHosts(ctx)
	if errors.Is(err, errNoSSHD) {
		rows, err = []row{{Figure: "jobs on hosts over ssh", Skip: err.Error()}}, nil
	} else if err == nil {
		var many row
		many, err = b.onManyHosts(ctx)
		rows = append(rows, many)
	}
	if err != nil {
		return nil, err
	}
	r, err := b.dryRuns(ctx)
	return append(rows, r), err
}

// hostLauncher is a program that starts a worker on each of some hosts.
type hostLauncher struct {
	launcher
	missing string // why it is not there
	spec    func(masterPort int) jobSpec
}

// overSSH is muster with one worker on each host. A port makes it take ssh although the addresses are this machine's.
func (b *bench) overSSH(h *hosts) (hostLauncher, error) {
	file, err := h.hostfile("hosts-muster", fmt.Sprintf(" slots=1 port=%d", h.port))
	return hostLauncher{launcher: b.native(), spec: func(int) jobSpec {
		return jobSpec{args: []string{"--log-level", "warn", "--hostfile", file, "--", b.program("host.sh")}}
	}}, err
}

func (b *bench) native() launcher {
	return launcher{name: b.muster.name, argv: []string{b.binary, "run"}}
}

// peer finds the folder with the programs of a launcher that scripts/peers installs, beside the one with PyTorch.
func (b *bench) peer(name string) (bin, missing string) {
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(b.torch), name+"-*", ".complete")) // the pattern is well-formed
	if len(found) != 1 {
		return "", name + " is not installed (make deps)"
	}
	return filepath.Join(filepath.Dir(found[0]), "bin"), ""
}

// withPath is the entry of the environment by which some folders come before others.
func withPath(dirs ...string) string {
	return "PATH=" + strings.Join(dirs, ":") + ":" + os.Getenv("PATH") //nolint:forbidigo // the caller's PATH behind them
}

// peersOnHosts are colossalai run, and deepspeed with pdsh.
func (b *bench) peersOnHosts(h *hosts) ([]hostLauncher, error) {
	names, err := h.hostfile("hosts-colossalai", "")
	if err != nil {
		return nil, err
	}
	slots, err := h.hostfile("hosts-deepspeed", " slots=1")
	if err != nil {
		return nil, err
	}
	colossalai, lacksColossalai := b.peer("colossalai")
	deepspeed, lacksDeepspeed := b.peer("deepspeed")
	if _, err := exec.LookPath("pdsh"); err != nil && lacksDeepspeed == "" {
		lacksDeepspeed = "there is no pdsh (Debian's pdsh)"
	}
	return []hostLauncher{
		{launcher{"colossalai run", []string{filepath.Join(colossalai, "colossalai"), "run"}}, lacksColossalai, func(port int) jobSpec {
			return jobSpec{env: []string{withPath(colossalai)}, args: []string{
				"--hostfile", names, "--nproc_per_node", "1", "--master_addr", h.addrs[0], "--master_port", strconv.Itoa(port),
				"--ssh-port", strconv.Itoa(h.port), b.program("host.py"),
			}}
		}},
		{launcher{"deepspeed", []string{filepath.Join(deepspeed, "deepspeed")}}, lacksDeepspeed, func(port int) jobSpec {
			return jobSpec{env: []string{withPath(h.home, deepspeed), "DS_ACCELERATOR=cpu"}, args: []string{
				"--hostfile", slots, "--launcher", "pdsh", "--master_addr", h.addrs[0], "--master_port", strconv.Itoa(port),
				"--no_python", "--no_local_rank", b.program("host.sh"),
			}}
		}},
	}, nil
}

func startFigure(n int, hosts string) string {
	return fmt.Sprintf("%d %s over ssh, command start to the last worker's first instruction", n, hosts)
}

// startOnHosts measures from the command to the first instruction of the last worker, in s.
func (b *bench) startOnHosts(ctx context.Context, h *hosts, l hostLauncher) (_ float64, err error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", h.addrs[0]+":0")
	if err != nil {
		return 0, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return 0, err
	}
	j, err := h.start(ctx, b, l.launcher, l.spec(port))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, j.end(), h.clear()) }()
	status, err := j.wait(5 * time.Minute)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s ended with status %d%s", l.name, status, j.lastWords())
	}
	if err != nil {
		return 0, err
	}
	began, err := j.waitStamps(ctx, len(h.addrs))
	if err != nil {
		return 0, err
	}
	last := slices.MaxFunc(began, func(a, b stamp) int { return a.at.Compare(b.at) })
	return last.at.Sub(j.began).Seconds(), nil
}

// onFewHosts measures starts in turn with the peers, the memory of the launcher, and what becomes of a job whose
// launcher is killed.
func (b *bench) onFewHosts(ctx context.Context) (rows []row, err error) {
	const turns = 3
	h, err := b.openHosts(ctx, fewHosts, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	ours, err := b.overSSH(h)
	if err != nil {
		return nil, err
	}
	peers, err := b.peersOnHosts(h)
	if err != nil {
		return nil, err
	}
	log.Printf("hosts: %d of them over ssh, %d times, the peers half as often", fewHosts, turns*len(peers))
	bringing, err := b.startOnHosts(ctx, h, ours)
	if err != nil {
		return nil, err
	}
	var took []float64
	times := make([][]float64, len(peers))
	for range turns {
		for i, p := range peers {
			if p.missing == "" {
				seconds, err := b.startOnHosts(ctx, h, p)
				if err != nil {
					return nil, err
				}
				times[i] = append(times[i], seconds)
			}
			seconds, err := b.startOnHosts(ctx, h, ours)
			if err != nil {
				return nil, err
			}
			took = append(took, seconds)
		}
	}
	for i, p := range peers {
		r := row{
			Figure: startFigure(fewHosts, "hosts") + ", beside " + p.name,
			Ours:   median(took), Unit: "s", Budget: "≤ 1 s and ≤ 1/10",
		}
		r.Pass = r.Ours <= 1
		r.Note = spread(measured{b.muster.name, took}, r.Unit) + fmt.Sprintf("; %.2f s with bringing the binary there", bringing)
		if p.missing != "" {
			r.PeerText = "–"
			r.Note += "; " + p.missing
		} else {
			theirs := median(times[i])
			r.Peer, r.Ratio = &theirs, r.Ours/theirs
			r.Pass = r.Pass && r.Ratio <= 1.0/10
			r.Note += "; " + spread(measured{p.name, times[i]}, r.Unit)
		}
		rows = append(rows, r)
	}
	stay := filepath.Join(h.dir, "stay")
	if err := os.WriteFile(stay, nil, 0o600); err != nil {
		return nil, err
	}
	memory, err := b.memoryOnHosts(ctx, h, ours)
	if err != nil {
		return nil, err
	}
	killed, err := b.killOnHosts(ctx, h, ours)
	return append(rows, memory, killed), err
}

// stay starts a job whose workers stay, and returns when all of them run.
func (b *bench) stay(ctx context.Context, h *hosts, l hostLauncher) (*job, error) {
	j, err := h.start(ctx, b, l.launcher, l.spec(0))
	if err != nil {
		return nil, err
	}
	if _, err := j.waitStamps(ctx, len(h.addrs)); err != nil {
		return nil, errors.Join(err, j.end(), h.clear())
	}
	time.Sleep(time.Second) // let it settle, as it would be during training
	return j, nil
}

// memoryOnHosts sums the proportional set sizes of the launcher's processes here, in MB. The agents run the same
// binary, so that less of it is counted here than on a machine with the launcher alone.
func (b *bench) memoryOnHosts(ctx context.Context, h *hosts, l hostLauncher) (row, error) {
	var took []float64
	for range 3 {
		j, err := b.stay(ctx, h, l)
		if err != nil {
			return row{}, err
		}
		var remote []stamp
		for _, pid := range h.processes() {
			remote = append(remote, stamp{pid: pid})
		}
		mb, err := j.ownMemory(remote)
		if err := errors.Join(err, j.end(), h.clear()); err != nil {
			return row{}, err
		}
		took = append(took, mb)
	}
	r := row{Figure: fmt.Sprintf("memory of the launcher of %d hosts", fewHosts), Ours: median(took), Unit: "MB", Budget: "≤ 30 MB"}
	r.Pass, r.Note = r.Ours <= 30, spread(measured{b.muster.name, took}, r.Unit)
	return r, nil
}

// killOnHosts measures from SIGKILL of the launcher until nothing of the job is left on the hosts, in s; the longest
// time counts.
func (b *bench) killOnHosts(ctx context.Context, h *hosts, l hostLauncher) (row, error) {
	const runs, patience = 10, 30 * time.Second
	log.Printf("hosts: SIGKILL of the launcher, %d times", runs)
	r := row{
		Figure: fmt.Sprintf("SIGKILL of the launcher to no process on its %d hosts, the longest of %d", fewHosts, runs), Unit: "s",
		Budget: "≤ 5 s",
	}
	var took []float64
	for range runs {
		j, err := b.stay(ctx, h, l)
		if err != nil {
			return row{}, err
		}
		killed := time.Now()
		err = j.cmd.Process.Signal(syscall.SIGKILL)
		for err == nil && len(h.processes()) > 0 {
			if time.Since(killed) > patience {
				err = fmt.Errorf("processes %v are left on the hosts %v after the launcher's end", h.processes(), patience)
			}
			time.Sleep(5 * time.Millisecond)
		}
		took = append(took, time.Since(killed).Seconds())
		if err := errors.Join(err, j.end(), h.clear()); err != nil {
			return row{}, err
		}
	}
	r.Ours, r.Note = slices.Max(took), spread(measured{b.muster.name, took}, r.Unit)
	r.Pass = r.Ours <= 5
	return r, nil
}

// inodesRest is the pause between jobs of many agents on one file system. ext4 uses no inode again within five seconds,
// and each new file is searched for past all that the job before has freed: a tenth of the processor time of a start.
const inodesRest = 6 * time.Second

// onManyHosts measures starts on logical hosts of one sshd.
func (b *bench) onManyHosts(ctx context.Context) (_ row, err error) {
	const runs = 5
	log.Printf("hosts: %d logical ones over ssh, %d times", manyHosts, runs)
	h, err := b.openHosts(ctx, manyHosts, true)
	if err != nil {
		return row{}, err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	l, err := b.overSSH(h)
	if err != nil {
		return row{}, err
	}
	if _, err := b.startOnHosts(ctx, h, l); err != nil { // brings the binary there
		return row{}, err
	}
	var took []float64
	for range runs {
		time.Sleep(inodesRest)
		seconds, err := b.startOnHosts(ctx, h, l)
		if err != nil {
			return row{}, err
		}
		took = append(took, seconds)
	}
	r := row{Figure: startFigure(manyHosts, "logical hosts"), Ours: median(took), Unit: "s", Budget: "≤ 5 s"}
	r.Pass, r.Note = r.Ours <= 5, spread(measured{b.muster.name, took}, r.Unit)
	return r, nil
}

// dryRuns measures one command line of each launcher with --dry-run, from the start of the process to its end, in ms.
func (b *bench) dryRuns(ctx context.Context) (row, error) {
	const runs = 11
	log.Printf("hosts: --dry-run of each launcher's command line, %d times", runs)
	script := b.program("allreduce.py")
	files := map[string]string{
		"few-hosts": "127.0.0.2\n127.0.0.3\n",
		"few-slots": "127.0.0.2 slots=8\n127.0.0.3 slots=8\n",
		"accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\n" +
			"machine_rank: 0\nmain_process_ip: 127.0.0.1\nmain_process_port: 29500\nmixed_precision: bf16\n" +
			"fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n",
	}
	for name, text := range files {
		if err := os.WriteFile(b.program(name), []byte(text), 0o600); err != nil {
			return row{}, err
		}
	}
	lines := []struct {
		name string
		args []string
	}{
		{"muster run", []string{"run", "--hosts", "127.0.0.2:8,127.0.0.3:8", "--", "python3", script}},
		{"torchrun", []string{
			"torchrun", "--nnodes", "2", "--nproc-per-node", "8", "--rdzv-backend", "c10d", "--rdzv-endpoint",
			"127.0.0.1:29400", script,
		}},
		{"dlrover-run", []string{"dlrover-run", "--network-check", "--standalone", "--nproc_per_node=8", "--max_restarts=3", script}},
		{"accelerate", []string{"accelerate", "launch", "--config_file", b.program("accelerate.yaml"), script}},
		{"colossalai", []string{
			"colossalai", "run", "--hostfile", b.program("few-hosts"), "--nproc_per_node", "8", "--master_addr",
			"127.0.0.2", script,
		}},
		{"deepspeed", []string{
			"deepspeed", "--hostfile", b.program("few-slots"), "--include", "127.0.0.2@127.0.0.3:0,2", script,
			"--deepspeed", "ds.json",
		}},
		{"mpirun", []string{"mpirun", "-np", "16", "-H", "127.0.0.2:8,127.0.0.3:8", "-x", "PATH", "python3", script}},
	}
	r := row{Figure: "parsing and --dry-run, the slowest of the launchers' command lines", Unit: "ms", Budget: "≤ 20 ms"}
	var notes []string
	for _, line := range lines {
		var took []float64
		for range runs {
			one, err := b.command(ctx, append([]string{"--dry-run", "--log-level", "error"}, line.args...)...)
			if err != nil {
				return row{}, err
			}
			took = append(took, one)
		}
		r.Ours = max(r.Ours, median(took))
		notes = append(notes, fmt.Sprintf("%s %.1f", line.name, median(took)))
	}
	r.Pass, r.Note = r.Ours <= 20, strings.Join(notes, ", ")
	return r, nil
}
