package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/cmd/dialect/jobfile"
	"muster/internal/lazyregexp"
	"muster/launch/job"
)

// Left is a line of a job file that a file of another kind does not have.
type Left struct {
	// Source is its place, Path the field, Why the reason.
	Source, Path, Why string
}

// Launched is what a node's command starts: how many workers, and what they run.
type Launched struct {
	Procs       string
	Command     []string
	MaxRestarts int
	// MPI reports whether mpirun started them.
	MPI bool
	// Variables are what mpirun gives them beside by -x: NAME=VALUE, or the NAME of one of its own.
	Variables []string
	// Told are the variables of the operator that the command names.
	Told []string
	// Settings are what the launcher in the command reads of variables of its container. Idle are those which muster run
	// would read, and which nothing there does.
	Settings []jobfile.Word
	Idle     []string
}

// converter makes a Spec of a job file.
type converter struct {
	file *jobfile.File
	spec Spec
	left []Left
	// from is where a value of the Spec stands in the file, by its flag.
	from map[string]jobfile.Line
	// settings are those of the file, and those that the launcher in the command reads; read are the variables among them.
	settings []jobfile.Word
	read     map[string]bool
	// flagged is where what leads to one of the Spec's Flags stands.
	flagged map[string]string
	volumes []volume
	mounts  []mount
}

type volume struct {
	Name     string
	EmptyDir *struct {
		Medium    string
		SizeLimit string `yaml:"sizeLimit"`
	} `yaml:"emptyDir"`
	Claim *struct {
		ClaimName string `yaml:"claimName"`
	} `yaml:"persistentVolumeClaim"`
	Secret *struct {
		SecretName string `yaml:"secretName"`
	}
	line jobfile.Line
}

type mount struct {
	Name      string
	MountPath string `yaml:"mountPath"`
}

// Convert makes a Spec for a kind of what a job file says, and tells what the file of that kind will not have.
func Convert(f *jobfile.File, kind string, what Launched) (Spec, []Left) {
	c := converter{
		file: f, from: map[string]jobfile.Line{}, read: map[string]bool{}, flagged: map[string]string{},
		settings: slices.Concat(f.Words, f.Apart, what.Settings), spec: Spec{
			Kind: kind, Name: nameOf(f.Name), Nodes: len(f.Pods), Procs: what.Procs, Command: what.Command, MaxRestarts: what.MaxRestarts,
			Accelerator: "nvidia.com/gpu", SharedMemory: "16Gi", Notice: 30 * time.Second, Grace: 30 * time.Second, BackoffLimit: 1,
			Converted: true,
		},
	}
	c.pods(what)
	c.exported(what)
	for _, l := range f.Lines {
		c.line(l)
	}
	c.words()
	c.changed(what)
	c.stored()
	c.unused()
	slices.SortStableFunc(c.left, func(a, b Left) int { return lineOf(a.Source) - lineOf(b.Source) })
	return c.spec, slices.Compact(c.left)
}

func lineOf(source string) int {
	n, _ := strconv.Atoi(source[strings.LastIndexByte(source, ':')+1:])
	return n
}

var noName = lazyregexp.New(`[^a-z0-9-]+`)

// nameOf is a name for a job of muster's: one of a host, and shorter.
func nameOf(name string) string {
	name = strings.Trim(noName().ReplaceAllString(strings.ToLower(name), "-"), "-0123456789")
	return cmp.Or(strings.Trim(name[:min(len(name), maxName)], "-"), "train")
}

func (c *converter) leave(l jobfile.Line, why string) {
	c.left = append(c.left, Left{l.Source, l.Path, why})
}

