package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/launch/job"
)

// colossalAI is the name of Colossal-AI's program, colossalRun a name for its launcher alone.
const (
	colossalAI  = "colossalai"
	colossalRun = "colossalairun"
)

// ColossalAI reads a command line of colossalai, of whose commands only run starts a job.
func ColossalAI(inv Invocation) (Request, error) {
	if len(inv.Args) == 0 {
		return Request{}, errhint.With(errhint.Usagef("there is no command"), "name it, as in colossalai run --nproc_per_node 2 train.py")
	}
	word := inv.Args[0]
	inv.Args = inv.Args[1:]
	switch word {
	case "run":
		return ColossalRun(inv)
	case "--help":
		return Request{}, printed(colossalParser(new(colossalWords)).help())
	case "check":
		return Request{},
			errhint.With(errhint.Usagef("cannot do colossalai check: it looks at the installed versions of PyTorch and CUDA, and starts "+
				"nothing"),
				"run it by colossalai itself; muster check looks at this node")
	case "benchmark":
		return Request{},
			errhint.With(errhint.Usagef("cannot do colossalai benchmark: it measures Colossal-AI's own layers, and is gone from its "+
				"newer versions"),
				"run it by colossalai itself")
	}
	return Request{}, errhint.With(errhint.Usagef("unknown command %q of colossalai", word), "to start a job: colossalai run")
}

// ColossalRun reads a command line of colossalai run (0.5.0, colossalai/cli/launcher), which starts a torchrun on each
// host.
func ColossalRun(inv Invocation) (Request, error) {
	env, w := newEnviron(inv.Environ), new(colossalWords)
	p := colossalParser(w)
	in, err := parseClick(p, w, inv.Args)
	if err != nil {
		return Request{JSON: inv.Own.json(env)}, err
	}
	c := &colossalJob{inv: inv, env: env, in: in.parsed, w: w}
	c.torchrun = torchrunParser(p.prog, &c.theirs)
	c.torchrun.through = p.through
	c.torchrun.standsBehind(inv, env)
	c.warnings = in.warnings
	extra, err := c.commandLine()
	if err != nil {
		return Request{JSON: inv.Own.json(env)}, err
	}
	req, err := torchrunOf(inv, c.torchrun, extra, &c.theirs, c.adapt)
	if err != nil {
		return req, err
	}
	c.settings(p, &req)
	return req, nil
}

func colossalParser(w *colossalWords) *parser {
	p := &parser{
		prog: "colossalai run", script: "user_script", options: colossalOptions(w), beneath: torchrunRows(), through: "--extra_launch_args",
	}
	p.help = func() string { return p.helpText(colossalAbout) }
	return p
}

// colossalJob puts a command line of colossalai run into torchrun's terms.
type colossalJob struct {
	inv      Invocation
	env      environ
	in       *parsed
	w        *colossalWords
	torchrun *parser
	theirs   torchrunWords // what torchrun was told by --extra_launch_args, and then by us
	warnings []string
	hosts    []hosts.Host
}

