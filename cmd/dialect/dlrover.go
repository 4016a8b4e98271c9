package dialect

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"muster/launch/job"
)

// dlroverRun is the name of DLRover's launcher.
const dlroverRun = "dlrover-run"

// DLRover reads a command line of dlrover-run: torchrun's flags without abbreviations, those that DLRover adds (as of
// version 0.6.1, elastic_run.py), and those of MetaX's guide to it. At DLROVER_MASTER_ADDR is DLRover's master, whose
// rounds the nodes take part in, or a store of muster, where they settle among themselves what DLRover asks its master for.
func DLRover(inv Invocation) (Request, error) {
	return torchrun(inv, dlroverParser(), func(t *torchrunJob) { fromDLRover(t, inv.Machine) })
}

func dlroverParser() *parser {
	p := torchrunParser(dlroverRun)
	p.options, p.exact = dlroverOptions(), true
	p.help = func() string { return p.helpText(dlroverAbout) }
	return p
}

// dlroverReplacements is how often DLRover's operator replaces the node of a rank (restartCount).
const dlroverReplacements = 3

// fromDLRover puts what dlrover-run has beyond torchrun into terms of torchrun and of muster's own settings.
func fromDLRover(t *torchrunJob, machine Machine) {
	t.dlroverNodes()
	t.dlroverReplaces()
	t.dlroverMeeting()
	t.hostPorts()
	t.dlroverChecks()
	t.dlroverBinding()
	t.dlroverLogLevel()
	t.dlroverIdle()
	t.dlroverAccelerator(machine)
}

// dlroverDevices are PyTorch's names for the devices of --accelerator.
var dlroverDevices = map[string]string{
	"nvidia.com/gpu": "cuda", "ascend-npu": "npu", "mthreads.com/gpu": "musa",
	"metax-tech.com/gpu": "cuda",
}

// dlroverAccelerator holds --accelerator against what the machine has. DLRover chooses the program of its check by it;
// muster looks for itself.
func (t *torchrunJob) dlroverAccelerator(machine Machine) {
	v, found := t.in.values["accelerator"], ""
	if !v.explicit() {
		return
	}
	if machine.Accelerators != nil {
		found, _ = machine.Accelerators(fakeSpec(t.own, t.env))
	}
	if found != dlroverDevices[v.text] {
		t.warn("%s has no effect: no such accelerator is found here, and workers take what there is",
			value{text: v.text, source: v.source}.writtenAs("accelerator"))
	}
}

// dlroverReplaces bounds how often the node of a rank is replaced: restartCount belongs to each rank. A job that goes
// on with fewer nodes needs no replacement.
func (t *torchrunJob) dlroverReplaces() {
	t.job.Restart.RankLimit = dlroverReplacements
	t.habits.RestartLimit.say(strconv.Itoa(dlroverReplacements)+perRank, job.Source{})
}

// fill gives a flag that is not given otherwise the value of the first of the variables that is set.
func (t *torchrunJob) fill(flag string, variables ...string) {
	for i := range t.parser.options {
		o := &t.parser.options[i]
		if o.name != flag || t.in.values[o.dest()].explicit() {
			continue
		}
		for _, name := range variables {
			if t.env[name] == "" {
				continue
			}
			source := job.Source{Kind: job.FromPlatform, Name: name}
			v, err := o.convert(t.env[name], source)
			if err != nil {
				t.wrong.add(fmt.Errorf("cannot use %s=%s for --%s: %w", name, t.env[name], flag, err))
				return
			}
			t.in.values[o.dest()] = v
			return
		}
	}
}

// Variables that count nodes, and number them. The second and third of each are kubeflow's, where one process is a
// node.
var (
	nodeCounts = []string{"NODE_NUM", "WORKER_NUM", "WORLD_SIZE"}
	nodeRanks  = []string{"NODE_RANK", "WORKER_RANK", "RANK"}
)

// dlroverNodes is --auto_config: as many nodes as the platform has, one worker for each accelerator.
func (t *torchrunJob) dlroverNodes() {
	v := t.in.values
	if auto := v["auto_config"]; auto.on {
		t.fill("nnodes", nodeCounts...)
		if !v["nproc_per_node"].explicit() {
			v["nproc_per_node"] = value{text: "auto", source: auto.source}
		}
		return
	}
	for _, name := range nodeCounts {
		if n, err := pyInt(t.env[name]); err == nil && n > 1 && !v["nnodes"].explicit() && !v["standalone"].on {
			t.warn("%s=%d has no effect: give --nnodes %d, or --auto_config", name, n, n)
			return
		}
	}
}

