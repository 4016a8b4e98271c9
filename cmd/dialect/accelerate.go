package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/launch/job"
)

// Names of Hugging Face's launcher: its program, which takes the word launch first, the one that does not, and the
// module.
const (
	accelerateProg   = "accelerate"
	accelerateLaunch = "accelerate-launch"
	accelerateModule = "accelerate.commands.launch"
)

// Accelerate reads a command line of accelerate, whose first word says what it is to do: launch is the one that muster
// replaces.
func Accelerate(inv Invocation) (Request, error) {
	others := map[string]string{
		"config": "it asks questions and writes a file, which muster reads", "env": "it describes a Python environment",
		"test":            "it runs a script of its own",
		"estimate-memory": "it loads a model's description", "merge-weights": "it rewrites checkpoints",
		"to-fsdp2":   "it rewrites a configuration file",
		"tpu-config": "it sets up machines of Google Cloud",
	}
	if len(inv.Args) == 0 {
		return Request{}, errhint.With(errhint.Usagef("accelerate has no command"), "write accelerate launch … script.py")
	}
	word := inv.Args[0]
	why, theirs := others[word]
	switch {
	case word == "launch":
		inv.Args = inv.Args[1:]
		return AccelerateLaunch(inv)
	case word == "-h" || word == "--help":
		return Request{}, printed(accelerateParser(new(accelerateWords)).help())
	case theirs:
		return Request{}, errhint.With(errhint.Usagef("accelerate %s is not done by muster: %s; muster replaces launch only", word, why),
			"run the program itself, such as python -m accelerate.commands.accelerate_cli "+word)
	}
	return Request{}, errhint.With(errhint.Usagef("accelerate has no command %q", word), "write accelerate launch … script.py")
}

// AccelerateLaunch reads a command line of accelerate launch as version 1.15.0 does, with its configuration file. Where
// it starts torchrun, so do we; where it starts one plain process although several were asked for, several start.
func AccelerateLaunch(inv Invocation) (Request, error) {
	env := newEnviron(inv.Environ)
	w := new(accelerateWords)
	p := accelerateParser(w)
	p.standsBehind(inv, env)
	in, err := p.parse(inv.Args, env)
	if err != nil {
		return Request{JSON: inv.Own.json(env)}, err
	}
	a := &accelerateJob{inv: inv, env: env, parser: p, w: w}
	a.readConfig()
	a.check()
	a.decide()
	a.variables()
	a.torchrun()
	req, err := torchrunOf(inv, p, in, &w.torchrunWords, a.fill)
	if err != nil {
		return req, err
	}
	a.quiet(&req)
	return req, nil
}

const accelerateAbout = "Starts the workers of a PyTorch job on this machine, as Hugging Face's accelerate launch does, and watches " +
	"over them; with a\n" + `hostfile of DeepSpeed or MPI on all machines that it names.

Flags come before the training script; everything behind it belongs to the script. Dashes and underscores in names are
the same; names cannot be abbreviated. What no flag says comes from variables MUSTER_<FLAG>, then from the configuration
file that accelerate config writes. Flags of muster itself stand in front of the launcher's name.
`

func accelerateParser(w *accelerateWords) *parser {
	p := &parser{
		prog: "accelerate launch", script: "training_script", options: accelerateOptions(w), prefixes: []string{ownPrefix},
		exact: true,
	}
	p.help = func() string { return p.helpText(accelerateAbout) }
	return p
}

// accelerateJob is a command line of accelerate launch on its way to a job.
type accelerateJob struct {
	inv    Invocation
	env    environ
	parser *parser
	w      *accelerateWords
	file   accelerateFile
	// launcher is the way that accelerate would take, cpu whether workers are to compute on CPUs.
	launcher accelerateLauncher
	cpu      bool
	procs    int // of all machines; 0: one per accelerator
	machines int
	// single is true for one plain process, which sees no variables of torchelastic. outer is true for one that an MPI
	// launcher started as one of several.
	single, outer bool
	nodes         []job.Node // that muster starts
	perNode       value      // workers of this machine
	localRank     bool       // workers get --local_rank=N, too
	own           []job.Var  // variables of this machine's workers
	vars          []job.Var
	warnings      []string
	wrong         problems
}

// accelerateLauncher is how accelerate starts processes.
type accelerateLauncher int

const (
	simpleLauncher    accelerateLauncher = iota // one plain process, or mpirun
	torchLauncher                               // torchrun
	deepspeedLauncher                           // torchrun, or deepspeed
)

// option finds an option by its dest.
func (a *accelerateJob) option(dest string) *option {
	for i := range a.parser.options {
		if o := &a.parser.options[i]; o.dest() == dest {
			return o
		}
	}
	return nil
}

// refuse adds a problem with the value of an option, naming where it came from.
func (a *accelerateJob) refuse(word *value, err error) {
	if err == nil {
		return
	}
	v := *word
	if v.option.kind == kindFlag && v.fromFlag() {
		v.text = ""
	}
	a.wrong.add(fmt.Errorf("cannot use %s: %w", v.written(), err))
}

