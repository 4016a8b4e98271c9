package dialect

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/launch/job"
)

// deepSpeed is the name of DeepSpeed's launcher.
const deepSpeed = "deepspeed"

// DeepSpeed reads a command line of deepspeed (0.19.8, deepspeed/launcher). What it does on several hosts by pdsh, MPI
// or srun, muster does itself: Job.Hosts has the hosts that the hostfile and the filters leave.
func DeepSpeed(inv Invocation) (Request, error) {
	env, w := newEnviron(inv.Environ), new(deepSpeedWords)
	p := deepSpeedParser(w)
	in, err := p.parse(inv.Args, env)
	if err != nil {
		return Request{JSON: inv.Own.json(env)}, err
	}
	d := &deepSpeedJob{torchrunJob: torchrunJob{env: env, parser: p, in: in, own: inv.Own}, inv: inv, w: w}
	d.job = &d.req.Job
	*d.job = launcherJob(deepSpeed, inv)
	d.job.Env.NoDefaults, d.job.Env.Cross = true, true
	d.accelerator()
	d.unsupported()
	d.nodes()
	d.command()
	d.output()
	return d.finish()
}

func deepSpeedParser(w *deepSpeedWords) *parser {
	p := &parser{prog: deepSpeed, script: "user_script", options: deepSpeedOptions(w), oneSpelling: true}
	p.help = func() string { return p.helpText(deepSpeedAbout) }
	return p
}

// launcherJob is a job before anything was read of the command line of a launcher that reaches other hosts.
func launcherJob(name string, inv Invocation) job.Job {
	signals, _, err := parseSignals(defaultSignals)
	if err != nil {
		panic("internal error: the default signals are wrong")
	}
	return job.Job{
		Dialect: name, Nodes: job.Range{Min: 1, Max: 1}, Role: "default", Restart: defaultRestart(),
		Stop: job.StopRules{Grace: defaultGrace, Handled: signals}, Warm: job.WarmRules{Wait: defaultWarmWait},
		See:          job.SeeRules{Keep: defaultKeepRuns},
		InheritStdin: true, EventLog: "null", Environ: inv.Environ, Sources: job.Sources{},
	}
}

// deepSpeedJob turns deepspeed's options into a job.
type deepSpeedJob struct {
	torchrunJob
	inv   Invocation
	w     *deepSpeedWords
	accel deepSpeedAccelerator
	multi bool // on the hosts of Job.Hosts
	mpi   *mpiRunner
}

// deepSpeedAccelerator is what deepspeed knows of a make of accelerator: the variable by which a process sees its
// devices, and the beginnings of the names of variables that other hosts get.
type deepSpeedAccelerator struct {
	mask    string // empty: that of the accelerators which are found
	exports []string
}

var deepSpeedAccelerators = map[string]deepSpeedAccelerator{
	"cuda":  {"CUDA_VISIBLE_DEVICES", []string{"NCCL"}},
	"cpu":   {"CUDA_VISIBLE_DEVICES", nil},
	"mps":   {"CUDA_VISIBLE_DEVICES", nil},
	"hpu":   {"CUDA_VISIBLE_DEVICES", nil},
	"xpu":   {"ZE_AFFINITY_MASK", nil},
	"npu":   {"ASCEND_RT_VISIBLE_DEVICES", []string{"ASCEND", "HCCL", "LD_LIBRARY", "PATH"}},
	"mlu":   {"MLU_VISIBLE_DEVICES", []string{"NEUWARE_HOME", "CNCL", "LD_LIBRARY", "PATH"}},
	"sdaa":  {"SDAA_VISIBLE_DEVICES", []string{"NCCL", "LD_LIBRARY", "PATH"}},
	"supa":  {"SUPA_VISIBLE_DEVICES", []string{"BCCL", "BIREN", "SUPA", "LD_LIBRARY", "PATH"}},
	"klxpu": {"CUDA_VISIBLE_DEVICES", []string{"BKCL", "XPU", "XMLIR", "LD_LIBRARY", "PATH"}},
}

