package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/launch/job"
)

// elasticRestarts is how often deepspeed starts the workers of an elastic job anew, elasticRunID the name that it gives
// such a job unless ELASTIC_RUN_ID is set.
const (
	elasticRestarts = 100
	elasticRunID    = "123456789"
)

// nodes finds where the workers run: on this machine alone, on it as one of several on which deepspeed was started, or
// on hosts that muster reaches.
func (d *deepSpeedJob) nodes() {
	d.job.Meeting = defaultMeeting(backendStatic)
	d.job.Meeting.JoinTimeout = staticTimeout
	if port := d.w.masterPort.n; port < 0 || port > 65535 {
		d.refuse(&d.w.masterPort, errors.New("give a number from 0 to 65535"))
	}
	if (d.w.numNodes.n >= 0 || d.w.numGPUs.n >= 0) && d.w.include.text+d.w.exclude.text != "" {
		d.wrong.add(errors.New("cannot use --num_nodes or --num_gpus with --include or --exclude: these say it already"))
	}
	if d.w.include.text != "" && d.w.exclude.text != "" {
		d.wrong.add(errors.New("cannot use --include and --exclude together: give one of them"))
		return
	}
	d.checkElastic()
	pool := d.readHostfile(d.w.hostfile.text, d.w.hostfile.fromFlag(), hosts.DeepSpeed)
	launcher := strings.ToLower(d.w.launcher.text)
	runner, known := mpiRunners[launcher]
	if !known && launcher != "pdsh" {
		d.refuse(&d.w.launcher, errors.New("choose pdsh, openmpi, mpich, impi, mvapich or slurm"))
	}
	if pool == nil && launcher == "slurm" && d.wrong.list == nil {
		pool = d.allocation()
	}
	if d.wrong.list != nil && pool == nil {
		return // the hostfile is what is wrong, and nothing else is to be judged without it
	}
	if pool == nil {
		d.here(nil)
		return
	}
	active := d.filter(pool)
	d.multi = (d.w.forceMulti.on || len(active) > 1) && !d.w.noSSH.on
	switch {
	case len(active) == 0:
	case d.w.noSSH.on:
		d.oneOf(active)
	case !d.multi:
		d.here(&active[0])
	default:
		if known {
			d.mpi = runner
		}
		d.everywhere(active)
	}
}

// checkElastic refuses what deepspeed refuses of elastic jobs.
func (d *deepSpeedJob) checkElastic() {
	if !d.w.elasticTraining.on {
		for _, word := range []value{d.w.minElasticNodes, d.w.maxElasticNodes} {
			if word.fromFlag() {
				d.warn("--%s has no effect without --elastic_training", word.option.dest())
			}
		}
		return
	}
	if d.w.masterAddr.text == "" {
		d.refuse(&d.w.elasticTraining, errors.New("nothing says where the nodes meet: give --master_addr"))
	}
	if d.w.noLocalRank.on {
		d.wrong.add(errors.New("cannot use --no_local_rank with --elastic_training, as in deepspeed: leave one of them out"))
	}
}

// readHostfile reads the hosts of a launcher's file. A file that is not there has none: then the job runs here, which
// is told where the file was asked for.
func (t *torchrunJob) readHostfileWith(inv Invocation, name string, read func(string, []byte) (hosts.File, error)) ([]hosts.Host, error) {
	if inv.ReadFile == nil {
		return nil, errors.New("no files can be read here")
	}
	content, err := inv.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file, err := read(name, content)
	t.job.Warnings = append(t.job.Warnings, file.Warnings...)
	return file.Hosts, err
}

func (d *deepSpeedJob) readHostfile(name string, typed bool, read func(string, []byte) (hosts.File, error)) []hosts.Host {
	if name == "" || filepath.Clean(name) == "/dev/null" || d.inv.ReadFile == nil && !typed {
		return nil // the usual ways to say that there is none
	}
	pool, err := d.readHostfileWith(d.inv, name, read)
	if errors.Is(err, fs.ErrNotExist) {
		if typed {
			d.warn("there is no hostfile %s: the job runs on this machine alone, as under deepspeed", name)
		}
		return nil
	}
	d.badHostfile(&d.w.hostfile, err, false)
	return pool
}