func (a *accelerateJob) warn(format string, args ...any) {
	a.warnings = append(a.warnings, fmt.Sprintf(format, args...))
}

// byFile turns a flag on because of the configuration file's distributed_type.
func (a *accelerateJob) byFile(word *value, kinds ...string) {
	if slices.Contains(kinds, a.file.kind) {
		word.become(value{text: "true", on: true, source: a.file.kindFrom})
	}
}

// accelerateGPUs are the distributed types of one worker per accelerator and nothing more.
var accelerateGPUs = []string{
	"MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON",
}

// check holds the flags against each other, and lets the configuration file choose where they leave the way of training
// open.
func (a *accelerateJob) check() {
	var ways []string
	for _, v := range []value{a.w.cpu, a.w.multiGPU, a.w.tpu, a.w.useDeepspeed, a.w.useFSDP} {
		if v.on {
			ways = append(ways, "--"+v.option.name)
		}
	}
	if len(ways) > 1 {
		a.wrong.add(fmt.Errorf("cannot use %s together: choose one of them", strings.Join(ways, " and ")))
	}
	if n := a.w.numProcesses; a.w.multiGPU.on && n.source.Kind == job.FromFlag && n.n < 2 {
		a.refuse(&a.w.numProcesses, errors.New("--multi-gpu is for at least 2 processes"))
	}
	if a.file.name != "" && !a.w.multiGPU.on && !a.w.tpu.on && !a.w.useDeepspeed.on && !a.w.useFSDP.on && !a.w.useMegatronLM.on &&
		a.w.tpuCluster.source.Kind == job.FromDefault {
		a.byFile(&a.w.useDeepspeed, "DEEPSPEED")
		a.byFile(&a.w.multiGPU, accelerateGPUs...)
		a.byFile(&a.w.tpu, "XLA")
		a.byFile(&a.w.useFSDP, "FSDP")
		a.byFile(&a.w.useMegatronLM, "MEGATRON_LM")
		if a.file.parallelism && !a.w.useParallelismConfig.explicit() {
			a.w.useParallelismConfig.become(value{text: "true", on: true, source: a.file.kindFrom})
		}
	}
	if v := a.w.useParallelismConfig; v.on && v.source.Kind != job.FromConfig && !a.w.useDeepspeed.on &&
		(!a.w.useFSDP.on || a.w.fsdpVersion.text == "1") {
		a.refuse(&a.w.useParallelismConfig, errhint.With(errors.New("it needs fully sharded data parallelism of version 2, or DeepSpeed"),
			"give --use-fsdp --fsdp-version 2"))
	}
	if a.w.noPython.on && a.w.module.on {
		a.wrong.add(errors.New("cannot use --no-python and --module together: a module needs Python; leave one of them out"))
		a.w.module.become(value{text: "false"})
	}
	for _, v := range []*value{&a.w.awsAccessKeyID, &a.w.awsSecretAccessKey} {
		if v.explicit() {
			v.text = "…" // a secret
			a.refuse(v, errors.New("muster starts no jobs of SageMaker"))
		}
	}
	if a.w.tpu.on && !a.w.cpu.on {
		a.refuse(&a.w.tpu, errors.New("processes for TPUs are started by torch_xla inside of Python, which muster cannot do"))
		return
	}
	for i := range a.parser.options {
		if o := &a.parser.options[i]; o.group == groupTPU && o.word.fromFlag() {
			a.warn("--%s has no effect without --tpu", o.name)
		}
	}
	a.words()
}

// decide finds which way processes are started, how many, and where.
func (a *accelerateJob) decide() {
	switch {
	case a.w.cpu.on:
	case a.w.useDeepspeed.on:
		a.launcher = deepspeedLauncher
	case a.w.useFSDP.on, a.w.useMegatronLM.on, a.w.multiGPU.on:
		a.launcher = torchLauncher
	}
	a.cpu = a.launcher == simpleLauncher && (a.w.cpu.on || a.file.useCPU)
	a.count()
	defer a.withoutHosts()
	hostfile := a.w.mpirunHostfile
	switch {
	case a.launcher == simpleLauncher && !hostfile.none:
		a.mpiNodes(hostfile)
		return
	case a.launcher == deepspeedLauncher && a.machines > 1:
		if launcher := a.multinode(); launcher != "standard" {
			a.deepspeedNodes(launcher)
			return
		}
	case a.launcher == simpleLauncher && underMPI(a.env):
		a.single, a.outer = true, true
		return
	}
	several := a.procs > 1 || a.machines > 1 || a.procs == 0 && a.launcher != simpleLauncher
	if a.launcher == simpleLauncher && !a.cpu && several && a.file.kind != "MULTI_CPU" {
		a.launcher = torchLauncher
	}
	if a.launcher == simpleLauncher && !several {
		a.single = true
		a.idle("one process", a.w.rdzvBackend, a.w.rdzvConf, a.w.mainProcessIP, a.w.mainProcessPort, a.w.sameNetwork)
	}
	a.share()
}

