package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"muster/horovod"
	"muster/horovod/discovery"
	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/lazyregexp"
	"muster/internal/wording"
	"muster/launch/job"
)

// horovodRun is the name of Horovod's launcher.
const horovodRun = "horovodrun"

// horovodPrefix begins the variables that stand for its flags.
const horovodPrefix = "HOROVOD_"

// HorovodRequest is what a job of Horovod needs beside its processes: the rendezvous that its workers find by
// HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT and by the interface in HOROVOD_GLOO_IFACE, which are known when it is served,
// and the hosts of an elastic job.
type HorovodRequest struct {
	// NICs are the interfaces that workers are to use, the first of them for gloo; none: what reaches the other hosts.
	NICs []string
	// Slots is the world of a job that is not elastic, by rank.
	Slots []horovod.Slot
	// Elastic says that hosts may come and go. The rest is of elastic jobs only.
	Elastic bool
	// NP is how many slots there must be at first, MinNP later, MaxNP how many are used at most, 0 for all.
	NP, MinNP, MaxNP int
	// Hosts do not change; else Script prints them, Hostfile holds them, or DNS is a name that has their addresses.
	Hosts                 []horovod.Host
	Script, Hostfile, DNS string
	// SlotsPerHost is what a host has that nothing else is said of, 0 where that is an error.
	SlotsPerHost int
	// Cooldown is for how long a host is not used where a worker failed.
	Cooldown discovery.Cooldown
	// ResetLimit is how often the world may change, negative for any number.
	ResetLimit int
	// ElasticTimeout is how long a world waits for slots.
	ElasticTimeout time.Duration
}

// horovodJob turns horovodrun's options into a job and gathers what is wrong on the way.
type horovodJob struct {
	env   environ
	inv   Invocation
	in    *parsed
	w     *horovodWords
	tuned []*option // those that tune Horovod
	req   Request
	job   *job.Job        // of req
	ask   *HorovodRequest // of req
	mpi   value           // the config file's word for a controller that is not there
	wrong problems
	few   bool // an elastic job has one host and no other ever
}

// Horovodrun reads a command line of horovodrun, as Horovod 0.28.1 does with gloo as its controller.
func Horovodrun(inv Invocation) (Request, error) {
	env := newEnviron(inv.Environ)
	w := new(horovodWords)
	p := horovodParser(w)
	in, err := p.parse(inv.Args, env)
	if err != nil {
		return Request{JSON: inv.Own.json(env)}, hostsAsCommand(err, inv.Args)
	}
	h := &horovodJob{env: env, inv: inv, in: in, w: w}
	for i := range p.options {
		if o := &p.options[i]; o.tuning != nil {
			h.tuned = append(h.tuned, o)
		}
	}
	h.req.Job = job.Job{
		Dialect: horovodRun, Restart: defaultRestart(), Stop: job.StopRules{Grace: horovodGrace},
		Warm:    job.WarmRules{Wait: defaultWarmWait},
		See:     job.SeeRules{Keep: defaultKeepRuns},
		Command: job.Command{Kind: job.Program, Name: in.script, Args: in.args}, Environ: inv.Environ, EventLog: "null", Role: "default",
		Sources: job.Sources{},
	}
	h.job, h.ask = &h.req.Job, &HorovodRequest{}
	h.req.Horovod, h.req.LogLevel = h.ask, "info"
	h.job.Stop.Handled, _, err = parseSignals(defaultSignals)
	h.wrong.add(err)
	if w.verbose.on {
		h.req.LogLevel = "debug"
	}
	h.exclusive()
	h.config()
	h.controller()
	h.hosts()
	h.environment()
	h.logs()
	for i := range p.options {
		o := &p.options[i]
		v := *o.word
		if o.kind == kindHelp {
			continue
		}
		shown := Setting{Flag: o.name, Value: v.shown(), Source: v.source}
		if t := o.tuning; t != nil && t.file.given && !v.explicit() {
			shown.Value, shown.Source = t.file.text, t.file.source
		}
		h.req.Settings = append(h.req.Settings, shown)
	}
	habits := newOwnWords()
	habits.Grace.say(horovodGrace.String(), job.Source{})
	habits.LogLevel.say(h.req.LogLevel, w.verbose.source)
	if h.ask.Elastic { // the workers of a host, as Horovod has it
		h.job.Restart.Scope = job.ScopeNode
		habits.RestartScope.say(string(job.ScopeNode), job.Source{})
	}
	words := inv.Own.apply(&h.req, inv, env, p, habits, &h.wrong)
	h.fixedRules()
	settleMeeting(&h.req, words, &h.wrong)
	if err := h.req.finish(words, &h.wrong); err != nil {
		return h.req.asked(), err
	}
	if h.job.Logs.RankFiles != "" {
		h.job.FileAll()
	}
	return h.req, nil
}