// badHostfile refuses a hostfile with all that is wrong in it, or a list of hosts on the command line: no file stands in
// front of its items.
func (t *torchrunJob) badHostfile(word *value, err error, list bool) {
	if many, ok := errors.AsType[*multierror.Error](err); ok {
		for _, one := range many.Errors {
			if list {
				t.refuse(word, one)
			} else {
				t.wrong.add(one)
			}
		}
		return
	}
	t.refuse(word, err)
}

// filter is what --include, --exclude, --num_nodes and --num_gpus leave of the hosts. Each has Devices then.
func (d *deepSpeedJob) filter(pool []hosts.Host) []hosts.Host {
	active, word, err := pool, &d.w.include, error(nil)
	switch {
	case d.w.include.text != "":
		active, err = hosts.Include(pool, d.w.include.text)
	case d.w.exclude.text != "":
		word = &d.w.exclude
		active, err = hosts.Exclude(pool, d.w.exclude.text)
	}
	if err != nil {
		d.refuse(word, err)
		return nil
	}
	active = slices.Clone(active)
	if n := d.w.numNodes.n; n > len(active) {
		d.warn("--num_nodes %d: there are %d hosts", n, len(active))
	} else if n > 0 {
		active = active[:n]
	}
	for i := range active {
		h := &active[i]
		if n := d.w.numGPUs.n; n > 0 {
			h.Devices, h.Slots = numbers(n), n
		} else if h.Slots > 0 {
			h.Devices = devicesOf(*h)
		}
	}
	return active
}

// procs says how many workers this node has, and through what.
func (d *deepSpeedJob) procs(count string, source job.Source) {
	d.job.Procs = count
	if n, err := strconv.Atoi(count); err == nil && n > maxProcs {
		d.wrong.add(fmt.Errorf("cannot start %d workers on a node: the limit is %d", n, maxProcs))
	}
	d.tell("nproc-per-node", count, source)
}

// tell shows a value that follows from several flags.
func (t *torchrunJob) tell(flag, value string, source job.Source) {
	t.req.Settings = append(t.req.Settings, Setting{Flag: flag, Value: value, Source: source})
}

// from is the first of the flags that was given.
func (t *torchrunJob) from(words ...value) job.Source {
	for _, word := range words {
		if word.explicit() {
			return word.source
		}
	}
	return job.Source{}
}

// here is a job on this machine alone: all of it, or the one host that is left of a hostfile.
func (d *deepSpeedJob) here(host *hosts.Host) {
	m := &d.job.Meeting
	m.Host, m.Port = "127.0.0.1", d.w.masterPort.n
	addr := d.w.masterAddr.text
	for _, word := range []value{d.w.sshPort, d.w.launcherArgs} {
		if word.fromFlag() {
			d.warn("--%s has no effect on one node", word.option.dest())
		}
	}
	if d.w.elasticTraining.on {
		d.elastic(1)
		d.job.Nodes = job.Range{Min: 1, Max: 1}
	}
	if host != nil {
		if !d.isHere(host.Name) {
			d.warn("the one host that is left is %s, and the job runs on this machine, as under deepspeed: --force_multi reaches it by ssh",
				host.Name)
		}
		if addr != "" {
			m.Host = d.address(addr)
		}
		d.job.Devices.Only = host.Devices
		d.procs(strconv.Itoa(len(host.Devices)), d.from(d.w.numGPUs, d.w.include, d.w.exclude, d.w.hostfile))
		return
	}
	if addr != "" && !isLoopback(addr) {
		d.warn("--master_addr has no effect without a hostfile, as in deepspeed: the store listens on 127.0.0.1")
	}
	if n := d.w.numNodes.n; n > 1 {
		d.refuse(&d.w.numNodes, errors.New("no hostfile names other hosts: give --hostfile"))
	}
	if d.w.noSSH.on && d.w.nodeRank.n != 0 {
		d.refuse(&d.w.noSSH, errors.New("without a hostfile there is one node, of rank 0: give --hostfile, or --node_rank 0"))
	}
	if d.w.forceMulti.on {
		d.warn("--force_multi has no effect without a hostfile: the job runs on this machine")
	}
	d.localDevices()
}

