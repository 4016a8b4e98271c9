package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/wording"
	"muster/launch/job"
)

// hosted reports whether words name hosts on which muster is to start the nodes.
func hosted(words *ownWords) bool {
	return words.Hosts.given || words.Hostfile.given
}

// hostDialects are those that take muster's own --hosts and --hostfile. The others have flags of their own for that.
var hostDialects = []string{nativeRun, "torchrun", "torch.distributed.launch", dlroverRun, ftLauncher}

// namesHosts are muster's own settings by which hosts are named.
func namesHosts(words *ownWords) []*value {
	return []*value{&words.Hosts, &words.Hostfile, &words.Include, &words.Exclude}
}

// checkHosted refuses flags that name hosts in front of a dialect that has its own. Variables and lines of a settings file
// that do so hold for other jobs, too: they are told of, and count as if nobody had given them.
func checkHosted(r *Request, words *ownWords, wrong *problems) {
	if slices.Contains(hostDialects, r.Job.Dialect) {
		return
	}
	for _, word := range namesHosts(words) {
		if !word.given {
			continue
		}
		if word.source.Kind == job.FromFlag {
			wrong.add(fmt.Errorf("cannot use --%s in front of %s: it has flags of its own that name hosts", word.option.name,
				r.Job.Dialect))
		} else {
			r.Job.Warnings = append(r.Job.Warnings,
				fmt.Sprintf("%s has no effect: %s has flags of its own that name hosts", word.written(), r.Job.Dialect))
		}
		r.Settings = slices.DeleteFunc(r.Settings, func(s Setting) bool { return s.Flag == word.option.name && s.Source == word.source })
		word.forget()
	}
}

// addEach adds all that is wrong with a list or a file.
func (p *problems) addEach(from job.Source, err error) {
	all := []error{err}
	if list, ok := errors.AsType[*multierror.Error](err); ok {
		all = list.Errors
	}
	for _, one := range all {
		p.add(fmt.Errorf("cannot use %s: %w", from.Name, one))
	}
}

// readHosts reads the hosts that words name, through their filters. It returns the word that names them, too. What is
// wrong is added; then there are no hosts.
func readHosts(r *Request, inv Invocation, words *ownWords, wrong *problems) (list []hosts.Host, from value) {
	text, file := words.Hosts, words.Hostfile
	if text.given && file.given && text.source.Kind == file.source.Kind {
		wrong.add(fmt.Errorf("cannot use %s and %s together: give one of them", text.source.Name, file.source.Name))
		return nil, text
	}
	var err error
	if from = text; text.given && text.source.Kind >= file.source.Kind {
		list, err = hosts.ParseList(text.text)
	} else {
		from = file
		list, err = readHostfile(r, inv, file.text, hosts.Any)
	}
	if err != nil {
		wrong.addEach(from.source, err)
		return nil, from
	}
	include, exclude := words.Include, words.Exclude
	if include.given && exclude.given {
		wrong.add(fmt.Errorf("cannot use %s and %s together: give one of them", include.source.Name, exclude.source.Name))
		return nil, from
	}
	filter := include
	if include.given {
		list, err = hosts.Include(list, include.text)
	} else if exclude.given {
		filter = exclude
		list, err = hosts.Exclude(list, exclude.text)
	}
	if err != nil {
		wrong.add(fmt.Errorf("cannot use %s: %w", filter.source.Name, err))
		return nil, from
	}
	return list, from
}

// filters are those that take some of the hosts away, behind what names the hosts.
func filters(words *ownWords) (text string) {
	for _, word := range []value{words.Include, words.Exclude} {
		if word.given {
			text += " and " + word.written()
		}
	}
	return text
}

// readHostfile reads a file in one of the forms that hostfiles have, and notes what was passed over in it.
func readHostfile(r *Request, inv Invocation, name string, form func(string, []byte) (hosts.File, error)) ([]hosts.Host, error) {
	if inv.ReadFile == nil {
		return nil, fmt.Errorf("%s cannot be read here", name)
	}
	content, err := inv.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file, err := form(name, content)
	r.Job.Warnings = append(r.Job.Warnings, file.Warnings...)
	return file.Hosts, err
}

// fleet makes the nodes of a job of its hosts. from names the hosts; nnodes and procs are what was said of the nodes
// and their workers in any other way, nil where nothing was. exact refuses another number of nodes than there are
// hosts.
type fleet struct {
	list          []hosts.Host
	from          value
	nnodes, procs *value
	exact         bool
}

