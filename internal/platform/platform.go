// Package platform tells which batch system, cloud or operator started this process, and what its variables say: how
// many nodes the job has, which of them this is, and where they meet. cmd/dialect calls it, to fill what the user left
// open; Cloud, which tells whose machine this is, is for cmd/muster.
//
// Everything here is pure: variables, files, the host name and this machine's address come in an Input, and nothing is
// looked up by name or over a network. Everything read is taken for hostile: lists, files and numbers have bounds, and
// a value that cannot be what it claims is an error that names its variable.
//
// What each platform sets was read in its source or documentation; docs/platforms.md has the table. WORLD_SIZE and RANK
// count nodes on some platforms and processes on others, and one platform's variables may lie beneath another's: the
// order of the detectors decides, and what else was found is told.
package platform

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"muster/internal/hosts"
)

// Input is what a platform is recognised by.
type Input struct {
	// Environ are the variables. An empty one counts as not set.
	Environ map[string]string
	// Files is the file system of this machine, with paths as io/fs has them (etc/hosts); nil: there are no files.
	Files fs.FS
	// Hostname is this machine's name.
	Hostname string
	// OwnAddr returns an address by which other nodes reach this machine, "" where that cannot be told. It is called
	// only where a platform leaves it out. nil: as if it returned "".
	OwnAddr func() string
}

// Facts are what a platform says. The zero value is no platform.
type Facts struct {
	// Name is the platform's name as --platform takes it, "" for none.
	Name string
	// Why are the variables and files by which it was found.
	Why []string
	// Nodes is their number, or MIN:MAX; NodeRank is this one's index. MasterAddr and MasterPort are where node 0 is to
	// serve the store, Rendezvous where the nodes meet by themselves, as --rdzv takes it. Procs is the number of
	// workers on each node, or a word for it.
	Nodes, NodeRank, MasterAddr, MasterPort, Rendezvous, Procs Value
	// RunID names the job, the same on all nodes; LocalAddr is this node's address.
	RunID, LocalAddr Value
	// Hosts are the nodes where they are named, rank 0 first.
	Hosts []Host
	// Process is set where the platform starts processes and not nodes, and this is one of them.
	Process *Process
	// Problem says why this process cannot be a node of the job as it was started, nil where it can.
	Problem *Problem
	// Notes are what else there is to know, one sentence each.
	Notes []string
	// Also are the other platforms whose variables are there, with those.
	Also []string
}

// Remarks are what else there is to know of it. A problem that did not keep the job from starting is one of them.
func (f *Facts) Remarks() []string {
	if f.Problem == nil {
		return f.Notes
	}
	return append([]string{"its nodes are not taken into account: " + f.Problem.Why}, f.Notes...)
}

// Value is a value and where it came from; Text is empty where there is none.
type Value struct {
	Text string
	// From is the variable or file. Derived is true where that does not hold the text itself.
	From    string
	Derived bool
}

// Host is a node by its name. Slots is how many processes it is to take, 0 where that is not known.
type Host struct {
	Name  string
	Slots int
}

// Process is the place of one of many processes. LocalRank and LocalWorld are 0 where they are not known.
type Process struct{ Rank, World, LocalRank, LocalWorld int }

// Problem is why something cannot be, and what to do instead.
type Problem struct{ Why, Hint string }

// Auto and None are the words of --platform that name no platform.
const (
	Auto = "auto"
	None = "none"
)

// detector recognises a platform.
type detector struct {
	name string
	// asks says what must be there.
	asks string
	// find returns the variables and files that speak for it, none where it is not there.
	find func(*lookup) []string
	read func(*lookup, *Facts) error
}