// fixedRules takes back what variables and files may say for many jobs and a job of Horovod does not do: a world that
// was made once is not made anew, and the driver of an elastic job starts workers by itself.
func (h *horovodJob) fixedRules() {
	j := h.job
	j.Restart.MaxRestarts = 0
	if h.ask.Elastic {
		if !h.req.bounded() {
			j.Restart.Scope = job.ScopeNode
		}
		if h.few && j.Restart.Scope == job.ScopeNode {
			h.refuse(h.w.minNp, errhint.With(errors.New("an elastic job on given hosts needs 2 of them at least"),
				"give -H host1:2,host2:2, or --host-discovery-script; or --restart-scope world with --backoff-limit N in front of "+
					"horovodrun"))
		}
		j.Bind = job.BindRules{}
		j.Checkpoint, j.Isolate, j.InheritStdin = job.CheckpointRules{}, false, false
	}
}

// horovodGrace is how long horovodrun's workers may take to end.
const horovodGrace = 5 * time.Second

var hostItem = lazyregexp.New(`^[\w.-]+:[0-9]+,?$`)

// hostsAsCommand adds a hint where hosts were given with blanks between.
func hostsAsCommand(err error, args []string) error {
	for i, word := range args[:max(0, len(args)-1)] {
		if (word == "-H" || word == "--hosts") && i+2 < len(args) && hostItem().MatchString(args[i+2]) {
			return errhint.With(err, "give hosts with commas and no blanks between: -H host1:2,host2:2")
		}
	}
	return err
}

func (h *horovodJob) refuse(v value, err error) {
	if err != nil {
		h.wrong.add(fmt.Errorf("cannot use %s: %w", v.written(), err))
	}
}

func (h *horovodJob) warn(format string, args ...any) {
	h.job.Warnings = append(h.job.Warnings, fmt.Sprintf(format, args...))
}

// exclusive refuses options that exclude each other.
func (h *horovodJob) exclusive() {
	groups := h.w.exclusive()
	for _, o := range h.tuned {
		if off := o.tuning.offWord; off != nil && off != &h.w.logWithTimestamp { // which is in a group already
			groups = append(groups, []value{*o.word, *off})
		}
	}
	for _, group := range groups {
		var both []string
		for _, v := range group {
			if v.explicit() {
				both = append(both, "--"+v.option.name)
			}
		}
		if len(both) > 1 {
			h.wrong.add(fmt.Errorf("cannot use %s together: give one of them", strings.Join(both, " and ")))
		}
	}
}

// controller refuses what is started by other programs.
func (h *horovodJob) controller() {
	why := errhint.With(errors.New("muster starts workers itself, and Horovod's gloo controller needs no MPI"),
		"leave it out; or let mpirun start the processes: mpirun -np 4 muster run -- python train.py")
	for _, v := range []value{h.w.mpi, h.w.jsrun} {
		if v.explicit() {
			h.refuse(v, why)
		}
	}
	for _, v := range []value{h.w.mpiArgs, h.w.bindingArgs} {
		if v.explicit() {
			h.warn("--%s has no effect without MPI", v.option.name)
		}
	}
	if h.mpi.given && !h.w.gloo.on && !h.w.mpi.on && !h.w.jsrun.on {
		h.wrong.add(fmt.Errorf("cannot use %s: %w", h.mpi.source, why))
	}
}

