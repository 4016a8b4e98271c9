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
	w := new(dlroverWords)
	return torchrun(inv, dlroverParser(w), &w.torchrunWords, func(t *torchrunJob) { (&dlroverJob{t, w}).adapt(inv.Machine) })
}

func dlroverParser(w *dlroverWords) *parser {
	p := torchrunParser(dlroverRun, &w.torchrunWords)
	p.options, p.exact = dlroverOptions(w), true
	p.help = func() string { return p.helpText(dlroverAbout) }
	return p
}

// dlroverReplacements is how often DLRover's operator replaces the node of a rank (restartCount).
const dlroverReplacements = 3

// dlroverJob is torchrun's, with what dlrover-run has beyond it.
type dlroverJob struct {
	*torchrunJob
	w *dlroverWords
}

// adapt puts what dlrover-run has beyond torchrun into terms of torchrun and of muster's own settings.
func (d *dlroverJob) adapt(machine Machine) {
	d.dlroverNodes()
	d.dlroverReplaces()
	d.dlroverMeeting()
	d.hostPorts()
	d.dlroverChecks()
	d.dlroverBinding()
	d.dlroverLogLevel()
	d.dlroverIdle()
	d.dlroverAccelerator(machine)
}

// dlroverDevices are PyTorch's names for the devices of --accelerator.
var dlroverDevices = map[string]string{
	"nvidia.com/gpu": "cuda", "ascend-npu": "npu", "mthreads.com/gpu": "musa",
	"metax-tech.com/gpu": "cuda",
}

// dlroverAccelerator holds --accelerator against what the machine has. DLRover chooses the program of its check by it;
// muster looks for itself.
func (d *dlroverJob) dlroverAccelerator(machine Machine) {
	v, found := d.w.accelerator, ""
	if !v.explicit() {
		return
	}
	if machine.Accelerators != nil {
		found, _ = machine.Accelerators(fakeSpec(d.own, d.env))
	}
	if found != dlroverDevices[v.text] {
		d.warn("%s has no effect: no such accelerator is found here, and workers take what there is",
			v.written())
	}
}

// dlroverReplaces bounds how often the node of a rank is replaced: restartCount belongs to each rank. A job that goes
// on with fewer nodes needs no replacement.
func (d *dlroverJob) dlroverReplaces() {
	d.job.Restart.RankLimit = dlroverReplacements
	d.habits.RestartLimit.say(strconv.Itoa(dlroverReplacements)+perRank, job.Source{})
}

// Variables that count nodes, and number them. The second and third of each are kubeflow's, where one process is a
// node.
var (
	nodeCounts = []string{"NODE_NUM", "WORKER_NUM", "WORLD_SIZE"}
	nodeRanks  = []string{"NODE_RANK", "WORKER_RANK", "RANK"}
)

// dlroverNodes is --auto_config: as many nodes as the platform has, one worker for each accelerator.
func (d *dlroverJob) dlroverNodes() {
	v := d.w
	if auto := v.autoConfig; auto.on {
		d.fill(&v.nnodes, nodeCounts...)
		if !v.nprocPerNode.explicit() {
			v.nprocPerNode = value{option: v.nprocPerNode.option, text: "auto", source: auto.source}
		}
		return
	}
	for _, name := range nodeCounts {
		if n, err := pyInt(d.env[name]); err == nil && n > 1 && !v.nnodes.explicit() && !v.standalone.on {
			d.warn("%s=%d has no effect: give --nnodes %d, or --auto_config", name, n, n)
			return
		}
	}
}

// dlroverMaster is what DLRover calls its own way to meet.
const dlroverMaster = "dlrover-master"