// commandLine is torchrun's, as it follows from --extra_launch_args and the script.
func (c *colossalJob) commandLine() (*parsed, error) {
	var wrong problems
	var argv []string
	if text := c.w.extraLaunchArgs.text; text != "" {
		for item := range strings.SplitSeq(text, ",") {
			name, word, _ := strings.Cut(strings.TrimSpace(item), "=")
			switch {
			case name == "":
				wrong.add(fmt.Errorf("cannot use --extra_launch_args %s: write NAME=VALUE or NAME, with one comma between", text))
			case word != "":
				argv = append(argv, "--"+strings.TrimLeft(name, "-")+"="+word)
			default:
				argv = append(argv, "--"+strings.TrimLeft(name, "-"))
			}
		}
	}
	script, args := c.in.script, c.in.args
	module := c.w.module
	switch {
	case !module.none:
		if strings.HasSuffix(module.text, ".py") {
			wrong.add(fmt.Errorf("cannot use -m %s: it is the name of a file, and not of a module", module.text))
		}
		if script != "" {
			args = append([]string{script}, args...)
		}
		script, argv = module.text, append(argv, "--module")
	case script == "":
		wrong.add(errors.New("cannot start without a script: name it behind the flags"))
	case !strings.HasSuffix(script, ".py"):
		wrong.add(errhint.With(fmt.Errorf("cannot start %q: colossalai runs files that end in .py", script),
			"for a module give -m; for another program use muster run"))
	}
	if c.w.nprocPerNode.text == "" {
		wrong.add(errors.New("cannot start without --nproc_per_node: give the number of workers on each host"))
	}
	if err := wrong.err(); err != nil {
		return nil, err
	}
	// The script is parsed apart, as it may begin with a dash.
	in, err := c.torchrun.parse(append(argv, "--", script), c.env)
	if _, help := errors.AsType[*HelpError](err); err != nil && len(argv) > 0 && !help {
		return nil, fmt.Errorf("cannot use --extra_launch_args: %w", err)
	} else if err != nil {
		return nil, err
	}
	in.args = args
	return in, nil
}

// adapt gives torchrun's flags what colossalai gives them.
func (c *colossalJob) adapt(t *torchrunJob) {
	c.findHosts(t)
	c.give(&t.w.nprocPerNode, c.w.nprocPerNode)
	count, nodes := max(len(c.hosts), 1), value{text: "1"}
	if len(c.hosts) > 0 {
		nodes = value{text: strconv.Itoa(count), source: c.source(c.w.numNodes, c.w.include, c.w.exclude, c.w.hostfile, c.w.host)}
	}
	addr, port := c.w.masterAddr, c.w.masterPort
	if count > 1 && addr.text == "127.0.0.1" {
		addr = value{source: job.Source{Kind: job.FromMuster, Name: "the first host"}}
		if first := c.hosts[0].Name; !isLoopback(first) && first != "0.0.0.0" {
			addr.text = first
		}
	}
	c.give(&t.w.nnodes, nodes)
	c.give(&t.w.masterPort, port)
	c.give(&t.w.masterAddr, addr)
	t.names = map[*value]string{
		&t.w.nprocPerNode: "nproc_per_node", &t.w.masterAddr: "master_addr", &t.w.masterPort: "master_port",
	}
	t.job.Dialect = colossalAI
	t.job.Warnings = append(t.job.Warnings, c.warnings...)
	// Importing colossalai sets it, whatever it was, and its torchrun gets it.
	t.job.Env.Set = append(t.job.Env.Set, job.Var{
		Name: "CUDA_DEVICE_MAX_CONNECTIONS", Value: "1", Source: job.Source{Kind: job.FromDefault, Name: "as colossalai sets it"},
	})
	if len(c.hosts) == 0 {
		return
	}
	t.job.Env.Mode = job.EnvLauncher
	t.last = func(job *job.Job) { c.place(t, job) }
	for _, h := range c.hosts {
		t.job.Hosts.Nodes = append(t.job.Hosts.Nodes, job.Node{Host: h})
	}
	if ssh := c.w.sshPort; !ssh.none {
		if ssh.n < 1 || ssh.n > 65535 {
			t.wrong.add(fmt.Errorf("cannot use --ssh-port %d: give a number from 1 to 65535", ssh.n))
		}
		t.job.Hosts.SSH.Port = ssh.n
	}
}

// place says where several hosts meet: where --extra_launch_args has it, else on the first of them, by its name or,
// where that means something else on every machine, by the address that it turns out to have.
func (c *colossalJob) place(t *torchrunJob, j *job.Job) {
	m, v := &j.Meeting, t.w
	endpoint := v.rdzvEndpoint.text
	port, addr := c10dPort, v.masterAddr.text
	if m.Backend == backendStatic {
		port = v.masterPort.n
	}
	switch {
	case len(c.hosts) < 2 || m.Backend == backendStandalone:
		return
	case endpoint == "" && m.Backend == backendEtcd:
		t.refuse(&t.w.rdzvBackend, errors.New("nothing says where etcd is: give rdzv_endpoint=HOST:2379 too"))
		return
	case endpoint == "" && addr == "":
		m.Endpoints = []job.Endpoint{{Port: port}}
		return
	case endpoint == "":
		endpoint = job.Endpoint{Host: strings.Trim(addr, "[]"), Port: port}.String()
	}
	if m.Backend == backendEtcd {
		port = etcdPort
	}
	var err error
	m.Endpoints, err = parseEndpoints(endpoint, port)
	t.refuse(&t.w.masterAddr, err)
}

