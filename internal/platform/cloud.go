package platform

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"muster/internal/hosts"
)

// sagemakerConfig says which hosts a training job has, also in containers without SageMaker's toolkit, which makes
// variables of it.
const sagemakerConfig = "/opt/ml/input/config/resourceconfig.json"

func findSageMaker(l *lookup) []string {
	if l.has("SM_HOSTS") {
		return l.set("SM_HOSTS", "SM_CURRENT_HOST")
	}
	if l.exists(sagemakerConfig) {
		return []string{sagemakerConfig}
	}
	return nil
}

// sagemakerPort is where the toolkit's own launchers meet.
const sagemakerPort = "7777"

func readSageMaker(l *lookup, f *Facts) error {
	var config struct {
		Current string   `json:"current_host"`
		Hosts   []string `json:"hosts"`
	}
	from := "SM_HOSTS"
	if l.has(from) {
		config.Current = l.get("SM_CURRENT_HOST")
		if err := decode([]byte(l.get(from)), &config.Hosts); err != nil {
			return l.bad(from, err)
		}
		if config.Current == "" {
			return errors.New("cannot use SM_HOSTS without SM_CURRENT_HOST, which is not set")
		}
	} else {
		from = sagemakerConfig
		content, err := l.file(from)
		if err == nil {
			err = decode(content, &config)
		}
		if err != nil {
			return fmt.Errorf("cannot use %s: %w", from, err)
		}
	}
	var hosts []Host
	for _, name := range config.Hosts {
		var err error
		if hosts, err = addHost(hosts, name, 0); err != nil {
			return fmt.Errorf("cannot use %s: %w", from, err)
		}
	}
	here := lookup{Input{Hostname: config.Current}}
	if here.among(f, dedupe(hosts), from); f.Problem != nil {
		return fmt.Errorf("cannot use %s: %s is none of its hosts", from, shown(config.Current))
	}
	f.MasterPort = Value{Text: sagemakerPort, From: from, Derived: true}
	if n, ok, err := l.number("SM_NUM_GPUS", 0); err != nil {
		return err
	} else if ok && n > 0 {
		f.Procs = l.value("SM_NUM_GPUS")
	}
	return nil
}

// decode reads JSON of a bounded size.
func decode(content []byte, into any) error {
	if len(content) > maxFile {
		return fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("it is not the JSON that belongs there: %w", err)
	}
	return nil
}

func findVertex(l *lookup) []string {
	// TensorFlow's clusters elsewhere have a variable of this name, without pools.
	if !strings.Contains(l.get("CLUSTER_SPEC"), `"workerpool0"`) {
		return nil
	}
	return []string{"CLUSTER_SPEC"}
}

// readVertex reads Vertex AI's description: pool 0 is node 0, pool 1 the other nodes; pools 2 and 3 serve and evaluate.
func readVertex(l *lookup, f *Facts) error {
	const from = "CLUSTER_SPEC"
	var spec struct {
		Cluster map[string][]string `json:"cluster"`
		Task    struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
		} `json:"task"`
	}
	if err := decode([]byte(l.get(from)), &spec); err != nil {
		return l.bad(from, err)
	}
	first, others := spec.Cluster["workerpool0"], spec.Cluster["workerpool1"]
	pool, rank := spec.Cluster[spec.Task.Type], spec.Task.Index
	switch {
	case len(first) != 1:
		return l.bad(from, fmt.Errorf("workerpool0 must be one machine, and is %d", len(first)))
	case len(others) > hosts.MaxHosts:
		return l.bad(from, fmt.Errorf("there are more than %d hosts", hosts.MaxHosts))
	case rank < 0 || rank >= len(pool):
		return l.bad(from, fmt.Errorf("there is no task %d in %s", rank, shown(spec.Task.Type)))
	case spec.Task.Type == "workerpool0":
	case spec.Task.Type == "workerpool1":
		rank++
	default:
		f.Problem = &Problem{
			spec.Task.Type + " trains nothing: the nodes are workerpool0 and workerpool1",
			"start muster in those; or give --nnodes 1 to start in this one",
		}
		return nil
	}
	var hosts []Host
	for _, at := range append(first[:1:1], others...) {
		host, _, err := net.SplitHostPort(at)
		if err != nil {
			host = at
		}
		if hosts, err = addHost(hosts, host, 0); err != nil {
			return l.bad(from, err)
		}
	}
	f.Hosts = hosts
	f.Nodes = Value{Text: strconv.Itoa(1 + len(others)), From: from, Derived: true}
	f.NodeRank = Value{Text: strconv.Itoa(rank), From: from, Derived: true}
	f.MasterAddr = Value{Text: hosts[0].Name, From: from, Derived: true}
	f.MasterPort = l.value(masterPort)
	if _, port, err := net.SplitHostPort(first[0]); err == nil && f.MasterPort.Text == "" {
		f.MasterPort = Value{Text: port, From: from, Derived: true}
	}
	return nil
}

func findAWSBatch(l *lookup) []string {
	return l.set("AWS_BATCH_JOB_NUM_NODES")
}

