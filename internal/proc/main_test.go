package proc_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"muster/internal/proc"
)

// roleArg as the first argument turns the test binary into one of the processes of a job. It stands in argv and not in
// the environment, because some of them clear theirs.
const roleArg = "@proc"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == roleArg {
		switch os.Args[2] {
		case "guardian":
			syscall.Exit(proc.RunGuardian()) // os.Exit lingers for a second under the race detector
		case "confine":
			os.Exit(confineForever())
		case "oom":
			os.Exit(oomAgent())
		case "agent":
			os.Exit(agent(os.Args[3], os.Args[4], os.Args[5:]))
		}
		os.Exit(99)
	}
	// What a killed agent leaves comes to us and not to an init that we know nothing about.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// agent is what launch and cmd will be: it runs the scripts as workers until one of them ends or it is told to stop,
// stops the tree and reports on stdout. mark is an argument of all its processes, dir the run directory.
func agent(mark, dir string, scripts []string) int {
	say := func(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, unix.SIGTERM, unix.SIGINT)
	cfg := proc.Config{
		Marker: "MUSTER_AGENT=" + mark, Guardian: []string{"/proc/self/exe", roleArg, "guardian", mark},
		RemoveOnDeath: []string{dir, "/dev/shm/" + mark + "-segment"}, Cgroup: os.Getenv("PROC_TEST_CGROUP") != "",
	}
	t, err := proc.Open(cfg)
	if err != nil {
		say("error open: %v", err)
		return 1
	}
	env := append(os.Environ(), cfg.Marker)
	var procs []*proc.Process
	ended := make(chan *proc.Process, len(scripts))
	for i, script := range scripts {
		p, err := t.Start(proc.Spec{
			Path: "/bin/sh", Args: []string{"sh", "-c", script, mark}, Env: env, Label: fmt.Sprintf("rank %d", i),
			Files: []*os.File{nil, os.Stderr, os.Stderr},
		})
		if err != nil {
			say("error start: %v", err)
			return 1
		}
		procs = append(procs, p)
		go func() { <-p.Done(); ended <- p }()
	}
	pids := make([]string, len(procs))
	for i, p := range procs {
		pids[i] = fmt.Sprint(p.PID())
	}
	go func() { // commands of the test
		var cmd string
		for {
			if _, err := fmt.Scanln(&cmd); err != nil {
				return
			}
			if cmd == "scan" {
				t.Scan()
				say("scan done")
			}
			if limit, ok := strings.CutPrefix(cmd, "lease:"); ok {
				var until time.Time
				if d, err := time.ParseDuration(limit); err == nil {
					until = time.Now().Add(d)
				}
				t.SetLease(until)
				say("%s done", cmd)
			}
			if path, ok := strings.CutPrefix(cmd, "on-death:"); ok {
				script := `PATH=/usr/bin:/bin; cat /proc/[0-9]*/cmdline 2>&- | tr '\0' ' ' | grep -c "[s]leep 86400 $0" >` + path +
					`; exec sleep 86401 $0`
				t.RunOnDeath([]string{"/bin/sh", "-c", script, mark}, 2*time.Second)
				say("%s done", cmd)
			}
			if cmd == "guardian" {
				say("guardian %d", t.GuardianPID())
			}
		}
	}()
	say("ready %d %s", t.GuardianPID(), strings.Join(pids, " "))
	now := make(chan struct{})
	var status int
	select {
	case p := <-ended:
		status = p.Exit().Status()
	case sig := <-sigs:
		status = 128 + int(sig.(unix.Signal))
		go func() { <-sigs; close(now) }()
	}
	err = t.Stop(context.Background(), proc.Ladder{Grace: 3 * time.Second, Leftover: 300 * time.Millisecond, Now: now}, procs...)
	if err != nil {
		say("error stop: %v", err)
	}
	for _, name := range []string{dir, "/dev/shm/" + mark + "-segment"} {
		if err := os.RemoveAll(name); err != nil {
			say("error remove: %v", err)
		}
	}
	if err := t.Close(); err != nil {
		say("error close: %v", err)
	}
	all, zombies, err := proc.Children()
	if err != nil {
		say("error children: %v", err)
	}
	say("end %d children %d zombies %d", status, all, zombies)
	return status
}

// oomAgent starts a worker that takes memory until the kernel kills it, and says what can be seen of that.
func oomAgent() int {
	before, where, err := proc.OOMKills()
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	t, err := proc.Open(proc.Config{})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	p, err := t.Start(proc.Spec{Path: "/usr/bin/tail", Args: []string{"tail", "/dev/zero"}})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	exit := p.Exit()
	after, _, err := proc.OOMKills()
	fmt.Println("killed", after-before, exit, where, err, t.Close())
	return 0
}