// give sets a flag of torchrun that --extra_launch_args does not have: torchrun takes the last of several.
func (c *colossalJob) give(to *value, v value) {
	if !to.fromFlag() {
		to.become(v)
	}
}

func (c *colossalJob) source(words ...value) job.Source {
	for _, v := range words {
		if v.explicit() {
			return v.source
		}
	}
	return job.Source{}
}

// findHosts reads --host, or --hostfile and what filters it.
func (c *colossalJob) findHosts(t *torchrunJob) {
	host, file := c.w.host, c.w.hostfile
	include, exclude, count := c.w.include, c.w.exclude, c.w.numNodes
	if file.text == "" {
		for _, v := range []value{include, exclude, count} {
			if v.explicit() {
				c.warnings = append(c.warnings, fmt.Sprintf("--%s has no effect without --hostfile", v.option.dest()))
			}
		}
		slices.Sort(c.warnings)
	}
	var err error
	switch {
	case host.text != "" && file.text != "":
		t.wrong.add(errors.New("cannot use --host and --hostfile together: give one of them"))
	case host.text != "":
		c.hosts, err = hosts.ParseList(host.text)
		if err == nil && slices.ContainsFunc(c.hosts, func(h hosts.Host) bool { return h.Slots > 0 }) {
			err = errors.New("the hosts have no numbers of workers: --nproc_per_node says how many each has")
		}
		t.badHostfile(&c.w.host, err, true)
	case file.text != "":
		c.hosts, err = t.readHostfileWith(c.inv, file.text, hosts.Colossal)
		t.badHostfile(&c.w.hostfile, err, false)
		if err == nil {
			c.filter(t)
		}
	default:
		if port := c.w.sshPort; port.explicit() {
			c.warnings = append(c.warnings, "--ssh-port has no effect without hosts")
		}
	}
}

func (c *colossalJob) filter(t *torchrunJob) {
	include, exclude := c.w.include, c.w.exclude
	var err error
	switch {
	case include.text != "" && exclude.text != "":
		t.wrong.add(errors.New("cannot use --include and --exclude together: give one of them"))
	case include.text != "":
		if c.hosts, err = hosts.IncludeNames(c.hosts, include.text); err != nil {
			t.wrong.add(fmt.Errorf("cannot use --include %s: %w", include.text, err))
		}
	case exclude.text != "":
		if c.hosts, err = hosts.ExcludeNames(c.hosts, exclude.text); err != nil {
			t.wrong.add(fmt.Errorf("cannot use --exclude %s: %w", exclude.text, err))
		}
	}
	if n := c.w.numNodes.n; n > len(c.hosts) {
		c.warnings = append(c.warnings, fmt.Sprintf("--num_nodes %d: there are %d hosts", n, len(c.hosts)))
	} else if n > 0 {
		c.hosts = c.hosts[:n]
	}
}

// settings shows colossalai's own flags in front of torchrun's.
func (c *colossalJob) settings(p *parser, req *Request) {
	var list []Setting
	for i := range p.options {
		o := &p.options[i]
		if o.kind == kindHelp || c.torchrun.has(o.name) {
			continue
		}
		v := *o.word
		list = append(list, Setting{Flag: o.name, Value: cmp.Or(v.text, o.def), Source: v.source})
	}
	req.Settings = append(list, req.Settings...)
	req.sources()
}

// has reports whether the program knows an option, or hands it to the one that it starts.
func (p *parser) has(name string) bool {
	return optionNamed(p.options, name) != nil || optionNamed(p.beneath, name) != nil
}