// hosts finds where the job runs.
func (h *horovodJob) hosts() {
	np := h.w.numProc
	switch {
	case np.none:
		h.wrong.add(errors.New("cannot start without -np: give the number of workers"))
	case np.n < 1 || np.n > maxNodes:
		h.refuse(h.w.numProc, fmt.Errorf("give a number from 1 to %d", maxNodes))
	}
	h.job.Hosts.SSH = job.SSHRules{Identity: h.w.sshIdentityFile.text}
	if port := h.w.sshPort; !port.none {
		if port.n < 1 || port.n > 65535 {
			h.refuse(h.w.sshPort, errors.New("give a number from 1 to 65535"))
		}
		h.job.Hosts.SSH.Port = port.n
	}
	h.job.Hosts.StartTimeout = h.seconds(h.w.startTimeout, 0)
	for _, v := range []value{h.w.networkInterfaces, h.w.networkInterface} {
		for name := range strings.SplitSeq(v.text, ",") {
			if name = strings.TrimSpace(name); name != "" && !slices.Contains(h.ask.NICs, name) {
				h.ask.NICs = append(h.ask.NICs, name)
			}
		}
	}
	if h.w.disableCache.on {
		h.warn("--disable-cache has no effect: muster keeps no results of checks from one job to the next")
	}
	if host := h.in.script; hostItem().MatchString(host) && h.w.hosts.explicit() {
		h.wrong.add(errhint.With(fmt.Errorf("cannot run %q: this looks like a host, not like a command", host),
			"give hosts with commas and no blanks between: -H host1:2,host2:2"))
	}
	found, from := h.given()
	h.elastic(found, np.n)
	if h.ask.Elastic {
		h.job.Nodes, h.job.Procs = job.Range{Min: 1, Max: 1}, "1"
		h.job.Meeting = defaultMeeting(backendStandalone)
		return
	}
	if np.none || np.n < 1 || np.n > maxNodes {
		return
	}
	if found == nil {
		found = []horovod.Host{{Name: "localhost", Slots: np.n}}
	}
	slots, err := horovod.Allocate(found, np.n, np.n)
	if err != nil {
		h.refuse(h.w.numProc, errhint.With(fmt.Errorf("%s has %s", from, wording.Plural(horovod.Total(found), "slot")),
			"give more hosts, or more slots, as in -H host1:4,host2:4"))
		return
	}
	for _, s := range slots {
		if s.LocalSize > maxProcs {
			h.wrong.add(fmt.Errorf("cannot start %d workers on the host %s: the limit is %d", s.LocalSize, s.Host, maxProcs))
			return
		}
	}
	h.ask.Slots = slots
	h.nodes(slots)
}

// given returns the hosts of -H or of a hostfile, and which of them it was; nil for none.
func (h *horovodJob) given() ([]horovod.Host, string) {
	if list := h.w.hosts; !list.none {
		found, err := discovery.ParseList(list.text)
		h.refuse(h.w.hosts, err)
		return found, "-H"
	}
	file := h.w.hostfile
	if file.none {
		return nil, ""
	}
	content, err := h.read(file.text)
	if err != nil {
		h.refuse(h.w.hostfile, err)
		return nil, ""
	}
	found, warnings, err := discovery.ParseHostfile(file.text, content)
	if err != nil {
		h.wrong.addEach(file.source, err)
	}
	h.job.Warnings = append(h.job.Warnings, warnings...)
	return found, file.text
}

func (h *horovodJob) read(name string) ([]byte, error) {
	if h.inv.ReadFile == nil {
		return nil, errors.New("no file can be read here")
	}
	return h.inv.ReadFile(name)
}

// elastic reads what only elastic jobs have.
func (h *horovodJob) elastic(found []horovod.Host, np int) {
	script, file, dns, least, most := h.w.hostDiscoveryScript, h.w.discoveryHostfile, h.w.discoveryDNS,
		h.w.minNp, h.w.maxNp
	searches := !script.none || !file.none || !dns.none
	if !searches && least.none {
		for _, v := range []value{h.w.maxNp, h.w.slotsPerHost, h.w.elasticTimeout, h.w.resetLimit, h.w.blacklistCooldownRange} {
			if v.explicit() {
				h.warn("--%s has no effect without --min-np or --host-discovery-script: the job is not elastic", v.option.name)
			}
		}
		return
	}
	a := h.ask
	a.Elastic, a.NP, a.MinNP, a.Hosts = true, np, np, found
	a.Script, a.Hostfile, a.DNS = script.text, file.text, dns.text
	if h.few = !searches && len(found) < 2; h.few && found == nil {
		a.Hosts = []horovod.Host{{Name: "localhost", Slots: np}}
	}
	if searches && strings.TrimSpace(a.Script+a.Hostfile+a.DNS) == "" {
		h.refuse(h.w.hostDiscoveryScript, errors.New("it is empty"))
	}
	if !least.none {
		a.MinNP = least.n
		if least.n < 1 || np > 0 && least.n > np {
			h.refuse(h.w.minNp, fmt.Errorf("give a number from 1 to that of -np, %d", np))
		}
	}
	if !most.none {
		a.MaxNP = most.n
		if most.n < np || most.n < 1 {
			h.refuse(h.w.maxNp, fmt.Errorf("give a number not below that of -np, %d", np))
		}
	}
	if slots := h.w.slotsPerHost; !slots.none {
		a.SlotsPerHost = slots.n
		if slots.n < 1 || slots.n > maxProcs {
			h.refuse(h.w.slotsPerHost, fmt.Errorf("give a number from 1 to %d", maxProcs))
		}
	}
	a.ResetLimit = -1
	if limit := h.w.resetLimit; !limit.none {
		a.ResetLimit = limit.n
		if limit.n < 0 {
			h.refuse(h.w.resetLimit, errors.New("give a number from 0"))
		}
	}
	a.ElasticTimeout = h.seconds(h.w.elasticTimeout, 1)
	a.Cooldown = h.cooldown()
	timeout, ok := h.env["HOROVOD_GLOO_TIMEOUT_SECONDS"]
	if flag := h.w.glooTimeoutSeconds; !flag.none {
		timeout, ok = flag.text, true
	} else if file := flag.option.tuning.file; file.given {
		timeout, ok = file.text, true
	}
	if n, err := pyInt(timeout); ok && err == nil && n < 30 {
		h.warn("HOROVOD_GLOO_TIMEOUT_SECONDS=%d is short for an elastic job: workers that wait so long for a new one to start end with "+
			"an error", n)
	}
}

