package testutil

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Slurm is a cluster of Debian's Slurm: a controller and nodes, each a Host. Its daemons end with their hosts.
type Slurm struct {
	// Nodes are the machines that jobs run on, Controller the one where slurmctld runs and jobs are submitted.
	Nodes      []*Host
	Controller *Host
	// Jobs is the folder that jobs are submitted from, the same on all machines.
	Jobs string

	t   testing.TB
	dir string
}

// slurmConf is the configuration of a cluster. cred_expire is how long a job that was queued again waits, two minutes
// unless given; SlurmdTimeout is how long a node may be silent, five minutes unless given. Slurm confines nothing:
// processes are found by their parents, and a signal to a step reaches all of them.
const slurmConf = `ClusterName=test
SlurmctldHost=%[2]s
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=%[1]s/munge/socket,cred_expire=5
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/spool/%%h
SlurmctldPidFile=%[1]s/run/slurmctld.pid
SlurmdPidFile=%[1]s/run/%%h.pid
SlurmctldLogFile=%[1]s/log/slurmctld
SlurmdLogFile=%[1]s/log/%%h
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=%[1]s/prolog
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdTimeout=10
SlurmdParameters=config_overrides
NodeName=%[3]s CPUs=4 RealMemory=4096
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// NewSlurm starts a cluster of n nodes and waits until all of them take jobs. It skips the test where Slurm or what
// Hosts needs is missing.
func NewSlurm(t testing.TB, n int) *Slurm {
	t.Helper()
	for _, tool := range []string{"munged", "slurmctld", "slurmd", "srun"} {
		if _, err := exec.LookPath(tool); err != nil {
			Missing(t, "Slurm's "+tool)
		}
	}
	hosts := Hosts(t, n+1)
	s := &Slurm{Nodes: hosts[:n], Controller: hosts[n], t: t, dir: filepath.Join(filepath.Dir(hosts[0].Dir), "slurm")}
	s.Jobs = filepath.Join(s.dir, "jobs")
	names := make([]string, n)
	for i, h := range s.Nodes {
		names[i] = h.Name
		s.make(filepath.Join("spool", h.Name))
	}
	for _, dir := range []string{"munge", "state", "run", "log", "jobs"} {
		s.make(dir)
	}
	// Where the kernel has no cgroups of version 1 that plug-in is not asked for anything.
	s.write("cgroup.conf", "CgroupPlugin=cgroup/v1\n")
	s.write("slurm.conf", fmt.Sprintf(slurmConf, s.dir, s.Controller.Name, strings.Join(names, ",")))
	// Hosts share their files, hence a folder for temporary ones of each, as many sites have one for each job.
	s.write("prolog", fmt.Sprintf("#!/bin/sh\necho \"export TMPDIR=%s/$(uname -n)/tmp\"\n", filepath.Dir(s.dir)))
	s.write("munge/key", strings.Repeat("k", 1024))
	t.Cleanup(s.tell)
	munge := filepath.Join(s.dir, "munge")
	s.daemon(s.Controller, "munged", "--foreground", "--force", "--key-file="+munge+"/key", "--socket="+munge+"/socket",
		"--pid-file="+munge+"/pid", "--log-file="+munge+"/log", "--seed-file="+munge+"/seed")
	s.daemon(s.Controller, "slurmctld", "-D")
	for i := range s.Nodes {
		s.StartNode(i)
	}
	s.WaitIdle(n)
	return s
}

func (s *Slurm) make(dir string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

func (s *Slurm) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o700); err != nil {
		s.t.Fatal(err)
	}
}

// StartNode starts slurmd on a node, as its boot does.
func (s *Slurm) StartNode(i int) {
	s.t.Helper()
	s.daemon(s.Nodes[i], "slurmd", "-D")
}

// WaitIdle waits until n nodes have nothing to do.
func (s *Slurm) WaitIdle(n int) {
	s.t.Helper()
	Eventually(s.t, 30*time.Second, strconv.Itoa(n)+" nodes of Slurm are idle", func() bool {
		out, err := s.Command("sinfo", "-h", "-t", "idle", "-o", "%D").Output()
		return err == nil && strings.TrimSpace(string(out)) == strconv.Itoa(n)
	})
}

func (s *Slurm) daemon(h *Host, name string, args ...string) {
	s.t.Helper()
	if err := s.on(h, name, args...).Start(); err != nil {
		s.t.Fatalf("cannot start %s on %s: %v", name, h.Name, err)
	}
}

// on is a program in the folder of the jobs.
func (s *Slurm) on(h *Host, name string, args ...string) *HostCommand {
	c := h.Command(name, args...)
	c.Env = append(c.Env, "SLURM_CONF="+filepath.Join(s.dir, "slurm.conf"))
	c.Dir = s.Jobs
	return c
}

// Command returns a program to run where jobs are submitted. Its environment is that of the jobs as well: it names a
// XDG_RUNTIME_DIR that nodes do not have, as that of people does who are logged in elsewhere.
func (s *Slurm) Command(name string, args ...string) *HostCommand {
	c := s.on(s.Controller, name, args...)
	c.Env = append(c.Env, "XDG_RUNTIME_DIR="+filepath.Join(s.dir, "none"))
	return c
}

// State is what squeue says of a job, such as RUNNING; empty where it is forgotten.
func (s *Slurm) State(job string) string {
	s.t.Helper()
	out, err := s.Command("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").Output()
	if err != nil {
		s.t.Log(err)
	}
	return strings.TrimSpace(string(out))
}

// tell puts what the daemons have logged into the log of a test that has failed.
func (s *Slurm) tell() {
	if !s.t.Failed() {
		return
	}
	files, _ := filepath.Glob(filepath.Join(s.dir, "log", "*"))
	for _, f := range append(files, filepath.Join(s.dir, "munge", "log")) {
		text, _ := os.ReadFile(f)
		s.t.Logf("%s:\n%s", f, text)
	}
}