// dlroverMeeting finds where the nodes meet: at --rdzv-endpoint, else at DLROVER_MASTER_ADDR, else at --master-addr.
// DLRover takes no other backend than its own; another one that was asked for is taken here.
func (d *dlroverJob) dlroverMeeting() {
	v := d.w
	nodes, _ := parseNodes(v.nnodes.text) // which is refused elsewhere
	backend := v.rdzvBackend
	d.fill(&v.rdzvID, "ELASTIC_JOB_NAME")
	if v.standalone.on {
		d.fill(&v.nodeRank, nodeRanks...)
		if rank := v.nodeRank; rank.n != 0 {
			d.refuse(&d.w.nodeRank, fmt.Errorf("--standalone is one node by itself, which has node rank 0"))
			v.nodeRank = value{option: v.nodeRank.option, text: "0"}
		}
		nodes.Max = 1
	}
	own := backend.text == dlroverMaster
	if own && !v.standalone.on && !v.rdzvEndpoint.explicit() {
		d.master = masterAgent(d.env, &d.wrong)
		if conf, err := parseConf(v.rdzvConf.text); err == nil { // else it is refused elsewhere
			if s, err := time.ParseDuration(conf["pend_timeout"] + "s"); err == nil && s > 0 {
				d.master.PendTimeout = s
			}
		}
	}
	switch {
	case !own:
	case nodes.Max > 1 || v.rdzvEndpoint.explicit() || d.master.Certain():
		backend.text = backendMuster
	default:
		backend.text = backendStatic // torchrun's way to be alone
	}
	v.rdzvBackend = backend
	if nodes.Max <= 1 && !d.master.Certain() {
		d.master = job.DLRoverMaster{} // nobody asks it anything
		return
	}
	d.fill(&v.localAddr, d.ownAddress()...)
	if backend.text == backendStatic || nodes.Max > 1 {
		d.fill(&v.nodeRank, nodeRanks...)
	}
	masterAddr := v.masterAddr.explicit() || v.masterPort.explicit()
	switch {
	case backend.text == backendStatic && masterAddr, strings.HasPrefix(backend.text, backendEtcd):
	case d.env[dlroverMasterAddr] != "":
		if d.fill(&v.rdzvEndpoint, dlroverMasterAddr); own {
			d.ignored(dlroverMasterAddr, v.masterAddr, v.masterPort)
		}
	case v.masterAddr.explicit() && !v.rdzvEndpoint.explicit() && backend.text != backendStatic:
		endpoint := v.masterAddr
		if !v.masterPort.none {
			endpoint.text += ":" + v.masterPort.text
		}
		v.rdzvEndpoint.become(endpoint)
	}
}

// hostPorts are those that the platform keeps free for the workers' store.
func (d *dlroverJob) hostPorts() {
	const name = "HOST_PORTS"
	if d.env[name] == "" {
		return
	}
	for item := range strings.SplitSeq(d.env[name], ",") {
		port, err := pyInt(item)
		if err != nil || port < 1 || port > 65535 {
			d.wrong.add(fmt.Errorf("cannot use %s=%s: give ports from 1 to 65535 with commas between", name, d.env[name]))
			return
		}
		d.ports = append(d.ports, port)
	}
}

// ownAddress are the variables that hold this node's address, unless its interface was named.
func (d *dlroverJob) ownAddress() []string {
	if iface := d.own.given().Iface; iface.given || d.env[variable(ownPrefix, iface.option.name)] != "" {
		return nil
	}
	return []string{"POD_IP", "NODE_IP"}
}

// dlroverChecks makes words of muster's own settings of the flags that both have, and of what implies them.
func (d *dlroverJob) dlroverChecks() {
	v := d.w
	words := new(*d.own.given())
	for i := range d.parser.options {
		o := &d.parser.options[i]
		word := *o.word
		if !o.own || !word.explicit() {
			continue
		}
		if own := settingNamed(o.name).of(words); !own.given {
			own.say(word.shown(), word.source)
			own.theirs = true
		} else if word.source.Kind == job.FromFlag {
			d.wrong.add(twice(o.name, dlroverRun))
		}
	}
	imply := func(word *value, by value) {
		if !word.switched() && !d.req.staysOff(*word, by, &d.wrong) {
			word.say("true", by.source)
		}
	}
	level := v.precheck
	if level.n >= 1 {
		imply(&words.NetworkCheck, level)
	}
	if level.n >= 2 {
		imply(&words.CommPerfTest, level)
	}
	if nodes, err := parseNodes(v.nnodes.text); v.autoConfig.on && err == nil && nodes.Min >= autoCheckNodes {
		imply(&words.NetworkCheck, v.autoConfig)
	}
	const timeout = "NETWORK_CHECK_TIMEOUT"
	if text := d.env[timeout]; text != "" && !words.NetworkCheckTimeout.given && d.env[ownPrefix+timeout] == "" {
		words.NetworkCheckTimeout.say(text, job.Source{Kind: job.FromVariable, Name: timeout})
	}
	d.own = Own{words}
}