// maxCooldown is the longest that horovodrun takes.
const maxCooldown = 3600

func (h *horovodJob) cooldown() discovery.Cooldown {
	v := h.w.blacklistCooldownRange
	if v.none {
		return discovery.DefaultCooldown
	}
	first, second, _ := strings.Cut(v.text, " ")
	least, err1 := pyInt(first)
	most, err2 := pyInt(second)
	if err := errors.Join(err1, err2); err != nil {
		return discovery.Cooldown{} // which was refused as it was read
	}
	if least == 0 && most == 0 {
		return discovery.Cooldown{}
	}
	if least < 1 || most < least || most > maxCooldown {
		h.refuse(h.w.blacklistCooldownRange,
			fmt.Errorf("give seconds from 1 to %d, the smaller number first; or 0 0 for hosts that never come back", maxCooldown))
	}
	return discovery.Cooldown{Min: time.Duration(least) * time.Second, Max: time.Duration(most) * time.Second}
}

// seconds is an option that is a length of time.
func (h *horovodJob) seconds(v value, least int) time.Duration {
	if v.n < least || v.n > maxSeconds {
		h.refuse(v, fmt.Errorf("give seconds from %d", least))
		return 0
	}
	return time.Duration(v.n) * time.Second
}

// nodes makes a node of every host that has workers.
func (h *horovodJob) nodes(slots []horovod.Slot) {
	for _, s := range slots {
		if s.LocalRank == 0 {
			h.job.Hosts.Nodes = append(h.job.Hosts.Nodes, job.Node{
				Host: hosts.Host{Name: s.Host, Slots: s.LocalSize}, Procs: fmt.Sprint(s.LocalSize),
			})
		}
		node := &h.job.Hosts.Nodes[len(h.job.Hosts.Nodes)-1]
		var vars []job.Var
		for _, kv := range s.Env() {
			name, value, _ := strings.Cut(kv, "=")
			vars = append(vars, job.Var{
				Name: name, Value: value, Source: job.Source{Kind: job.FromMuster, Name: "place in the world"},
				Own: name != "HOROVOD_SIZE",
			})
		}
		node.WorkerEnv = append(node.WorkerEnv, vars)
	}
	n := len(h.job.Hosts.Nodes)
	h.job.Nodes = job.Range{Min: n, Max: n}
	h.job.Procs = h.job.Hosts.Nodes[0].Procs
	if n == 1 {
		h.job.Meeting = defaultMeeting(backendStandalone)
		return
	}
	h.job.Meeting = defaultMeeting(backendStatic)
	h.job.Meeting.JoinTimeout = max(h.job.Hosts.StartTimeout, time.Minute)
}

// horovodPad is how many digits the names of ranks have in --output-filename.
func horovodPad(np int) int { return len(fmt.Sprint(max(0, np-1))) }

func (h *horovodJob) logs() {
	logs := job.LogRules{Prefix: "[${rank}]<${stream}>:", PrefixAll: true, Stamp: h.w.prefixOutputWithTimestamp.on}
	if dir := h.w.outputFilename; !dir.none {
		if dir.text == "" {
			h.refuse(h.w.outputFilename, errors.New("give a directory"))
		}
		logs.RankFiles, logs.RankDigits = dir.text, horovodPad(h.w.numProc.n)
	}
	h.job.Logs = logs
}