// pods takes what the pods say, which must be alike.
func (c *converter) pods(what Launched) {
	s := &c.spec
	for _, w := range c.settings {
		c.read[w.Variable] = w.Variable != ""
	}
	for _, p := range c.file.Pods {
		if p.Accelerators > s.Accelerators {
			s.Accelerators, s.Accelerator = p.Accelerators, p.Resource
		}
	}
	for _, p := range c.file.Pods {
		if p.Accelerators != s.Accelerators && p.Index == 0 && Refused(s.Kind, "accelerators") == "" {
			c.left = append(c.left, Left{
				p.Source.Name, p.Role, fmt.Sprintf("%d accelerators are asked for there; nodes of the file that is written are alike, and "+
					"have %d", p.Accelerators, s.Accelerators),
			})
		}
	}
	nodes := c.file.Nodes()
	for _, v := range nodes[0].Plain() {
		at := jobfile.Line{Source: v.Source.Name, Path: "env " + v.Name}
		if slices.Contains(what.Idle, v.Name) {
			c.leave(at, "nothing in the pod reads it as a setting, and muster run would")
			continue
		}
		c.variable(at, v.Name, v.Value)
	}
}

// variable takes a variable of the workers. The last one of a name counts.
func (c *converter) variable(at jobfile.Line, name, value string) {
	s := &c.spec
	s.Env = slices.DeleteFunc(s.Env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	switch {
	case job.TellsWorkers(name):
		c.leave(at, "muster tells its workers "+name)
	case !variableText().MatchString(name) || strings.Contains(value, "$("):
		c.leave(at, "its value names others: give it by --env")
	case c.read[name]: // words has taken it
	case strings.HasPrefix(name, "MUSTER_"):
		c.leave(at, "muster run has no such setting")
	default:
		s.Env = append(s.Env, name+"="+value)
	}
}

// exported takes the variables that mpirun gives workers by -x.
func (c *converter) exported(what Launched) {
	own := c.file.Nodes()[0].Names()
	for _, word := range what.Variables {
		name, value, given := strings.Cut(word, "=")
		at := c.command()
		at.Path += " -x " + name
		switch {
		case given:
			c.variable(at, name, value)
		case !slices.Contains(own, name): // else it is carried over, or told, where it is set
			c.leave(at, "the file has no value of it: give --env "+name+"=…")
		}
	}
}

// command is the line in which the command stands of which Launched is made.
func (c *converter) command() jobfile.Line {
	var found jobfile.Line
	for _, l := range c.file.Lines {
		if strings.HasSuffix(l.Path, ".command") && (found.Path == "" || strings.Contains(strings.ToLower(l.Path), ".launcher.")) {
			found = l
		}
	}
	return found
}

// usual are settings that muster run has anyhow.
var usual = map[string]string{
	"restart-policy": "on-failure", "success-policy": "all", "fail-policy": "any", "clean-policy": "all",
	"restart-limit": strconv.Itoa(job.Unlimited),
}

// fatalCodes are those that the kinds' own rules name.
var fatalCodes = []string{"2,93,124,126,127", "2,93,126,127"}

// words takes the settings that follow from the file.
func (c *converter) words() {
	s := &c.spec
	own := map[string]bool{}
	plain := c.file.Nodes()[0].Plain()
	for _, w := range c.settings {
		own[w.Flag] = own[w.Flag] || w.Own
	}
	done := map[string]bool{}
	var fatal []string
	fatalAt := ""
	for _, w := range c.settings {
		if w.Variable != "" && !slices.ContainsFunc(plain, func(v job.Var) bool { return v.Name == w.Variable }) {
			continue // its value is from elsewhere, which line tells
		}
		none := !w.Own && (w.Flag == "max-restarts" && w.Text == "0" || w.Flag == "restart-policy" && w.Text == "never")
		pods := none || !w.Own && (w.Flag == "backoff-limit" || w.Flag == "clean-policy") // whatever muster's own flag says
		id := fmt.Sprint(pods, w.Flag, w.Text)
		if own[w.Flag] && !w.Own && !pods || done[id] {
			continue
		}
		done[id] = true
		if none {
			s.BackoffLimit = 0
			if s.MaxRestarts > 0 || c.file.Native { // of workers in their pods, as muster's or torchrun's own flag says
				continue
			}
		}
		at := jobfile.Line{Source: w.Source.Name, Path: "--" + w.Flag}
		if w.Secret {
			c.leave(at, "the text of a Secret is in it: add it to the file")
			continue
		}
		n, _ := strconv.Atoi(w.Text)
		duration, err := time.ParseDuration(w.Text)
		switch w.Flag {
		case "nproc-per-node", "run-id", "nnodes", "node-rank", "master-addr", "master-port", "rdzv", "platform", "token-file",
			"start-timeout": // of hosts, where pods come by themselves
		case "restart-scope":
			if w.Own || c.file.Least() == s.Nodes { // else it is what lets single nodes of an elastic job start anew
				c.flag(at.Source, w.Flag, w.Text)
			}
		case "fatal-exit-codes":
			fatal, fatalAt = append(fatal, w.Text), cmp.Or(fatalAt, at.Source)
		case "max-restarts":
			if w.Own || s.MaxRestarts == 0 {
				s.MaxRestarts = min(n, maxRestarts)
			}
		case "backoff-limit":
			switch s.BackoffLimit = n; c.file.Kind {
			case "Job", "PyTorchJob", "PyTorchTrainingJob": // they count pods; an MPIJob those of its launcher
				s.BackoffLimit = (n + s.Nodes - 1) / s.Nodes
			}
		case "grace":
			if err == nil {
				s.Grace = duration
			}
		case "active-deadline":
			if err == nil {
				s.Deadline = duration
				c.from["deadline"] = at
			}
		case "clean-policy":
			if !w.Own { // muster's own is of processes, and the operator's of pods
				s.CleanPods = map[string]string{"all": "All", "unfinished": "Running"}[w.Text]
				if s.Kind == "mpijob" {
					continue // mpirun has no workers that go on when others have ended
				}
			}
			if w.Own || usual[w.Flag] != w.Text && !c.file.Native {
				c.flag(at.Source, w.Flag, w.Text)
			}
		case "ckpt-dir":
			s.CkptDir = w.Text
		case "network-check":
			s.NetworkCheck = true
		case "http":
			_, port, _ := strings.Cut(w.Text, ":")
			s.Port, _ = strconv.Atoi(port)
			c.from["http"] = at
		case "ckpt-on-file", "ckpt-signal":
			if w.Text != noticeFile && w.Text != "USR1" {
				c.leave(at, "the file that is written gives notice by its own means")
			}
		default:
			if usual[w.Flag] != w.Text && (w.Own || !c.file.Native) { // what an operator does, muster run's own flags say
				for text := range strings.SplitSeq(w.Text, "\x00") { // of a flag that was given again
					c.flag(at.Source, w.Flag, text)
				}
			}
		}
	}
	if codes := strings.Join(fatal, ","); codes != "" && !slices.Contains(fatalCodes, codes) {
		c.flag(fatalAt, "fatal-exit-codes", codes)
	}
}

// flag gives muster run a flag, which follows from what stands at a place.
func (c *converter) flag(source, name, text string) {
	f := "--" + name + "=" + text
	c.spec.Flags, c.flagged[f] = append(c.spec.Flags, f), source
}

// elasticPath are the fields that say from how many nodes on a job trains.
var elasticPath = lazyregexp.New(`\.(elasticPolicy\.(min|max)Replicas|torchrunConfig\.minNodes)$`)

// changed tells what workers or nodes of the job had that those of the file will not have.
func (c *converter) changed(what Launched) {
	for _, l := range c.file.Lines {
		switch {
		case elasticPath().MatchString(l.Path) && c.file.Least() < c.spec.Nodes:
			c.leave(l, fmt.Sprintf("the job that is written always has %d nodes: muster run --nnodes MIN:MAX goes on with fewer",
				c.spec.Nodes))
		case what.MPI && c.spec.Kind != "mpijob" && strings.HasSuffix(l.Path, ".command"):
			c.leave(l, "muster run tells workers RANK, WORLD_SIZE and the like, and not the variables of mpirun; programs that call "+
				"MPI itself need mpirun: --to mpijob")
			what.MPI = false
		}
	}
	for _, name := range what.Told {
		if slices.Contains(told[name], c.spec.Kind) {
			continue
		}
		i := slices.IndexFunc(c.file.Lines, func(l jobfile.Line) bool { return strings.HasSuffix(l.Path, ".command") })
		if i >= 0 {
			c.leave(c.file.Lines[i],
				"it names "+name+", which nodes of the kind "+c.spec.Kind+" are not told: workers of muster know RANK and GROUP_RANK")
		}
	}
}

// told are the kinds whose nodes are told a variable by the cluster.
var told = map[string][]string{
	"JOB_COMPLETION_INDEX": {"k8s-job", "jobset", "trainjob"}, "VC_TASK_INDEX": {"volcano"}, "VK_TASK_INDEX": {"volcano"},
}

// stored takes volumes with their mounts.
func (c *converter) stored() {
	s := &c.spec
	done := map[string]bool{}
	for _, v := range c.volumes {
		i := slices.IndexFunc(c.mounts, func(m mount) bool { return m.Name == v.Name })
		dir := ""
		if i >= 0 {
			dir = c.mounts[i].MountPath
		}
		switch {
		case done[v.Name]:
		case v.EmptyDir != nil && v.EmptyDir.Medium == "Memory" && dir == "/dev/shm":
			s.SharedMemory, c.from["shm"] = cmp.Or(v.EmptyDir.SizeLimit, s.SharedMemory), v.line
		case v.Claim != nil && dir != "":
			s.Claims, c.from["claim"] = append(s.Claims, v.Claim.ClaimName+":"+dir), v.line
		case v.Secret != nil && dir == tokenDir:
			s.TokenSecret, c.from["token-secret"] = v.Secret.SecretName, v.line
		default:
			c.left = append(c.left, Left{
				v.line.Source, v.line.Path + " " + v.Name,
				"of volumes claims and /dev/shm are carried over: add it to the file",
			})
		}
		done[v.Name] = true
	}
}

// unused clears what the kind has no use for, and tells so.
func (c *converter) unused() {
	s := &c.spec
	for flag, value := range map[string]*string{
		"namespace": &s.Namespace, "gang": &s.Gang, "rdma": &s.RDMA, "token-secret": &s.TokenSecret, "image": &s.Image,
		"topology": &s.Topology, "cpu": &s.CPU, "memory": &s.Memory,
	} {
		why := Refused(s.Kind, flag)
		if flag == "topology" && *value != "" {
			if _, err := strconv.Atoi(*value); err != nil && (s.Kind == "slurm" || s.Kind == "volcano") {
				why = "the kind has a number there, of switches or of a tier"
			}
		}
		if line, ok := c.from[flag]; why != "" && *value != "" {
			if ok && flag != "gang" {
				c.leave(line, why)
			}
			*value = ""
		}
	}
	if Refused(s.Kind, "accelerators") != "" && s.Accelerators > 0 {
		i := slices.IndexFunc(c.file.Lines, func(l jobfile.Line) bool { return strings.HasSuffix(l.Path, "."+s.Accelerator) })
		if i >= 0 {
			c.leave(c.file.Lines[i], "muster run by hand takes the accelerators that each machine has")
		}
	}
	if why := Refused(s.Kind, "claim"); why != "" && len(s.Claims) > 0 {
		c.leave(c.from["claim"], why)
		s.Claims = nil
	}
	if why := Refused(s.Kind, "http"); s.Port != 0 && (why != "" || s.TokenSecret == "") {
		c.leave(c.from["http"], cmp.Or(why, "it needs a token: give --token-secret"))
		s.Port = 0
	}
	if why := Refused(s.Kind, "flag"); why != "" {
		for _, f := range s.Flags {
			c.left = append(c.left, Left{c.flagged[f], f, why})
		}
		s.Flags = nil
	}
	if s.Kind == "slurm" && strings.ContainsAny(s.CPU, ".mkMGTPE") {
		c.leave(c.from["cpu"], "Slurm gives whole CPUs")
		s.CPU = ""
	}
}