// detectors are in the order in which they are asked: the first one that finds something counts. A platform that starts
// processes comes before what it may have been started on, an operator before the cluster below it, and what could be
// anybody's last.
func detectors() []detector {
	return []detector{
		{"mpi", "OMPI_COMM_WORLD_RANK, MV2_COMM_WORLD_RANK, PMI_RANK or JSM_NAMESPACE_RANK", findMPI, readMPI},
		{"slurm", "", findSlurmTasks, readSlurm},
		{"mpijob", "K_MPI_JOB_ROLE or the file " + mpiHostfile, findMPIJob, readMPIJob},
		{"aitj", "TRAININGJOB_NAME and TRAININGJOB_REPLICA_NAME", findAITJ, readAITJ},
		{"dlrover", "DLROVER_MASTER_ADDR or ELASTIC_JOB_NAME", findDLRover, readDLRover},
		{"kubeflow", "PET_NNODES with PET_NODE_RANK or PET_RDZV_ENDPOINT", findKubeflow, readKubeflow},
		{"volcano", "VC_<TASK>_HOSTS or a file /etc/volcano/<task>.host", findVolcano, readVolcano},
		{"sagemaker", "SM_HOSTS or the file " + sagemakerConfig, findSageMaker, readSageMaker},
		{"vertex", "CLUSTER_SPEC", findVertex, readVertex},
		{"aws-batch", "AWS_BATCH_JOB_NUM_NODES", findAWSBatch, readAWSBatch},
		{"lepton", "LEPTON_JOB_NAME or LEPTON_JOB_TOTAL_WORKERS", findLepton, readLepton},
		{"azureml", "AZ_BATCH_MASTER_NODE, or AZUREML_EXPERIMENT_ID with MASTER_ADDR and NODE_RANK", findAzureML, readAzureML},
		{"slurm", "SLURM_JOB_ID", findSlurm, readSlurm},
		{"lsf", "LSB_JOBID", findLSF, readLSF},
		{"pbs", "PBS_JOBID", findPBS, readPBS},
		{"aihc", "AIHC_JOB_NAME with MASTER_ADDR, RANK and WORLD_SIZE, and no LOCAL_RANK", findAIHC, readPyTorch},
		{"pytorch", "MASTER_ADDR, RANK and WORLD_SIZE, and no LOCAL_RANK", findPyTorch, readPyTorch},
		{"jobset", "JOB_COMPLETION_INDEX, and a host name that ends in it", findJobSet, readJobSet},
	}
}

// Names returns the names of all platforms, in the order in which they are looked for.
func Names() []string {
	var names []string
	for _, d := range detectors() {
		if !slices.Contains(names, d.name) {
			names = append(names, d.name)
		}
	}
	return names
}

// workerMarks are variables that only the worker of a launcher has: what it inherited of a platform is about its agent.
var workerMarks = []string{"MUSTER_AGENT", "TORCHELASTIC_RUN_ID"}

// Detect finds the platform, or reads that of the given name. name is one of Names, Auto or None. Inside of a worker
// Auto finds nothing.
func Detect(in Input, name string) (Facts, error) {
	l := &lookup{in}
	if name == None || name == Auto && slices.ContainsFunc(workerMarks, l.has) {
		return Facts{}, nil
	}
	var f Facts
	read := func(*lookup, *Facts) error { return nil }
	for _, d := range detectors() {
		why := d.find(l)
		switch {
		case len(why) == 0 || d.name == f.Name:
		case f.Name == "" && (name == Auto || name == d.name):
			f.Name, f.Why, read = d.name, why, d.read
		default:
			f.Also = append(f.Also, fmt.Sprintf("%s (%s)", d.name, strings.Join(why, ", ")))
		}
	}
	if f.Name == "" && name != Auto {
		return Facts{}, notThere(name)
	}
	if err := read(l, &f); err != nil {
		return Facts{}, err
	}
	return f, l.workers(&f)
}

func notThere(name string) error {
	for _, d := range detectors() {
		if d.name == name && d.asks != "" {
			return fmt.Errorf(
				"it did not start this process: it is known by %s (muster run --dry-run without --platform tells what is found here)",
				d.asks)
		}
	}
	return fmt.Errorf("choose auto, none, or one of %s", strings.Join(Names(), ", "))
}

// workers takes the number of workers from NPROC_PER_NODE, which several platforms set and people, too.
func (l *lookup) workers(f *Facts) error {
	const name = "NPROC_PER_NODE"
	text := l.get(name)
	if f.Name == "" || f.Procs.Text != "" || text == "" {
		return nil
	}
	if !slices.Contains([]string{"auto", "gpu", "cpu"}, text) {
		if _, _, err := l.number(name, 1); err != nil {
			return err
		}
	}
	f.Procs = Value{Text: text, From: name}
	return nil
}

// lookup reads an Input.
type lookup struct{ Input }

func (l *lookup) get(name string) string { return l.Environ[name] }
func (l *lookup) has(name string) bool   { return l.Environ[name] != "" }

// set returns the names that are set.
func (l *lookup) set(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !l.has(name) })
}

// all returns the names if all of them are set, else none.
func (l *lookup) all(names ...string) []string {
	if found := l.set(names...); len(found) == len(names) {
		return found
	}
	return nil
}