// readAWSBatch reads a multi-node parallel job of AWS Batch. Its main node need not be the first: ranks are counted
// from there. The main node itself is not told its address.
func readAWSBatch(l *lookup, f *Facts) error {
	const index, main = "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_MAIN_NODE_INDEX"
	rank, nodes, err := l.place(f, index, "AWS_BATCH_JOB_NUM_NODES")
	if err != nil {
		return err
	}
	first, _, err := l.number(main, 0)
	if err != nil {
		return err
	}
	if first >= nodes {
		return l.bad(main, fmt.Errorf("the job has %d nodes", nodes))
	}
	if first > 0 {
		rank = (rank - first + nodes) % nodes
		f.NodeRank = Value{Text: strconv.Itoa(rank), From: index + ", " + main, Derived: true}
	}
	const addr = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
	f.MasterAddr = l.value(addr)
	if rank == 0 && f.MasterAddr.Text == "" {
		f.MasterAddr = Value{Text: l.Hostname, From: "host name", Derived: true}
		if l.OwnAddr != nil {
			if own := l.OwnAddr(); own != "" {
				f.MasterAddr = Value{Text: own, From: "this machine's address", Derived: true}
			}
		}
	}
	if id, _, _ := strings.Cut(l.get("AWS_BATCH_JOB_ID"), "#"); id != "" { // behind it is the node's index
		f.RunID = Value{Text: id, From: "AWS_BATCH_JOB_ID", Derived: id != l.get("AWS_BATCH_JOB_ID")}
	}
	return nil
}

func findLepton(l *lookup) []string { return l.set("LEPTON_JOB_NAME", "LEPTON_JOB_TOTAL_WORKERS") }

// readLepton reads the variables of a job on NVIDIA DGX Cloud Lepton. Its scripts for PyTorch fall back on the job's
// name in the same way.
func readLepton(l *lookup, f *Facts) error {
	if !l.has("LEPTON_JOB_TOTAL_WORKERS") {
		return nil
	}
	if _, _, err := l.place(f, "LEPTON_JOB_WORKER_INDEX", "LEPTON_JOB_TOTAL_WORKERS"); err != nil {
		return err
	}
	f.RunID = l.value("LEPTON_JOB_NAME")
	prefix := l.value("LEPTON_JOB_SERVICE_PREFIX", "LEPTON_JOB_NAME")
	subdomain := l.value("LEPTON_SUBDOMAIN")
	if subdomain.Text == "" && l.has("LEPTON_JOB_NAME") {
		subdomain.Text = l.get("LEPTON_JOB_NAME") + "-job-svc"
	}
	if prefix.Text != "" && subdomain.Text != "" {
		f.MasterAddr = Value{Text: prefix.Text + "-0." + subdomain.Text, From: prefix.From, Derived: true}
	}
	if n, ok, err := l.number("LEPTON_RESOURCE_ACCELERATOR_NUM", 0); err != nil {
		return err
	} else if ok && n > 0 {
		f.Procs = l.value("LEPTON_RESOURCE_ACCELERATOR_NUM")
	}
	return nil
}

// Variables in which Azure ML tells where node 0 is: of several nodes, and of one.
const (
	azureMaster    = "AZ_BATCH_MASTER_NODE"
	azureMPIMaster = "AZ_BATCHAI_MPI_MASTER_NODE"
)

func findAzureML(l *lookup) []string {
	if found := l.all("AZUREML_EXPERIMENT_ID", masterAddr, "NODE_RANK"); found != nil {
		return found
	}
	return l.set(azureMaster)
}

// readAzureML reads what Azure ML sets for PyTorch: NODE_RANK of the node; RANK, LOCAL_RANK and WORLD_SIZE of
// processes, of which there must be one on a node. The first process of a node cannot tell without AZUREML_NODE_COUNT;
// the others can.
func readAzureML(l *lookup, f *Facts) error {
	index := l.value("NODE_RANK", nodeIndex)
	count := l.value("AZUREML_NODE_COUNT", nodeCount)
	if index.Text == "" || count.Text == "" {
		f.Notes = append(f.Notes,
			"Azure ML says neither the number of nodes nor which this is: muster is to be started by its PyTorch or MPI distribution, "+
				"once on each node")
		return nil
	}
	rank, nodes, err := l.place(f, index.From, count.From)
	if err != nil {
		return err
	}
	p := Process{Rank: rank, World: nodes}
	for _, v := range []struct {
		name string
		to   *int
	}{{nodeIndex, &p.Rank}, {nodeCount, &p.World}, {localRank, &p.LocalRank}} {
		n, ok, err := l.number(v.name, 0)
		if err != nil {
			return err
		}
		if ok {
			*v.to = n
		}
	}
	if p.LocalRank > 0 || p.Rank != rank || p.World > nodes {
		f.Process = &p
		f.Nodes, f.NodeRank = Value{}, Value{}
		f.Problem = oneOfMany(&p, fmt.Sprintf("Azure ML starts %d processes, several on a node", p.World),
			"start muster once on each node, and let it start the workers: process_count_per_instance: 1")
		return nil
	}
	if l.has(masterAddr) {
		l.master(f, []string{masterAddr}, []string{masterPort})
		return nil
	}
	return l.azureMaster(f)
}