// isHere reports whether a name is certainly this machine's.
func (d *deepSpeedJob) isHere(name string) bool {
	short, _, _ := strings.Cut(d.inv.Machine.Hostname, ".")
	return isLoopback(name) || name == d.inv.Machine.Hostname || name == short
}

func (d *deepSpeedJob) address(text string) string {
	host, _, err := parseEndpoint("[" + strings.Trim(text, "[]") + "]")
	if err != nil {
		d.refuse(&d.w.masterAddr, fmt.Errorf("%q is neither a host name nor an IP address", text))
	}
	return host
}

// localDevices finds the accelerators of a job without a hostfile: by flags, else by the variable that makes them
// visible, else all there are.
func (d *deepSpeedJob) localDevices() {
	rules := &d.job.Devices
	mask := cmp.Or(d.accel.mask, "CUDA_VISIBLE_DEVICES")
	visible := d.env[mask]
	only := func(devices []int, source job.Source) {
		rules.Only = devices
		d.procs(strconv.Itoa(len(devices)), source)
	}
	local, word := []hosts.Host{{Name: "localhost"}}, &d.w.include
	filter := d.w.include.text
	if filter == "" {
		filter, word = d.w.exclude.text, &d.w.exclude
	}
	n := d.w.numGPUs.n
	if visible != "" && (filter != "" || n > 0) {
		d.warn("%s=%s has no effect: --include, --exclude and --num_gpus count the devices of the machine", mask, visible)
	}
	list, err := hosts.Include(local, cmp.Or(filter, "localhost"))
	switch source := word.source; {
	case err != nil:
		d.refuse(word, errhint.With(err, "without a hostfile the only host is localhost"))
	case n > 0:
		only(numbers(min(n, maxProcs+1)), d.w.numGPUs.source)
	case filter != "" && list[0].Devices == nil && word == &d.w.exclude:
		d.refuse(word, errors.New("no host is left"))
	case filter != "" && list[0].Devices != nil && word == &d.w.exclude:
		rules.Except = list[0].Devices
		d.procs(d.every(), source)
	case filter != "" && list[0].Devices != nil:
		only(list[0].Devices, source)
	case visible != "" && filter == "":
		source = job.Source{Kind: job.FromVariable, Name: mask}
		if devices, ok := deviceNumbers(visible); ok {
			only(devices, source)
		} else {
			d.procs(strconv.Itoa(strings.Count(visible, ",")+1), source)
		}
	default:
		if size, err := pyInt(d.env["LOCAL_SIZE"]); err == nil && size > 0 && d.env["DS_ACCELERATOR"] == "cpu" {
			only(numbers(min(size, maxProcs+1)), job.Source{Kind: job.FromVariable, Name: "LOCAL_SIZE"})
			return
		}
		d.procs(d.every(), source)
	}
}

// every is the word that counts a worker for each accelerator, or for each NUMA node where CPUs were asked for.
func (d *deepSpeedJob) every() string {
	if d.env["DS_ACCELERATOR"] == "cpu" {
		return "numa"
	}
	return "auto"
}