// value is the first of the variables that is set.
func (l *lookup) value(names ...string) Value {
	for _, name := range names {
		if l.has(name) {
			return Value{Text: l.get(name), From: name}
		}
	}
	return Value{}
}

// maxNumber bounds numbers of nodes, ranks and slots.
const maxNumber = 1 << 24

// number reads a whole number from least. ok is false where the variable is not set.
func (l *lookup) number(name string, least int) (n int, ok bool, err error) {
	text := l.get(name)
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.Atoi(text); err != nil || n < least || n > maxNumber {
		return 0, false, l.bad(name, fmt.Errorf("it must be a whole number from %d", least))
	}
	return n, true, nil
}

// needed is number for a variable that must be set beside others.
func (l *lookup) needed(name string, least int, beside string) (int, error) {
	n, ok, err := l.number(name, least)
	if err == nil && !ok {
		err = fmt.Errorf("cannot use %s without %s, which is not set", beside, name)
	}
	return n, err
}

// place reads the index of this node and the number of all.
func (l *lookup) place(f *Facts, rank, world string) (index, count int, err error) {
	if count, err = l.needed(world, 1, rank); err != nil {
		return 0, 0, err
	}
	if index, err = l.needed(rank, 0, world); err != nil {
		return 0, 0, err
	}
	if index >= count {
		return 0, 0, l.bad(rank, fmt.Errorf("with %s=%d it must be from 0 to %d", world, count, count-1))
	}
	f.Nodes, f.NodeRank = l.value(world), l.value(rank)
	return index, count, nil
}

// bad is an error about the value of a variable.
func (l *lookup) bad(name string, err error) error {
	return fmt.Errorf("cannot use %s=%s: %w", name, shown(l.get(name)), err)
}

// shown is a value that somebody else made, for an error.
func shown(text string) string {
	const most = 80
	short := text
	if len(short) > most {
		short = short[:most]
	}
	quoted := strconv.Quote(short)
	if len(text) > most {
		return quoted + "…"
	}
	if quoted == `"`+text+`"` && !strings.ContainsAny(text, ` `) {
		return text
	}
	return quoted
}

// maxFile is the size of the largest file that is read, in bytes: 65,536 hosts with names of 255 letters are 16 MiB,
// and real ones a tenth of that.
const maxFile = 4 << 20

// file reads a file by its absolute path. The error is fs.ErrNotExist where it is not there.
func (l *lookup) file(name string) ([]byte, error) {
	rel := strings.TrimPrefix(path.Clean(name), "/")
	switch {
	case !path.IsAbs(name) || !fs.ValidPath(rel):
		return nil, fmt.Errorf("cannot read %s: it is no absolute path of a file", shown(name))
	case l.Files == nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	// A pipe or a device would be read for ever.
	info, err := fs.Stat(l.Files, rel)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("cannot read %s: it is no plain file", shown(name))
	}
	f, err := l.Files.Open(rel)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	_ = f.Close()
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("cannot read %s: it has more than %d bytes", shown(name), maxFile)
	}
	return content, err
}

// exists reports whether there is a plain file at an absolute path.
func (l *lookup) exists(name string) bool {
	if l.Files == nil {
		return false
	}
	info, err := fs.Stat(l.Files, strings.TrimPrefix(name, "/"))
	return err == nil && info.Mode().IsRegular()
}

