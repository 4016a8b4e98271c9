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

// Variables of PyTorch's env:// method, which count processes where LOCAL_RANK is set, and else, on the platforms that
// set them for a pod, nodes.
const (
	masterAddr = "MASTER_ADDR"
	masterPort = "MASTER_PORT"
	nodeIndex  = "RANK"
	nodeCount  = "WORLD_SIZE"
	localRank  = "LOCAL_RANK"
)

func findPyTorch(l *lookup) []string {
	if l.has(localRank) {
		return nil
	}
	return l.all(masterAddr, nodeIndex, nodeCount)
}

func findAIHC(l *lookup) []string {
	if found := findPyTorch(l); found != nil && l.has("AIHC_JOB_NAME") {
		return append([]string{"AIHC_JOB_NAME"}, found...)
	}
	return nil
}

// readPyTorch reads the variables at the level of nodes. Kubeflow's operator 1.7 and newer counts processes in
// WORLD_SIZE where it knows how many a node has (kubeflow/trainer#1840), and nodes in RANK all the same.
func readPyTorch(l *lookup, f *Facts) error {
	nodes, err := l.needed(nodeCount, 1, nodeIndex)
	if err != nil {
		return err
	}
	rank, err := l.needed(nodeIndex, 0, nodeCount)
	if err != nil {
		return err
	}
	f.Nodes, f.NodeRank = l.value(nodeCount), l.value(nodeIndex)
	const perNode = "PET_NPROC_PER_NODE"
	if n, err := strconv.Atoi(l.get(perNode)); err == nil && n > 1 {
		if nodes%n != 0 {
			return l.bad(nodeCount, fmt.Errorf("it is no multiple of %s=%d", perNode, n))
		}
		nodes /= n
		f.Nodes = Value{Text: strconv.Itoa(nodes), From: nodeCount, Derived: true}
	}
	if rank >= nodes {
		return l.bad(nodeIndex,
			fmt.Errorf("%s=%s is taken for a number of nodes, so that it must be from 0 to %d; where it counts processes, LOCAL_RANK is "+
				"missing",
				nodeCount, l.get(nodeCount), nodes-1))
	}
	l.master(f, []string{masterAddr}, []string{masterPort})
	f.RunID = l.value("AIHC_JOB_NAME")
	return nil
}

func findKubeflow(l *lookup) []string {
	found := l.set("PET_NODE_RANK", "PET_RDZV_ENDPOINT")
	if !l.has("PET_NNODES") || len(found) == 0 {
		return nil
	}
	return append([]string{"PET_NNODES"}, found...)
}

// readKubeflow reads what Kubeflow's training operator (1.7 and newer) and Trainer v2 set. PET_NNODES says what
// WORLD_SIZE only suggests. The values that are muster's own settings under these names are checked where those are
// read.
func readKubeflow(l *lookup, f *Facts) error {
	f.Nodes, f.NodeRank, f.Procs = l.value("PET_NNODES"), l.value("PET_NODE_RANK"), l.value("PET_NPROC_PER_NODE")
	l.master(f, []string{"PET_MASTER_ADDR", masterAddr}, []string{"PET_MASTER_PORT", masterPort})
	f.RunID = l.value("PET_RDZV_ID")
	standalone := slices.Contains([]string{"1", "true"}, strings.ToLower(l.get("PET_STANDALONE")))
	if !l.has("PET_RDZV_ENDPOINT") || standalone {
		return nil
	}
	scheme := map[string]string{
		"": "c10d", "c10d": "c10d", "etcd": "etcd", "etcd-v2": "etcd", "etcd-v3": "etcd",
		"static": "static",
	}[l.get("PET_RDZV_BACKEND")]
	if scheme == "" {
		return l.bad("PET_RDZV_BACKEND", errors.New("it must be c10d, etcd or static"))
	}
	f.Rendezvous = Value{Text: scheme + "://" + l.get("PET_RDZV_ENDPOINT"), From: "PET_RDZV_ENDPOINT", Derived: true}
	return nil
}

func findDLRover(l *lookup) []string { return l.set("DLROVER_MASTER_ADDR", "ELASTIC_JOB_NAME") }