// deviceNumbers reads a list of devices as deepspeed does: sorted, each once. It has no numbers where devices are named
// otherwise.
func deviceNumbers(text string) ([]int, bool) {
	var list []int
	for item := range strings.SplitSeq(text, ",") {
		n, err := pyInt(item)
		if err != nil || n < 0 {
			return nil, false
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return slices.Compact(list), true
}

// elastic makes the job one that nodes may leave, of as many as total.
func (d *deepSpeedJob) elastic(total int) {
	least, most := d.w.minElasticNodes.n, d.w.maxElasticNodes.n
	if least == -1 {
		least = 1
	}
	if most == -1 {
		most = total
	}
	if least < 1 || most < least {
		d.wrong.add(fmt.Errorf("cannot use --min_elastic_nodes %d and --max_elastic_nodes %d: give numbers from 1, the first not above "+
			"the second", least, most))
		least, most = 1, total
	}
	d.job.Nodes = job.Range{Min: min(least, total), Max: min(most, total)}
	d.job.Meeting.JoinTimeout = 10 * time.Minute
	d.job.Restart.MaxRestarts = elasticRestarts
	d.job.RunID = cmp.Or(d.env["ELASTIC_RUN_ID"], elasticRunID)
	if d.job.Nodes.Max > 1 {
		d.job.Meeting.Backend = backendMuster
	}
}

// oneOf is --no_ssh: this machine is one of the hosts, and deepspeed was started on each of them.
func (d *deepSpeedJob) oneOf(active []hosts.Host) {
	rank := d.w.nodeRank.n
	if rank < 0 || rank >= len(active) {
		d.refuse(&d.w.noSSH,
			fmt.Errorf("--node_rank says which of the %d hosts this is: give a number from 0 to %d", len(active), len(active)-1))
		return
	}
	own := active[rank]
	d.job.Devices.Only = own.Devices
	d.procs(strconv.Itoa(len(own.Devices)), d.from(d.w.numGPUs, d.w.include, d.w.exclude, d.w.hostfile))
	addr := cmp.Or(d.w.masterAddr.text, active[0].Name)
	m := &d.job.Meeting
	if d.w.elasticTraining.on {
		d.elastic(len(active))
	} else {
		d.job.Nodes = job.Range{Min: len(active), Max: len(active)}
	}
	d.tell("nnodes", strconv.Itoa(len(active)), d.from(d.w.numNodes, d.w.include, d.w.exclude, d.w.hostfile))
	if d.job.Nodes.Max == 1 {
		m.Host, m.Port = d.address(addr), d.w.masterPort.n
		return
	}
	if m.Backend == backendStatic {
		m.NodeRank, d.job.RunID = rank, "none"
	}
	var err error
	m.Endpoints, err = parseEndpoints(job.Endpoint{Host: d.address(addr), Port: d.w.masterPort.n}.String(), staticPort)
	d.refuse(&d.w.masterAddr, err)
}

// everywhere is a job on hosts that muster reaches.
func (d *deepSpeedJob) everywhere(active []hosts.Host) {
	j, m := d.job, &d.job.Meeting
	n := len(active)
	j.Nodes = job.Range{Min: n, Max: n}
	if d.w.elasticTraining.on {
		d.elastic(n)
	}
	for _, h := range active {
		node := job.Node{Host: h, Procs: d.every()}
		if h.Devices != nil {
			node.Procs = strconv.Itoa(len(h.Devices))
		}
		j.Hosts.Nodes = append(j.Hosts.Nodes, node)
	}
	j.Procs = j.Hosts.Nodes[0].Procs
	d.tell("nnodes", strconv.Itoa(n), d.from(d.w.numNodes, d.w.include, d.w.exclude, d.w.hostfile))
	addr, port := d.w.masterAddr.text, d.w.masterPort.n
	if addr != "" {
		addr = d.address(addr)
	}
	if n == 1 {
		m.Host, m.Port = addr, port
	} else {
		m.Endpoints = []job.Endpoint{{Host: addr, Port: port}} // without a host it is the first node's address
	}
	if ssh := d.w.sshPort; !ssh.none {
		if ssh.n < 1 || ssh.n > 65535 {
			d.refuse(&d.w.sshPort, errors.New("give a number from 1 to 65535"))
		}
		j.Hosts.SSH.Port = ssh.n
	}
	d.sshArgs()
	d.exports()
	if d.mpi != nil {
		d.asMPI()
	}
}