// accelerator finds which make deepspeed would find: by DS_ACCELERATOR, else by what its variables begin with, as
// nothing is looked up on the machine here.
func (d *deepSpeedJob) accelerator() {
	d.job.Devices.List = true
	const name = "DS_ACCELERATOR"
	if word := d.env[name]; word != "" {
		known, ok := deepSpeedAccelerators[word]
		if !ok {
			d.wrong.add(fmt.Errorf("cannot use %s=%s: choose one of %s", name, word,
				strings.Join(slices.Sorted(maps.Keys(deepSpeedAccelerators)), ", ")))
		}
		d.accel, d.job.Devices.Variable = known, known.mask
		return
	}
	for _, make := range []struct{ sign, word string }{
		{"ASCEND_HOME_PATH", "npu"}, {"ASCEND_TOOLKIT_HOME", "npu"}, {"NEUWARE_HOME", "mlu"},
	} {
		if d.env[make.sign] != "" {
			d.accel = deepSpeedAccelerators[make.word]
			return
		}
	}
	d.accel = deepSpeedAccelerators["cuda"]
}

// unsupported refuses what muster cannot do and would otherwise have to ignore, and tells of what has no effect.
func (d *deepSpeedJob) unsupported() {
	if d.w.autotuning.fromFlag() {
		d.refuse(&d.w.autotuning, errhint.With(errors.New("DeepSpeed's autotuner is a Python program that starts many jobs itself"),
			"run it by deepspeed, and the job that it finds by muster"))
	}
	if d.w.noSSHCheck.fromFlag() {
		d.warn("--no_ssh_check has no effect: muster does not try ssh before it starts the job by it")
	}
}

func (d *deepSpeedJob) command() {
	c := job.Command{
		Kind: job.Script, Name: d.in.script, Args: d.in.args, Interpreters: interpreters(d.inv.Argv0, d.env), LocalRankFlag: "--local_rank",
	}
	if d.w.noLocalRank.on || d.mpi != nil {
		c.LocalRankFlag = ""
	}
	switch {
	case d.w.noPython.on:
		if d.w.module.on {
			d.wrong.add(errors.New("cannot use --no_python and --module together: a module needs Python; leave one of them out"))
		}
		c.Kind, c.Interpreters = job.Program, nil
	case d.w.module.on:
		c.Kind = job.Module
	}
	if c.Name == "" {
		d.wrong.add(errors.New("cannot start without a training script: its name is empty"))
	}
	d.job.Command = c
	d.python()
	d.binding()
	// Importing deepspeed sets it, and the workers inherit it from their launcher.
	if name := "PYTORCH_NVML_BASED_CUDA_CHECK"; d.env[name] == "" {
		d.job.Env.Set = slices.Insert(d.job.Env.Set, 0,
			job.Var{Name: name, Value: "1", Source: job.Source{Kind: job.FromDefault, Name: "as deepspeed sets it"}})
	}
}

// python is --venv_script: of a script that only makes a virtual environment the active one, what it does is known.
func (d *deepSpeedJob) python() {
	if d.w.venvScript.none {
		return
	}
	file := d.w.venvScript.text
	if path.Base(file) != "activate" || path.Base(path.Dir(file)) != "bin" {
		d.refuse(&d.w.venvScript, errhint.With(errors.New("muster runs no shell script on the hosts"),
			"give the bin/activate of a virtual environment, or put muster's own --venv or --conda in front of deepspeed"))
		return
	}
	if !d.multi {
		d.warn("--venv_script has no effect on one node, as in deepspeed")
		return
	}
	d.job.Python.Venv = path.Dir(path.Dir(file))
}

// binding is --bind_cores_to_rank.
func (d *deepSpeedJob) binding() {
	list := d.w.bindCoreList
	if !d.w.bindCoresToRank.on {
		if !list.none {
			d.warn("--bind_core_list has no effect without --bind_cores_to_rank")
		}
		return
	}
	d.job.Bind.Mode = job.BindCores
	if d.env["KMP_AFFINITY"] != "" {
		d.refuse(&d.w.bindCoresToRank,
			errhint.With(errors.New("KMP_AFFINITY says otherwise which CPUs a worker's threads take"), "unset KMP_AFFINITY"))
	}
	if !list.none {
		d.job.Bind.CPUs = list.text
		d.refuse(&d.w.bindCoreList, checkCores(list.text))
	}
}