// readDLRover reads the variables of DLRover's operator. What listens at DLROVER_MASTER_ADDR is muster's store or
// DLRover's master, as under muster dlrover-run.
func readDLRover(l *lookup, f *Facts) error {
	count, index := []string{"NODE_NUM", "WORKER_NUM"}, []string{"NODE_RANK", "WORKER_RANK"}
	if !l.has(localRank) {
		count, index = append(count, nodeCount), append(index, nodeIndex)
	}
	f.Nodes, f.NodeRank = l.value(count...), l.value(index...)
	if f.Nodes.Text == "" {
		return nil
	}
	if _, _, err := l.number(f.Nodes.From, 1); err != nil {
		return err
	}
	if _, _, err := l.number(f.NodeRank.From, 0); err != nil {
		return err
	}
	f.RunID, f.LocalAddr = l.value("ELASTIC_JOB_NAME"), l.value("POD_IP", "NODE_IP")
	if l.has("DLROVER_MASTER_ADDR") {
		f.Rendezvous = Value{Text: "muster://" + l.get("DLROVER_MASTER_ADDR"), From: "DLROVER_MASTER_ADDR", Derived: true}
		return nil
	}
	l.master(f, []string{masterAddr}, []string{masterPort})
	return nil
}

func findAITJ(l *lookup) []string { return l.all("TRAININGJOB_NAME", "TRAININGJOB_REPLICA_NAME") }

// readAITJ reads the variables of Baidu's AITrainingJob: a list of hosts for every group of replicas.
func readAITJ(l *lookup, f *Facts) error {
	own := l.get("TRAININGJOB_REPLICA_NAME")
	f.RunID = l.value("TRAININGJOB_NAME")
	if slices.Contains(launcherPods, strings.ToLower(own)) {
		f.Problem = launcherPod("TRAININGJOB_REPLICA_NAME=" + own)
		return nil
	}
	variable := strings.ToUpper(own)
	var groups []group
	for _, kind := range slices.Compact(slices.Sorted(slices.Values([]string{variable, "MASTER", "WORKER"}))) {
		name := kind + "_INSTANCES"
		hosts, err := commaHosts(l.get(name))
		if err != nil {
			return l.bad(name, err)
		}
		if len(hosts) > 0 {
			groups = append(groups, group{kind, name, hosts})
		}
	}
	hosts, from := world(groups, variable)
	if n, ok, err := l.number(variable+"_INSTANCES_NUM", 1); err != nil {
		return err
	} else if ok && strings.EqualFold(from, variable+"_INSTANCES") && n != len(hosts) {
		return l.bad(variable+"_INSTANCES_NUM", fmt.Errorf("%s has %d", from, len(hosts)))
	}
	if len(hosts) == 0 {
		return nil
	}
	index, err := l.needed("TRAININGJOB_REPLICA_INDEX", 0, "TRAININGJOB_REPLICA_NAME")
	if err != nil {
		return err
	}
	if variable == "WORKER" {
		index += len(hosts) - len(groups[len(groups)-1].hosts) // behind the master
	}
	if index >= len(hosts) {
		return l.bad("TRAININGJOB_REPLICA_INDEX", fmt.Errorf("%s has %d hosts", from, len(hosts)))
	}
	f.Hosts = hosts
	f.Nodes = Value{Text: strconv.Itoa(len(hosts)), From: from, Derived: true}
	if nodes := l.value(variable + "_INSTANCES_NUM"); nodes.Text == f.Nodes.Text {
		f.Nodes = nodes
	}
	f.NodeRank = Value{
		Text: strconv.Itoa(index), From: "TRAININGJOB_REPLICA_INDEX",
		Derived: l.get("TRAININGJOB_REPLICA_INDEX") != strconv.Itoa(index),
	}
	f.MasterAddr = Value{Text: hosts[0].Name, From: from, Derived: true}
	return l.aitjPort(f, strings.TrimSuffix(strings.Split(from, ", ")[0], "_INSTANCES")+"_PORTS")
}

// aitjPort is the first port of the group that the master is in.
func (l *lookup) aitjPort(f *Facts, name string) error {
	first, _, _ := strings.Cut(l.get(name), ",")
	if first = strings.TrimSpace(first); first == "" {
		return nil
	}
	if n, err := strconv.ParseUint(first, 10, 16); err != nil || n == 0 {
		return l.bad(name, errors.New("it must be a list of ports"))
	}
	f.MasterPort = Value{Text: first, From: name, Derived: first != l.get(name)}
	return nil
}

func launcherPod(what string) *Problem {
	return &Problem{
		what + " says that this pod starts the others, and is none of the nodes",
		"start muster in the other pods; or give --nnodes 1 to start in this one",
	}
}