// dlroverMaster is what DLRover calls its own way to meet.
const dlroverMaster = "dlrover-master"

// dlroverMeeting finds where the nodes meet: at --rdzv-endpoint, else at DLROVER_MASTER_ADDR, else at --master-addr.
// DLRover takes no other backend than its own; another one that was asked for is taken here.
func (t *torchrunJob) dlroverMeeting() {
	v := t.in.values
	nodes, _ := parseNodes(v["nnodes"].text) // which is refused elsewhere
	backend := v["rdzv_backend"]
	t.fill("rdzv-id", "ELASTIC_JOB_NAME")
	if v["standalone"].on {
		t.fill("node-rank", nodeRanks...)
		if rank := v["node_rank"]; rank.n != 0 {
			t.refuse("node-rank", fmt.Errorf("--standalone is one node by itself, which has node rank 0"))
			v["node_rank"] = value{text: "0"}
		}
		nodes.Max = 1
	}
	own := backend.text == dlroverMaster
	if own && !v["standalone"].on && !v["rdzv_endpoint"].explicit() {
		t.master = masterAgent(t.env, &t.wrong)
		if conf, err := parseConf(v["rdzv_conf"].text); err == nil { // else it is refused elsewhere
			if s, err := time.ParseDuration(conf["pend_timeout"] + "s"); err == nil && s > 0 {
				t.master.PendTimeout = s
			}
		}
	}
	switch {
	case !own:
	case nodes.Max > 1 || v["rdzv_endpoint"].explicit() || t.master.Certain():
		backend.text = backendMuster
	default:
		backend.text = backendStatic // torchrun's way to be alone
	}
	v["rdzv_backend"] = backend
	if nodes.Max <= 1 && !t.master.Certain() {
		t.master = job.DLRoverMaster{} // nobody asks it anything
		return
	}
	t.fill("local-addr", t.ownAddress()...)
	if backend.text == backendStatic || nodes.Max > 1 {
		t.fill("node-rank", nodeRanks...)
	}
	masterAddr := v["master_addr"].explicit() || v["master_port"].explicit()
	switch {
	case backend.text == backendStatic && masterAddr, strings.HasPrefix(backend.text, backendEtcd):
	case t.env[dlroverMasterAddr] != "":
		if t.fill("rdzv-endpoint", dlroverMasterAddr); own {
			t.ignored(dlroverMasterAddr, "master-addr", "master-port")
		}
	case v["master_addr"].explicit() && !v["rdzv_endpoint"].explicit() && backend.text != backendStatic:
		endpoint := v["master_addr"]
		if !v["master_port"].none {
			endpoint.text += ":" + v["master_port"].text
		}
		v["rdzv_endpoint"] = endpoint
	}
}

// hostPorts are those that the platform keeps free for the workers' store.
func (t *torchrunJob) hostPorts() {
	const name = "HOST_PORTS"
	if t.env[name] == "" {
		return
	}
	for item := range strings.SplitSeq(t.env[name], ",") {
		port, err := pyInt(item)
		if err != nil || port < 1 || port > 65535 {
			t.wrong.add(fmt.Errorf("cannot use %s=%s: give ports from 1 to 65535 with commas between", name, t.env[name]))
			return
		}
		t.ports = append(t.ports, port)
	}
}

// ownAddress are the variables that hold this node's address, unless its interface was named.
func (t *torchrunJob) ownAddress() []string {
	if t.own.given().Iface.given || t.env[variable(ownPrefix, "iface")] != "" {
		return nil
	}
	return []string{"POD_IP", "NODE_IP"}
}