// settle fills in the job's nodes. It reports whether their number may change while the job runs, or some are held
// ready: fixed ranks would be no use then.
func (f *fleet) settle(r *Request, words *ownWords, wrong *problems) (elastic bool) {
	j, m, n := &r.Job, &r.Job.Meeting, len(f.list)
	source := f.from.source
	switch {
	case f.nnodes == nil:
		if m.Spares >= n {
			wrong.add(fmt.Errorf("cannot use %s with %d hosts: none would be left to train", words.Spares.written(), n))
			m.Spares = 0
		}
		j.Nodes = job.Range{Min: n - m.Spares, Max: n - m.Spares}
		r.tell(&words.NNodes, strconv.Itoa(n-m.Spares), source)
	case j.Nodes.Min > n:
		are := "are"
		if n == 1 {
			are = "is"
		}
		wrong.add(fmt.Errorf("cannot use %s with %s: there %s only %s", f.nnodes.written(), source.Name+filters(words), are,
			wording.Plural(n, "host")))
		return j.Nodes.Min < j.Nodes.Max
	case j.Nodes.Min < j.Nodes.Max:
		// More than there are now would make each meeting wait for nodes that cannot come.
		j.Nodes.Max = min(j.Nodes.Max, n)
		elastic = true
	case j.Nodes.Max+m.Spares > n:
		wrong.add(fmt.Errorf("cannot use %s with %s and %d hosts: %d would be needed", words.Spares.written(),
			f.nnodes.written(), n, j.Nodes.Max+m.Spares))
	case j.Nodes.Max+m.Spares < n && f.exact:
		wrong.add(errhint.With(fmt.Errorf("cannot use %s with %d hosts", f.nnodes.written(), n),
			"leave the number of nodes out: it is that of the hosts"))
	default:
		for _, h := range f.list[j.Nodes.Max+m.Spares:] {
			j.Warnings = append(j.Warnings, fmt.Sprintf("the host %s is not used: %s asks for fewer", h.Name, f.nnodes.written()))
			if len(j.Warnings) > maxProblems {
				break
			}
		}
		f.list = f.list[:j.Nodes.Max+m.Spares]
	}
	j.Hosts.Nodes = f.workers(r, words, wrong)
	return elastic || m.Spares > 0
}

// workers gives each host its workers: its slots, unless the number was said for all.
func (f *fleet) workers(r *Request, words *ownWords, wrong *problems) []job.Node {
	nodes := make([]job.Node, len(f.list))
	each, err := strconv.Atoi(r.Job.Procs)
	told := "1"
	for i, h := range f.list {
		nodes[i].Host = h
		switch {
		case h.Slots == 0:
		case f.procs == nil:
			nodes[i].Procs = strconv.Itoa(h.Slots)
			told = "the hosts' slots"
		case err == nil && each > h.Slots:
			wrong.add(fmt.Errorf("cannot use %s: the host %s has slots for %d", f.procs.written(), h.Name, h.Slots))
		}
	}
	if f.procs == nil && told != "1" {
		r.tell(&words.NProcPerNode, told, f.from.source)
	}
	return nodes
}

// voidWithHosts refuses a flag that cannot be where muster starts all nodes, or tells that it has no effect where it
// stands in a variable or a file, which may be for many jobs.
func voidWithHosts(r *Request, word value, why string, wrong *problems) {
	switch word.source.Kind {
	case job.FromDefault:
	case job.FromFlag:
		wrong.add(fmt.Errorf("cannot use %s with hosts: %s", word.written(), why))
	default:
		r.Job.Warnings = append(r.Job.Warnings, fmt.Sprintf("%s has no effect with hosts: %s", word.written(), why))
	}
}

// Why flags that are about one node of several cannot be with hosts.
const (
	whyNodeRank  = "node ranks follow the order of the hosts"
	whyLocalAddr = "it is the address of one node, and all are started here"
)

// checkIsHost refuses the setting of --rdzv-conf that says whether this node serves the store.
func checkIsHost(m *job.Meeting, wrong *problems) {
	if m.IsHost != nil {
		wrong.add(errors.New("cannot use --rdzv-conf is_host with hosts: it is about one node, and all are started here"))
		m.IsHost = nil
	}
}