// autoCheckNodes is from how many nodes on --auto_config asks for the network check.
const autoCheckNodes = 4

// dlroverBinding is --numa-affinity: all CPUs of the NUMA node of a worker's accelerator, where that can be done.
func (d *dlroverJob) dlroverBinding() {
	v := d.w
	policy, affinity := v.membindPolicy, v.numaAffinity
	if !affinity.on {
		if policy.explicit() {
			d.warn("%s has no effect without --numa-affinity", policy.written())
		}
		return
	}
	if policy.text == "bind" {
		d.warn("--membind-policy bind is only as strong as preferred: memory comes from the worker's NUMA node while there is some")
	}
	if v.numaBinding.explicit() {
		d.ignored("--numa-binding", v.numaAffinity)
		return
	}
	v.numaBinding = value{option: v.numaBinding.option, text: "node", source: affinity.source}
	d.job.Bind.Fallback = true // as DLRover, which starts such workers unbound
	d.habits.NUMAFallback.say("true", affinity.source)
}

// dlroverLogLevel lets DLROVER_LOG_LEVEL stand for LOGLEVEL.
func (d *dlroverJob) dlroverLogLevel() {
	if d.env[logLevel] == "" && d.env["DLROVER_LOG_LEVEL"] != "" {
		d.levelFrom = "DLROVER_LOG_LEVEL"
	}
}

// dlroverIdle tells of what was asked for and does nothing in muster, or not yet.
func (d *dlroverJob) dlroverIdle() {
	v := d.w
	if port := v.trainingPort; port.explicit() && d.env["HCCL_IF_BASE_PORT"] == "" {
		if port.n < 1 || port.n > 65535 {
			d.refuse(&d.w.trainingPort, fmt.Errorf("give a number from 1 to 65535"))
		}
		d.job.Env.Set = append(d.job.Env.Set, job.Var{Name: "HCCL_IF_BASE_PORT", Value: strconv.Itoa(port.n), Source: port.source})
	}
	if v.saveAtBreakpoint.on {
		d.warn("--save_at_breakpoint changes nothing: wherever muster keeps checkpoints in memory, the newest one is written whenever " +
			"workers end")
	}
	if v.autoTunning.on {
		d.warn("--auto_tunning has no effect: no master tunes data loaders and optimizers")
	}
	if v.ucpDeviceType.explicit() || d.env["DLROVER_TRAINING_ELASTIC_MODE"] == "ucp" {
		d.warn("DeepSpeed's universal checkpoints are not converted when the number of nodes changes: --ucp_device_type and " +
			"DLROVER_TRAINING_ELASTIC_MODE=ucp have no effect")
	}
	if conf, err := parseConf(v.rdzvConf.text); err == nil && conf["pend_timeout"] != "" && !d.master.Certain() {
		d.warn("--rdzv-conf: pend_timeout has no effect: a node that is not needed waits until it is, or until the job ends")
	}
	d.timerHabits()
	for _, name := range []string{"NCCL_SETTINGS", "MCCL_SETTINGS"} {
		if d.env[name] != "" {
			d.warn("%s has no effect: the processes of the network check have the workers' environment as it is", name)
		}
	}
	if d.env["MOCK_ERR_RANK"] != "" && !d.own.given().NetworkCheck.switched() {
		d.warn("MOCK_ERR_RANK has no effect without --network-check: it is the local rank that fails there")
	}
	for _, name := range []string{"FAILURE_NODE_ERRORS", "DLROVER_EXTENSION_DYNAMIC_FAILOVER"} {
		if d.env[name] != "" {
			d.warn("%s is not supported and has no effect", name)
		}
	}
}