// dlroverChecks makes words of muster's own settings of the flags that both have, and of what implies them.
func (t *torchrunJob) dlroverChecks() {
	v := t.in.values
	words := new(*t.own.given())
	for i := range t.parser.options {
		o := &t.parser.options[i]
		word := v[o.dest()]
		if !o.own || !word.explicit() {
			continue
		}
		if own := settingNamed(o.name).of(words); !own.given {
			own.say(word.shown(o.kind), word.source)
			own.theirs = true
		} else if word.source.Kind == job.FromFlag {
			t.wrong.add(fmt.Errorf("cannot use --%s in front of %s and behind it: give it once", o.name, dlroverRun))
		}
	}
	imply := func(word *value, by value) {
		if !word.switched() {
			word.say("true", by.source)
		}
	}
	level := v["precheck"]
	if level.n >= 1 {
		imply(&words.NetworkCheck, level)
	}
	if level.n >= 2 {
		imply(&words.CommPerfTest, level)
	}
	if nodes, err := parseNodes(v["nnodes"].text); v["auto_config"].on && err == nil && nodes.Min >= autoCheckNodes {
		imply(&words.NetworkCheck, v["auto_config"])
	}
	const timeout = "NETWORK_CHECK_TIMEOUT"
	if text := t.env[timeout]; text != "" && !words.NetworkCheckTimeout.given && t.env[ownPrefix+timeout] == "" {
		words.NetworkCheckTimeout.say(text, job.Source{Kind: job.FromVariable, Name: timeout})
	}
	t.own = Own{words}
}

// autoCheckNodes is from how many nodes on --auto_config asks for the network check.
const autoCheckNodes = 4

// dlroverBinding is --numa-affinity: all CPUs of the NUMA node of a worker's accelerator, where that can be done.
func (t *torchrunJob) dlroverBinding() {
	v := t.in.values
	policy, affinity := v["membind_policy"], v["numa_affinity"]
	if !affinity.on {
		if policy.explicit() {
			t.warn("%s has no effect without --numa-affinity", t.given("membind-policy").writtenAs("membind-policy"))
		}
		return
	}
	if policy.text == "bind" {
		t.warn("--membind-policy bind is only as strong as preferred: memory comes from the worker's NUMA node while there is some")
	}
	if v["numa_binding"].explicit() {
		t.ignored("--numa-binding", "numa-affinity")
		return
	}
	v["numa_binding"] = value{text: "node", source: affinity.source}
	t.job.Bind.Fallback = true // as DLRover, which starts such workers unbound
	t.habits.NUMAFallback.say("true", affinity.source)
}

// dlroverLogLevel lets DLROVER_LOG_LEVEL stand for LOGLEVEL.
func (t *torchrunJob) dlroverLogLevel() {
	if t.env[logLevel] == "" && t.env["DLROVER_LOG_LEVEL"] != "" {
		t.levelFrom = "DLROVER_LOG_LEVEL"
	}
}

// dlroverIdle tells of what was asked for and does nothing in muster, or not yet.
func (t *torchrunJob) dlroverIdle() {
	v := t.in.values
	if port := v["training_port"]; port.explicit() && t.env["HCCL_IF_BASE_PORT"] == "" {
		if port.n < 1 || port.n > 65535 {
			t.refuse("training-port", fmt.Errorf("give a number from 1 to 65535"))
		}
		t.job.Env.Set = append(t.job.Env.Set, job.Var{Name: "HCCL_IF_BASE_PORT", Value: strconv.Itoa(port.n), Source: port.source})
	}
	if v["save_at_breakpoint"].on {
		t.warn("--save_at_breakpoint changes nothing: wherever muster keeps checkpoints in memory, the newest one is written whenever workers end")
	}
	if v["auto_tunning"].on {
		t.warn("--auto_tunning has no effect: no master tunes data loaders and optimizers")
	}
	if v["ucp_device_type"].explicit() || t.env["DLROVER_TRAINING_ELASTIC_MODE"] == "ucp" {
		t.warn("DeepSpeed's universal checkpoints are not converted when the number of nodes changes: --ucp_device_type and DLROVER_TRAINING_ELASTIC_MODE=ucp have no effect")
	}
	if conf, err := parseConf(v["rdzv_conf"].text); err == nil && conf["pend_timeout"] != "" && !t.master.Certain() {
		t.warn("--rdzv-conf: pend_timeout has no effect: a node that is not needed waits until it is, or until the job ends")
	}
	t.timerHabits()
	for _, name := range []string{"NCCL_SETTINGS", "MCCL_SETTINGS"} {
		if t.env[name] != "" {
			t.warn("%s has no effect: the processes of the network check have the workers' environment as it is", name)
		}
	}
	for _, name := range []string{"FAILURE_NODE_ERRORS", "DLROVER_EXTENSION_DYNAMIC_FAILOVER", "MOCK_ERR_RANK"} {
		if t.env[name] != "" {
			t.warn("%s is not supported and has no effect", name)
		}
	}
}