// hostLines reads a file of hosts, one in a line for each slot.
func (l *lookup) hostLines(name string) ([]Host, error) {
	content, err := l.file(name)
	if err != nil {
		return nil, err
	}
	var hosts []Host
	for line := range strings.Lines(string(content)) {
		name := strings.TrimSpace(line)
		if name == "" {
			continue
		}
		if hosts, err = addHost(hosts, name, 1); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}

// addHost adds slots to the last host or, where it has another name, the host. Batch systems write equal names in a
// row; names that come again later are found by dedupe.
func addHost(list []Host, name string, slots int) ([]Host, error) {
	switch {
	case !hosts.IsName(name):
		return nil, fmt.Errorf("%.80q is no name of a host", name)
	case slots < 0 || slots > maxNumber:
		return nil, fmt.Errorf("%s cannot have %d slots", name, slots)
	case len(list) > 0 && list[len(list)-1].Name == name:
		list[len(list)-1].Slots = min(list[len(list)-1].Slots+slots, maxNumber)
		return list, nil
	case len(list) == hosts.MaxHosts:
		return nil, fmt.Errorf("there are more than %d hosts", hosts.MaxHosts)
	}
	return append(list, Host{name, slots}), nil
}

// dedupe adds up the slots of hosts with one name, which keeps the place where it stands first.
func dedupe(hosts []Host) []Host {
	at := make(map[string]int, len(hosts))
	var list []Host
	for _, h := range hosts {
		if i, again := at[h.Name]; again {
			list[i].Slots = min(list[i].Slots+h.Slots, maxNumber)
			continue
		}
		at[h.Name] = len(list)
		list = append(list, h)
	}
	return list
}

// sameHost reports whether two names mean one machine, where one of them may lack its domain.
func sameHost(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	shortA, _, longA := strings.Cut(a, ".")
	shortB, _, longB := strings.Cut(b, ".")
	return a != "" && (a == b || shortA == shortB && (!longA || !longB))
}

// among makes the nodes of a list of hosts, in which this machine has its place by its name.
func (l *lookup) among(f *Facts, hosts []Host, from string) {
	f.Hosts = hosts
	f.Nodes = Value{Text: strconv.Itoa(len(hosts)), From: from, Derived: true}
	if len(hosts) == 0 {
		f.Nodes = Value{}
		return
	}
	f.MasterAddr = Value{Text: hosts[0].Name, From: from, Derived: true}
	own := slices.IndexFunc(hosts, func(h Host) bool { return sameHost(h.Name, l.Hostname) })
	if own >= 0 {
		f.NodeRank = Value{Text: strconv.Itoa(own), From: from, Derived: true}
		return
	}
	f.Problem = &Problem{
		fmt.Sprintf("this machine's name, %s, is none of the hosts of %s", shown(l.Hostname), from),
		"say which node this is: --nnodes N --node-rank N --master-addr HOST; or give --nnodes 1 to start this one by itself",
	}
}

// Ports that are made from a job's number: from 10000 to 29999, below those that Linux gives to outgoing connections
// (32768 and above). Jobs of neighbouring numbers, which may share a node, never have the same one.
const (
	portBase = 10000
	portSpan = 20000
	// stepStride keeps the steps of a job apart, and away from its neighbours.
	stepStride = 211
)

// jobPort is the port of a job, and of a step in it, that every node finds by itself.
func jobPort(job, step uint64, from string) Value {
	n := (job%portSpan + step%portSpan*stepStride) % portSpan
	return Value{Text: strconv.FormatUint(portBase+n, 10), From: from, Derived: true}
}

// isLoopback reports whether host means this machine on every machine.
func isLoopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// master takes the address and port of node 0 from variables. The old pytorch-operator tells node 0 that it is at
// localhost, where no other pod reaches it: its host name, which is that of its service, stands in.
func (l *lookup) master(f *Facts, addrs, ports []string) {
	f.MasterAddr, f.MasterPort = l.value(addrs...), l.value(ports...)
	if isLoopback(f.MasterAddr.Text) && f.NodeRank.Text == "0" && f.Nodes.Text != "1" && strings.HasSuffix(l.Hostname, "-master-0") {
		f.Notes = append(f.Notes,
			fmt.Sprintf("%s is %s, where no other node reaches this one: its host name is used", f.MasterAddr.From, f.MasterAddr.Text))
		f.MasterAddr = Value{Text: l.Hostname, From: f.MasterAddr.From, Derived: true}
	}
}

// group are the hosts of one kind of pods, such as worker.
type group struct {
	name, from string
	hosts      []Host
}

// launcherPods are kinds of pods that start the others and are none of the nodes.
var launcherPods = []string{"launcher", "mpimaster"}

// world puts the groups together that train: a master and its workers, else the group that this pod is of.
func world(groups []group, own string) (hosts []Host, from string) {
	member := func(name string) *group {
		i := slices.IndexFunc(groups, func(g group) bool { return strings.EqualFold(g.name, name) })
		if i < 0 {
			return nil
		}
		return &groups[i]
	}
	master, worker := member("master"), member("worker")
	if slices.Contains([]string{"master", "worker"}, strings.ToLower(own)) && master != nil && worker != nil {
		return slices.Concat(master.hosts, worker.hosts), master.from + ", " + worker.from
	}
	if g := member(own); g != nil {
		return g.hosts, g.from
	}
	return nil, ""
}

// commaHosts reads a list of hosts with commas between. A port behind a name is left out.
func commaHosts(text string) ([]Host, error) {
	var hosts []Host
	for item := range strings.SplitSeq(text, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(item), ":")
		if name == "" {
			continue
		}
		var err error
		if hosts, err = addHost(hosts, name, 0); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}