// names are the variables that are set and fit, sorted.
func (l *lookup) names(fits func(name string) bool) []string {
	var names []string
	for name, value := range l.Environ {
		if value != "" && fits(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// volcanoTask is the variable with the hosts of one of a Volcano job's tasks.
var volcanoTask = lazyregexp.New(`^VC_([A-Z0-9_]+)_HOSTS$`)

// volcanoDir has the same lists as files, also where the variables are switched off.
const volcanoDir = "/etc/volcano"

func (l *lookup) volcanoFiles() []string {
	if l.Files == nil {
		return nil
	}
	found, _ := fs.Glob(l.Files, volcanoDir[1:]+"/*.host") // the pattern is a good one
	for i := range found {
		found[i] = "/" + found[i]
	}
	return found
}

func findVolcano(l *lookup) []string {
	if names := l.names(volcanoTask().MatchString); len(names) > 0 {
		return names
	}
	return l.volcanoFiles()
}

func readVolcano(l *lookup, f *Facts) error {
	if found := findPyTorch(l); found != nil { // its plug-in for PyTorch, which counts nodes
		f.Why = append(f.Why, found...)
		_, _, err := l.place(f, nodeIndex, nodeCount)
		l.master(f, []string{masterAddr}, []string{masterPort})
		return err
	}
	groups, err := l.volcanoTasks()
	if err != nil {
		return err
	}
	if l.has("MPI_HOST") {
		f.Problem = launcherPod("MPI_HOST")
		return nil
	}
	own := slices.IndexFunc(groups, func(g group) bool {
		return slices.ContainsFunc(g.hosts, func(h Host) bool { return sameHost(h.Name, l.Hostname) })
	})
	if own < 0 {
		l.among(f, slices.Concat(groups[0].hosts), groups[0].from)
		return nil
	}
	if slices.Contains(launcherPods, strings.ToLower(groups[own].name)) {
		f.Problem = launcherPod(groups[own].from)
		return nil
	}
	hosts, from := world(groups, groups[own].name)
	l.among(f, hosts, from)
	return nil
}

// volcanoTasks are the tasks of the job, each with its hosts.
func (l *lookup) volcanoTasks() ([]group, error) {
	var groups []group
	for _, name := range l.names(volcanoTask().MatchString) {
		hosts, err := commaHosts(l.get(name))
		if err != nil {
			return nil, l.bad(name, err)
		}
		groups = append(groups, group{volcanoTask().FindStringSubmatch(name)[1], name, hosts})
	}
	if len(groups) > 0 {
		return groups, nil
	}
	for _, file := range l.volcanoFiles() {
		content, err := l.file(file)
		var hosts []Host
		if err == nil {
			hosts, err = commaHosts(strings.Join(strings.Fields(string(content)), ","))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot use %s: %w", file, err)
		}
		task := strings.TrimSuffix(strings.TrimPrefix(file, volcanoDir+"/"), ".host")
		groups = append(groups, group{task, file, hosts})
	}
	return groups, nil
}

// indexed is the name of a pod of an indexed job: a JobSet's is <jobset>-<job>-<job index>-<index>.
var indexed = lazyregexp.New(`^(.*?)(?:-([0-9]{1,9}))?-([0-9]{1,9})$`)

const completionIndex = "JOB_COMPLETION_INDEX"

func findJobSet(l *lookup) []string {
	short, _, _ := strings.Cut(l.Hostname, ".")
	m := indexed().FindStringSubmatch(short)
	if m == nil || m[1] == "" || m[3] != l.get(completionIndex) {
		return nil
	}
	return []string{completionIndex, "host name"}
}

// readJobSet reads the index and the names of an indexed job's pods. How many there are is in no variable.
func readJobSet(l *lookup, f *Facts) error {
	short, _, _ := strings.Cut(l.Hostname, ".")
	m := indexed().FindStringSubmatch(short)
	f.Notes = append(f.Notes, "the number of nodes is in no variable of an indexed job: give --nnodes N for a job of several")
	if m[2] != "" && m[2] != "0" {
		f.Notes = append(f.Notes, "the rank of this node cannot be told where a JobSet replicates jobs: give --node-rank N")
		return nil
	}
	first := strings.TrimSuffix(short, m[3]) + "0"
	f.NodeRank = l.value(completionIndex)
	f.MasterAddr = Value{Text: first, From: "host name", Derived: true}
	if domain := l.domain(short); domain != "" {
		f.MasterAddr.Text += "." + domain
	}
	return nil
}

// domain is that of this pod: a pod that others reach by name has its full one in /etc/hosts.
func (l *lookup) domain(short string) string {
	if _, domain, ok := strings.Cut(l.Hostname, "."); ok {
		return domain
	}
	content, err := l.file("/etc/hosts")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		for word := range strings.FieldsSeq(line) {
			if domain, ok := strings.CutPrefix(word, short+"."); ok && hosts.IsName(domain) && hosts.IsName(word) {
				return domain
			}
		}
	}
	return ""
}
