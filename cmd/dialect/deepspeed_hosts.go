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
	if port := d.number("master-port"); port < 0 || port > 65535 {
		d.refuse("master-port", errors.New("give a number from 0 to 65535"))
	}
	if (d.number("num-nodes") >= 0 || d.number("num-gpus") >= 0) && d.text("include")+d.text("exclude") != "" {
		d.wrong.add(errors.New("cannot use --num_nodes or --num_gpus with --include or --exclude: these say it already"))
	}
	if d.text("include") != "" && d.text("exclude") != "" {
		d.wrong.add(errors.New("cannot use --include and --exclude together: give one of them"))
		return
	}
	d.checkElastic()
	pool := d.readHostfile(d.text("hostfile"), d.typed("hostfile"), hosts.DeepSpeed)
	launcher := strings.ToLower(d.text("launcher"))
	runner, known := mpiRunners[launcher]
	if !known && launcher != "pdsh" {
		d.refuse("launcher", errors.New("choose pdsh, openmpi, mpich, impi, mvapich or slurm"))
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
	d.multi = (d.on("force-multi") || len(active) > 1) && !d.on("no-ssh")
	switch {
	case len(active) == 0:
	case d.on("no-ssh"):
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
	if !d.on("elastic-training") {
		for _, flag := range []string{"min-elastic-nodes", "max-elastic-nodes"} {
			if d.typed(flag) {
				d.warn("--%s has no effect without --elastic_training", strings.ReplaceAll(flag, "-", "_"))
			}
		}
		return
	}
	if d.text("master-addr") == "" {
		d.refuse("elastic-training", errors.New("nothing says where the nodes meet: give --master_addr"))
	}
	if d.on("no-local-rank") {
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
	d.badHostfile("hostfile", err)
	return pool
}

// badHostfile refuses a hostfile with all that is wrong in it.
func (t *torchrunJob) badHostfile(flag string, err error) {
	if many, ok := errors.AsType[*multierror.Error](err); ok {
		for _, one := range many.Errors {
			if flag == "host" { // an item of a list: no file stands in front of it
				t.refuse(flag, one)
			} else {
				t.wrong.add(one)
			}
		}
		return
	}
	t.refuse(flag, err)
}

// filter is what --include, --exclude, --num_nodes and --num_gpus leave of the hosts. Each has Devices then.
func (d *deepSpeedJob) filter(pool []hosts.Host) []hosts.Host {
	active, flag, err := pool, "include", error(nil)
	switch {
	case d.text("include") != "":
		active, err = hosts.Include(pool, d.text("include"))
	case d.text("exclude") != "":
		flag = "exclude"
		active, err = hosts.Exclude(pool, d.text("exclude"))
	}
	if err != nil {
		d.refuse(flag, err)
		return nil
	}
	active = slices.Clone(active)
	if n := d.number("num-nodes"); n > len(active) {
		d.warn("--num_nodes %d: there are %d hosts", n, len(active))
	} else if n > 0 {
		active = active[:n]
	}
	for i := range active {
		h := &active[i]
		if n := d.number("num-gpus"); n > 0 {
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
func (t *torchrunJob) from(flags ...string) job.Source {
	for _, flag := range flags {
		if source := t.given(flag).source; source.Kind != job.FromDefault {
			return source
		}
	}
	return job.Source{}
}

// here is a job on this machine alone: all of it, or the one host that is left of a hostfile.
func (d *deepSpeedJob) here(host *hosts.Host) {
	m := &d.job.Meeting
	m.Host, m.Port = "127.0.0.1", d.number("master-port")
	addr := d.text("master-addr")
	for _, flag := range []string{"ssh-port", "launcher-args"} {
		if d.typed(flag) {
			d.warn("--%s has no effect on one node", strings.ReplaceAll(flag, "-", "_"))
		}
	}
	if d.on("elastic-training") {
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
		d.procs(strconv.Itoa(len(host.Devices)), d.from("num-gpus", "include", "exclude", "hostfile"))
		return
	}
	if addr != "" && !isLoopback(addr) {
		d.warn("--master_addr has no effect without a hostfile, as in deepspeed: the store listens on 127.0.0.1")
	}
	if n := d.number("num-nodes"); n > 1 {
		d.refuse("num-nodes", errors.New("no hostfile names other hosts: give --hostfile"))
	}
	if d.on("no-ssh") && d.number("node-rank") != 0 {
		d.refuse("no-ssh", errors.New("without a hostfile there is one node, of rank 0: give --hostfile, or --node_rank 0"))
	}
	if d.on("force-multi") {
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
		d.refuse("master-addr", fmt.Errorf("%q is neither a host name nor an IP address", text))
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
	local, flag := []hosts.Host{{Name: "localhost"}}, "include"
	filter := d.text("include")
	if filter == "" {
		filter, flag = d.text("exclude"), "exclude"
	}
	n := d.number("num-gpus")
	if visible != "" && (filter != "" || n > 0) {
		d.warn("%s=%s has no effect: --include, --exclude and --num_gpus count the devices of the machine", mask, visible)
	}
	list, err := hosts.Include(local, cmp.Or(filter, "localhost"))
	switch source := d.given(flag).source; {
	case err != nil:
		d.refuse(flag, errhint.With(err, "without a hostfile the only host is localhost"))
	case n > 0:
		only(numbers(min(n, maxProcs+1)), d.given("num-gpus").source)
	case filter != "" && list[0].Devices == nil && flag == "exclude":
		d.refuse(flag, errors.New("no host is left"))
	case filter != "" && list[0].Devices != nil && flag == "exclude":
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
	least, most := d.number("min-elastic-nodes"), d.number("max-elastic-nodes")
	if least == -1 {
		least = 1
	}
	if most == -1 {
		most = total
	}
	if least < 1 || most < least {
		d.wrong.add(fmt.Errorf("cannot use --min_elastic_nodes %d and --max_elastic_nodes %d: give numbers from 1, the first not above the second", least, most))
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
	rank := d.number("node-rank")
	if rank < 0 || rank >= len(active) {
		d.refuse("no-ssh",
			fmt.Errorf("--node_rank says which of the %d hosts this is: give a number from 0 to %d", len(active), len(active)-1))
		return
	}
	own := active[rank]
	d.job.Devices.Only = own.Devices
	d.procs(strconv.Itoa(len(own.Devices)), d.from("num-gpus", "include", "exclude", "hostfile"))
	addr := cmp.Or(d.text("master-addr"), active[0].Name)
	m := &d.job.Meeting
	if d.on("elastic-training") {
		d.elastic(len(active))
	} else {
		d.job.Nodes = job.Range{Min: len(active), Max: len(active)}
	}
	d.tell("nnodes", strconv.Itoa(len(active)), d.from("num-nodes", "include", "exclude", "hostfile"))
	if d.job.Nodes.Max == 1 {
		m.Host, m.Port = d.address(addr), d.number("master-port")
		return
	}
	if m.Backend == backendStatic {
		m.NodeRank, d.job.RunID = rank, "none"
	}
	var err error
	m.Endpoints, err = parseEndpoints(job.Endpoint{Host: d.address(addr), Port: d.number("master-port")}.String(), staticPort)
	d.refuse("master-addr", err)
}

// everywhere is a job on hosts that muster reaches.
func (d *deepSpeedJob) everywhere(active []hosts.Host) {
	j, m := d.job, &d.job.Meeting
	n := len(active)
	j.Nodes = job.Range{Min: n, Max: n}
	if d.on("elastic-training") {
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
	d.tell("nnodes", strconv.Itoa(n), d.from("num-nodes", "include", "exclude", "hostfile"))
	addr, port := d.text("master-addr"), d.number("master-port")
	if addr != "" {
		addr = d.address(addr)
	}
	if n == 1 {
		m.Host, m.Port = addr, port
	} else {
		m.Endpoints = []job.Endpoint{{Host: addr, Port: port}} // without a host it is the first node's address
	}
	if ssh := d.in.values["ssh_port"]; !ssh.none {
		if ssh.n < 1 || ssh.n > 65535 {
			d.refuse("ssh-port", errors.New("give a number from 1 to 65535"))
		}
		j.Hosts.SSH.Port = ssh.n
	}
	d.sshArgs()
	d.exports()
	if d.mpi != nil {
		d.asMPI()
	}
}
