package platform

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"muster/internal/hosts"
	"muster/internal/lazyregexp"
)

// slurmStep is what Slurm says of the step, or of the batch script, that this process is in.
type slurmStep struct {
	real         bool // it is a step of srun, not the batch script or the shell of salloc
	nodes, tasks int  // 0: not told
}

// specialStep is the first of the step numbers that stand for something else: 4294967291 is the batch script, ...290
// the shell of salloc (slurm/slurm.h, SLURM_BATCH_SCRIPT and SLURM_INTERACTIVE_STEP).
const specialStep = 0xfffffff0

// step reads which part of a Slurm job this is. A batch script has SLURM_PROCID, too: only a numbered step proves srun.
func (l *lookup) step() (slurmStep, error) {
	var s slurmStep
	if text := l.get("SLURM_STEP_ID"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		s.real = err == nil && n < specialStep
	}
	counts := []string{"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}
	if s.real {
		counts = slices.Insert(counts, 0, "SLURM_STEP_NUM_NODES")
	}
	var err error
	if s.nodes, err = l.firstNumber(counts...); err != nil || !s.real {
		return s, err
	}
	s.tasks, err = l.firstNumber("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
	return s, err
}

// firstNumber is the first of the variables that is set, a number from 1; 0 where none is.
func (l *lookup) firstNumber(names ...string) (int, error) {
	for _, name := range names {
		if n, ok, err := l.number(name, 1); ok || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// findSlurmTasks finds a step with several tasks on a node: this is one process of many.
func findSlurmTasks(l *lookup) []string {
	s, err := l.step()
	if err != nil || !s.real || s.nodes == 0 || s.tasks <= s.nodes {
		return nil
	}
	return l.set("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES")
}

func findSlurm(l *lookup) []string {
	if !l.has("SLURM_JOB_ID") {
		return nil
	}
	return l.set("SLURM_JOB_ID", "SLURM_STEP_ID")
}

func readSlurm(l *lookup, f *Facts) error {
	s, err := l.step()
	if err != nil {
		return err
	}
	lists, perNode := []string{"SLURM_JOB_NODELIST", "SLURM_NODELIST"}, "SLURM_TASKS_PER_NODE"
	if s.real {
		lists, perNode = slices.Insert(lists, 0, "SLURM_STEP_NODELIST"), "SLURM_STEP_TASKS_PER_NODE"
	}
	list := l.value(lists...)
	if f.Hosts, err = l.slurmHosts(list, perNode); err != nil {
		return err
	}
	if s.nodes == 0 {
		s.nodes = len(f.Hosts)
	}
	if !s.real {
		if s.nodes > 1 {
			f.Problem = &Problem{
				fmt.Sprintf("the job has %d nodes, and this is its batch script or shell, on one of them", s.nodes),
				"let srun start muster on every node: srun --ntasks-per-node=1 muster run ...; or give --nnodes 1 to start on this " +
					"one alone",
			}
		}
		return nil
	}
	if s.tasks > s.nodes && s.nodes > 0 {
		return l.slurmTask(f, s)
	}
	if f.Nodes = l.value("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"); f.Nodes.Text == "" && s.nodes > 0 {
		f.Nodes = Value{Text: strconv.Itoa(s.nodes), From: list.From, Derived: true}
	}
	if s.nodes <= 1 {
		return nil
	}
	rank, err := l.needed("SLURM_NODEID", 0, "SLURM_STEP_ID")
	if err != nil {
		return err
	}
	if rank >= s.nodes {
		return l.bad("SLURM_NODEID", fmt.Errorf("the step has %d nodes", s.nodes))
	}
	f.NodeRank = l.value("SLURM_NODEID")
	if len(f.Hosts) > 0 {
		f.MasterAddr = Value{Text: f.Hosts[0].Name, From: list.From, Derived: true}
	}
	return l.slurmJob(f)
}

// slurmJob takes from the job's number what all nodes must agree on.
func (l *lookup) slurmJob(f *Facts) error {
	job, err := strconv.ParseUint(l.get("SLURM_JOB_ID"), 10, 64)
	if err != nil {
		return l.bad("SLURM_JOB_ID", errors.New("it must be a number"))
	}
	f.RunID = Value{Text: "slurm-" + l.get("SLURM_JOB_ID"), From: "SLURM_JOB_ID", Derived: true}
	step, err := strconv.ParseUint(l.get("SLURM_STEP_ID"), 10, 32)
	if err == nil && step < specialStep {
		f.RunID.Text += "-" + l.get("SLURM_STEP_ID")
	} else {
		step = 0
	}
	f.MasterPort = jobPort(job, step, "SLURM_JOB_ID")
	return nil
}

func (l *lookup) slurmHosts(list Value, perNode string) ([]Host, error) {
	if list.Text == "" {
		return nil, nil
	}
	names, err := hosts.Expand(list.Text)
	if err != nil {
		return nil, l.bad(list.From, err)
	}
	var slots []int
	if text := l.get(perNode); text != "" {
		if slots, err = hosts.ExpandCounts(text); err != nil {
			return nil, l.bad(perNode, err)
		}
	}
	hosts := make([]Host, len(names))
	for i, name := range names {
		hosts[i].Name = name
		if len(slots) == len(names) {
			hosts[i].Slots = slots[i]
		}
	}
	return hosts, nil
}

// slurmTask is one of several tasks on a node.
func (l *lookup) slurmTask(f *Facts, s slurmStep) error {
	rank, err := l.needed("SLURM_PROCID", 0, "SLURM_STEP_ID")
	if err != nil {
		return err
	}
	local, err := l.needed("SLURM_LOCALID", 0, "SLURM_STEP_ID")
	if err != nil {
		return err
	}
	node, _, err := l.number("SLURM_NODEID", 0)
	if err != nil {
		return err
	}
	f.Process = &Process{Rank: rank, World: s.tasks, LocalRank: local}
	if node < len(f.Hosts) {
		f.Process.LocalWorld = f.Hosts[node].Slots
	}
	f.Problem = oneOfMany(f.Process, fmt.Sprintf("srun starts %d tasks on %d nodes", s.tasks, s.nodes),
		"start muster once on each node, and let it start the workers: srun --ntasks-per-node=1 muster run -n N ...")
	return nil
}

// oneOfMany is why one of several processes on a node cannot be the node. Each could only be a worker; but whoever asks
// for a launcher wants it to watch over all workers of its node.
func oneOfMany(p *Process, who, hint string) *Problem {
	return &Problem{
		fmt.Sprintf("%s, and this is number %d: muster would run several times on a node", who, p.Rank),
		hint + "; or give --nnodes 1 to start each by itself",
	}
}

// leadingNumber is the number that the id of a job begins with: PBS writes 123.server, or 123[4].server in an array.
var leadingNumber = lazyregexp.New(`^([0-9]{1,15})(?:\[([0-9]{0,9})\])?`)

// batchJob takes port and name from a job's id.
func (l *lookup) batchJob(f *Facts, name, index string) error {
	m := leadingNumber().FindStringSubmatch(l.get(name))
	if m == nil {
		return l.bad(name, errors.New("it does not begin with a number"))
	}
	job, _ := strconv.ParseUint(m[1], 10, 64)
	element, _ := strconv.ParseUint(m[2], 10, 64)
	if index != "" {
		n, _, err := l.number(index, 0)
		if err != nil {
			return err
		}
		element = uint64(n)
	}
	f.MasterPort = jobPort(job, element, name)
	f.RunID = Value{Text: fmt.Sprintf("%s-%d-%d", f.Name, job, element), From: name, Derived: true}
	return nil
}

func findLSF(l *lookup) []string {
	if !l.has("LSB_JOBID") {
		return nil
	}
	return l.set("LSB_JOBID", "LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE", "LSB_HOSTS")
}

func readLSF(l *lookup, f *Facts) error {
	hosts, from, err := l.lsfHosts()
	if err != nil {
		return err
	}
	if len(hosts) == 0 { // a shell that kept the job's number, for example
		f.Notes = append(f.Notes, "nothing lists the job's hosts (LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE, LSB_HOSTS)")
		return nil
	}
	hosts, launch := withoutLaunchNode(hosts)
	if launch != "" && sameHost(launch, l.Hostname) {
		f.Hosts = hosts
		f.Problem = &Problem{
			fmt.Sprintf("%s is the job's launch node, and none of its %d nodes", launch, len(hosts)),
			"let jsrun start muster on every node: jsrun --rs_per_host 1 --tasks_per_rs 1 muster run ...; or give --nnodes 1 to start on " +
				"this one",
		}
		return nil
	}
	l.among(f, hosts, from)
	noteAll(f, `blaunch -z "$(sort -u "$LSB_DJOB_HOSTFILE" | xargs)" muster run ...`)
	return l.batchJob(f, "LSB_JOBID", "LSB_JOBINDEX")
}

// noteAll tells the first of several nodes that the others must be started, too. Slurm tells a batch script from a
// step; here the script on the first host looks like one of the tasks.
func noteAll(f *Facts, how string) {
	if len(f.Hosts) > 1 && f.NodeRank.Text == "0" {
		f.Notes = append(f.Notes, fmt.Sprintf("muster must be started on all %d hosts of the job: %s", len(f.Hosts), how))
	}
}

// lsfHosts are the job's hosts with their slots. LSB_HOSTS is not set where it would be long.
func (l *lookup) lsfHosts() (hosts []Host, from string, err error) {
	if from = "LSB_MCPU_HOSTS"; l.has(from) {
		words := strings.Fields(l.get(from))
		for i := 0; i < len(words) && err == nil; i += 2 {
			var slots int
			if i+1 == len(words) {
				err = errors.New("the last host has no number")
			} else if slots, err = strconv.Atoi(words[i+1]); err != nil {
				err = fmt.Errorf("%s is no number of slots", shown(words[i+1]))
			} else {
				hosts, err = addHost(hosts, words[i], slots)
			}
		}
		if err != nil {
			err = l.bad(from, err)
		}
		return dedupe(hosts), from, err
	}
	if from = "LSB_DJOB_HOSTFILE"; l.has(from) {
		if hosts, err = l.hostLines(l.get(from)); err == nil {
			return dedupe(hosts), from, nil
		}
		if !l.has("LSB_HOSTS") {
			return nil, from, l.bad(from, err)
		}
	}
	if from = "LSB_HOSTS"; !l.has(from) {
		return nil, from, nil
	}
	for name := range strings.FieldsSeq(l.get(from)) {
		if hosts, err = addHost(hosts, name, 1); err != nil {
			return nil, from, l.bad(from, err)
		}
	}
	return dedupe(hosts), from, nil
}

// withoutLaunchNode leaves the first host out where its name says that it only starts jobs, as on CORAL's machines, and
// the names of the others do not.
func withoutLaunchNode(hosts []Host) (nodes []Host, launch string) {
	starts := func(h Host) bool {
		short, _, _ := strings.Cut(strings.ToLower(h.Name), ".")
		return strings.Contains(short, "batch") || strings.Contains(short, "login")
	}
	if len(hosts) < 2 || !starts(hosts[0]) || slices.ContainsFunc(hosts[1:], starts) {
		return hosts, ""
	}
	return hosts[1:], hosts[0].Name
}

func findPBS(l *lookup) []string {
	if !l.has("PBS_JOBID") {
		return nil
	}
	return l.set("PBS_JOBID", "PBS_NODEFILE")
}

func readPBS(l *lookup, f *Facts) error {
	const from = "PBS_NODEFILE"
	index, _, err := l.number("PBS_NODENUM", 0)
	if err != nil {
		return err
	}
	hosts, err := l.hostLines(l.get(from))
	switch {
	case !l.has(from) && index == 0: // a shell that kept the job's number, for example
		f.Notes = append(f.Notes, "nothing lists the job's nodes ("+from+")")
		return nil
	case !l.has(from), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		// PBS puts the file onto the first node only. Another one that took itself for the only one would train alone.
		why := "the list of the job's nodes (" + from + ") cannot be read here"
		if index > 0 {
			why = fmt.Sprintf("PBS_NODENUM=%d says that this is not the job's first node, and %s", index, why)
		}
		f.Problem = &Problem{
			why,
			"copy the list to where all nodes read it and let PBS_NODEFILE name it; or give --nnodes 1 to start this one by itself",
		}
		return nil
	case err != nil:
		return l.bad(from, err)
	}
	l.among(f, dedupe(hosts), from)
	noteAll(f, "pbsdsh, or pbs_tmrsh HOST muster run ...")
	return l.batchJob(f, "PBS_JOBID", "")
}