// nativeHosts is nativeMeeting for a job whose nodes muster itself starts.
func nativeHosts(r *Request, inv Invocation, words *ownWords, wrong *problems) {
	j, m := &r.Job, &r.Job.Meeting
	f := fleet{}
	if f.list, f.from = readHosts(r, inv, words, wrong); f.list == nil {
		return
	}
	if r.SimulateNodes > 0 {
		wrong.add(fmt.Errorf("cannot use --simulate-nodes with hosts: simulated nodes are all on this machine"))
		return
	}
	if words.NNodes.given {
		f.nnodes = &words.NNodes
	}
	if words.NProcPerNode.given {
		f.procs = &words.NProcPerNode
	}
	voidWithHosts(r, words.NodeRank, whyNodeRank, wrong)
	voidWithHosts(r, words.LocalAddr, whyLocalAddr, wrong)
	m.NodeRank, m.Prefers, m.LocalAddr = -1, 0, ""
	checkIsHost(m, wrong)
	elastic := f.settle(r, words, wrong)
	url := words.Rdzv
	switch {
	case url.given:
		for _, word := range []value{words.MasterAddr, words.MasterPort} {
			if word.source.Kind == job.FromFlag {
				wrong.add(fmt.Errorf("cannot use %s with --rdzv: the URL says where the nodes meet; leave one of them out",
					word.written()))
			}
		}
		if m.Backend == backendStatic {
			wrong.add(errhint.With(fmt.Errorf("cannot use %s with hosts: their ranks and the store on the first of them are muster's",
				url.written()),
				"leave it out; --master-addr and --master-port say where the store listens"))
		}
		m.Host, m.Port = "", 0
	case elastic:
		m.Backend = backendMuster
	case j.Nodes.Max > 1:
		m.Backend = backendStatic
	}
	settleMeeting(r, withNodes(words, j), wrong)
	if j.Alone() {
		if err := placeAlone(m); err != nil {
			wrong.add(fmt.Errorf("cannot use %s: %w", url.written(), err))
		}
	}
}

// withNodes adds the number of nodes to words where it follows from the hosts.
func withNodes(words *ownWords, j *job.Job) *ownWords {
	if words.NNodes.given {
		return words
	}
	all := *words
	all.NNodes.say(strconv.Itoa(j.Nodes.Max), job.Source{})
	return &all
}

// hosts is place and settle for a job whose nodes muster itself starts.
func (t *torchrunJob) hosts(inv Invocation, words *ownWords) {
	job, m, v := t.job, &t.job.Meeting, t.w
	f := fleet{exact: true}
	if f.list, f.from = readHosts(&t.req, inv, words, &t.wrong); f.list == nil {
		return
	}
	if v.standalone.on {
		t.refuse(&t.w.standalone, fmt.Errorf("it is one node by itself, and %s names hosts", f.from.written()))
		return
	}
	if word := t.w.nnodes; v.nnodes.explicit() {
		f.nnodes = &word
	}
	if word := t.w.nprocPerNode; v.nprocPerNode.explicit() {
		f.procs = &word
	}
	voidWithHosts(&t.req, t.w.nodeRank, whyNodeRank, &t.wrong)
	voidWithHosts(&t.req, t.w.localAddr, whyLocalAddr, &t.wrong)
	m.NodeRank, m.Prefers, m.LocalAddr, m.Host, m.Port = -1, 0, "", "", 0
	checkIsHost(m, &t.wrong)
	elastic := f.settle(&t.req, words, &t.wrong)
	endpoint := v.rdzvEndpoint
	switch backend := v.rdzvBackend; {
	case m.Backend == backendEtcd, endpoint.text != "" && (m.Backend == backendC10d || m.Backend == backendMuster):
		t.place()
	case m.Backend == backendC10d, m.Backend == backendMuster, elastic && !backend.explicit():
		m.Backend = backendMuster
	case endpoint.text == "" && !v.masterAddr.explicit() && v.masterPort.none:
		if m.Backend = backendStatic; job.Nodes.Max == 1 {
			m.Backend = backendStandalone
		}
	default:
		host, port, word, err := t.staticAddress(endpoint.text)
		t.refuse(word, err)
		m.Backend, m.Host, m.Port = backendStatic, host, max(port, 0)
		if endpoint.text == "" && !v.masterAddr.explicit() {
			m.Host = "" // the first host's
		}
	}
	if job.RunID == "" && job.Nodes.Max > 1 {
		job.RunID = v.rdzvID.text // torchrun's own, which several nodes had need of
	}
	all := withNodes(words, job)
	if f.nnodes != nil {
		all = new(*all)
		all.NNodes = *f.nnodes
	}
	settleMeeting(&t.req, all, &t.wrong)
}