// maxCPU bounds the numbers of CPUs, as Linux does.
const maxCPU = 8192

// checkCores refuses what is no list such as 1,3-5, in ascending order as deepspeed wants it.
func checkCores(text string) error {
	last := -1
	for item := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		from, err := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		switch {
		case err != nil, err2 != nil, from < 0, to < from, to > maxCPU:
			return fmt.Errorf("%.40q is no CPU and no range of them: write a list as in 0,2-5", item)
		case from <= last:
			return fmt.Errorf("%.40q is not behind CPU %d: name each CPU once, in ascending order", item, last)
		}
		last = to
	}
	return nil
}

// output is where the workers' output goes, and what muster itself says.
func (d *deepSpeedJob) output() {
	if dir := d.w.enableEachRankLog.text; dir != "" && dir != "None" {
		d.job.Logs.RankDir = dir
	}
	d.req.SavePID = d.w.savePID.on
	d.req.LogLevel = map[string]string{
		"debug": "debug", "info": "info", "warning": "warn", "error": "error",
		"critical": "error",
	}[d.w.logLevel.text]
	if d.w.quiet.on {
		d.req.LogLevel = "error"
	}
}

// finish puts muster's own settings over what the command line says, and holds all of it against each other.
func (d *deepSpeedJob) finish() (Request, error) {
	level := d.w.logLevel.source
	if d.w.quiet.on {
		level = d.w.quiet.source
	}
	habits := newOwnWords()
	habits.LogLevel.say(d.req.LogLevel, level)
	if d.w.bindCoresToRank.on {
		habits.NUMABinding.say(job.BindCores, d.w.bindCoresToRank.source)
	}
	if d.w.elasticTraining.on {
		habits.MaxRestarts.say(strconv.Itoa(elasticRestarts), d.w.elasticTraining.source)
	}
	return finishLauncher(&d.torchrunJob, d.inv, habits, func(words *ownWords) {
		if d.job.Isolate {
			d.wrong.add(fmt.Errorf("cannot use %s with deepspeed: its scripts choose the device of their local rank among all that are "+
				"listed",
				words.IsolateDevices.written()))
		}
	})
}

// finishLauncher completes the request of a launcher that reaches other hosts. habits are values that muster's own
// settings have there; check may look at the words of those.
func finishLauncher(t *torchrunJob, inv Invocation, habits *ownWords, check func(words *ownWords)) (Request, error) {
	for i := range t.parser.options {
		o := &t.parser.options[i]
		v := *o.word
		if own := settingNamed(o.name); o.kind == kindHelp || own != nil && own.of(habits).given {
			continue
		}
		t.req.Settings = append(t.req.Settings, Setting{Flag: o.name, Value: v.shown(), Source: v.source})
	}
	habits.Stdin.say("inherit", job.Source{})
	habits.RunID.say(t.job.RunID, job.Source{})
	habits.Grace.say(t.job.Stop.Grace.String(), job.Source{})
	habits.JoinTimeout.say(t.job.Meeting.JoinTimeout.String(), job.Source{})
	words := t.own.apply(&t.req, inv, t.env, t.parser, habits, &t.wrong)
	check(words)
	all := *words
	nodes := fmt.Sprint(t.job.Nodes.Max)
	if t.job.Nodes.Min != t.job.Nodes.Max {
		nodes = fmt.Sprintf("%d:%d", t.job.Nodes.Min, t.job.Nodes.Max)
	}
	all.NNodes.say(nodes, job.Source{})
	settleMeeting(&t.req, &all, &t.wrong)
	if err := t.req.finish(words, &t.wrong); err != nil {
		return t.req.asked(), err
	}
	return t.req, nil
}

// numbers are those from 0 below n.
func numbers(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// devicesOf are the accelerators of a host's workers.
func devicesOf(h hosts.Host) []int {
	if h.Devices != nil {
		return h.Devices
	}
	return numbers(h.Slots)
}