// idle tells of flags that were typed and have no effect.
func (a *accelerateJob) idle(on string, words ...value) {
	var flags []string
	for _, v := range words {
		if v.fromFlag() {
			flags = append(flags, "--"+v.option.name)
		}
	}
	if len(flags) > 0 {
		a.warn("no effect on %s: %s", on, strings.Join(flags, ", "))
	}
}

// count finds how many processes and machines there are.
func (a *accelerateJob) count() {
	a.machines = 1
	if v := a.w.numMachines; !v.none {
		if v.n < 1 || v.n > maxNodes {
			a.refuse(&a.w.numMachines, fmt.Errorf("give a number from 1 to %d", maxNodes))
			return
		}
		a.machines = v.n
	}
	if rank := a.w.machineRank; !rank.none && (rank.n < 0 || rank.n >= a.machines) && (rank.n != 0 || a.machines > 1) {
		a.refuse(&a.w.machineRank, fmt.Errorf("machine ranks go from 0 to %d", a.machines-1))
		a.w.machineRank.become(value{text: "0"})
	}
	if port := a.w.mainProcessPort; !port.none && (port.n < 0 || port.n > 65535) {
		a.refuse(&a.w.mainProcessPort, errors.New("give a number from 0 to 65535"))
	}
	v := a.w.numProcesses
	ids := a.gpuIDs()
	switch {
	case a.file.name != "" && (v.none || v.n == -1): // as the files of accelerate say it
		if a.file.kind == "NO" && v.none {
			a.procs = 1
			break
		}
		a.wrong.add(errhint.With(fmt.Errorf("cannot tell how many processes to start: %s leaves num_processes open", a.file.name),
			"give --num-processes N"))
		a.procs = a.machines
	case v.none && (a.cpu || underMPI(a.env) && a.launcher == simpleLauncher):
		a.procs = a.machines
	case v.none && len(ids) > 0:
		a.procs = len(ids) * a.machines
	case v.none:
		a.open()
	case v.n < 1:
		a.refuse(&a.w.numProcesses, errors.New("a job needs at least 1 process"))
		a.procs = a.machines
	default:
		a.procs = v.n
	}
	if a.w.multiGPU.on && a.launcher == torchLauncher && a.machines == 1 && len(ids) == 1 && a.procs > 1 {
		a.refuse(&a.w.gpuIDs, fmt.Errorf("%d processes on one accelerator; name more of them, or all", a.procs))
	}
}

// open settles the number of processes that nobody gave: one per accelerator of each machine, else one.
func (a *accelerateJob) open() {
	_, found := a.accelerators()
	switch {
	case found > 1 || found == 1 && a.machines > 1:
		a.procs = found * a.machines
	case a.launcher == simpleLauncher || found == 1:
		a.procs = a.machines
	} // else none are seen, which is told where they are counted
}

// accelerators are how many of them workers on this machine see, and PyTorch's name for such devices.
func (a *accelerateJob) accelerators() (backend string, n int) {
	if a.inv.Machine.Accelerators == nil {
		return "", 0
	}
	return a.inv.Machine.Accelerators(fakeSpec(a.inv.Own, a.env))
}

// gpuIDs are the accelerators that were named; nil for all.
func (a *accelerateJob) gpuIDs() []string {
	v := a.w.gpuIDs
	if v.none || v.text == "all" {
		return nil
	}
	var ids []string
	for id := range strings.SplitSeq(v.text, ",") {
		if id = strings.TrimSpace(id); id != "" {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		a.refuse(&a.w.gpuIDs, errors.New("give numbers with commas between, or all"))
	}
	return ids
}

// share gives each machine its part of the processes.
func (a *accelerateJob) share() {
	source := a.w.numProcesses.source
	if a.procs == 0 {
		a.perNode = value{text: "gpu", source: source}
		return
	}
	if a.procs%a.machines != 0 {
		a.refuse(&a.w.numProcesses,
			errhint.With(fmt.Errorf("%d processes cannot be shared out evenly among %d machines", a.procs, a.machines),
				fmt.Sprintf("--num-processes is the number on all machines together: give a multiple of %d", a.machines)))
		return
	}
	per := a.procs / a.machines
	if per > maxProcs {
		a.refuse(&a.w.numProcesses, fmt.Errorf("more than %d workers on a machine", maxProcs))
		return
	}
	a.perNode = value{text: strconv.Itoa(per), source: source}
}

// mpiSizes are the variables by which launchers of MPI tell a process how many there are.
var mpiSizes = []string{"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"}

// underMPI reports whether an MPI launcher started this process as one of several.
func underMPI(env environ) bool {
	return slices.ContainsFunc(mpiSizes, func(name string) bool {
		n, err := pyInt(env[name])
		return err == nil && n > 1
	})
}

// fakeSpec is the path of the fake accelerator's spec that was asked for, empty for none.
func fakeSpec(own Own, env environ) string {
	const prefix = "fake:"
	asked := own.given().Accelerator
	word := asked.text
	if word == "" {
		word = env[variable(ownPrefix, asked.option.name)]
	}
	if word == "" && env[fakeVariable] != "" {
		word = prefix + env[fakeVariable]
	}
	spec, _ := strings.CutPrefix(word, prefix)
	return spec
}
