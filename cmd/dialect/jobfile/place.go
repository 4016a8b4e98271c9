package jobfile

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"muster/internal/errhint"
	"muster/launch/job"
)

// host is where a node is.
func (at Places) host(i int) string {
	if i < len(at.Hosts) {
		return at.Hosts[i]
	}
	return "127.0.0.1"
}

// master is where pods meet.
func (at Places) master() string {
	host := at.host(0)
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(at.Port)
}

// own is a variable that an operator gives pods.
func own(name, value string) job.Var {
	return job.Var{Name: name, Value: value, Source: job.Source{Kind: job.FromMuster, Name: "as the operator tells a pod"}}
}

// startVariable tells a launcher how long it waits for its hosts.
const startVariable = "MUSTER_START_TIMEOUT"

// WaitForHosts has the launcher wait so long for its hosts, whatever the file says.
func (f *File) WaitForHosts(limit string) { f.schedule = limit }

// ownPrefix begins the variables that stand for flags of muster.
const ownPrefix = "MUSTER_"

// ReplicaVariable tells a node which replica of the file it is.
const ReplicaVariable = "MUSTER_REPLICA"

// Reached are the hosts of the launcher where they are at those places, spare ones behind the others; nil where they do
// not change.
func (f *File) Reached(at Places, rehearsed bool) *job.ReachedHosts {
	if f.reached == nil {
		return nil
	}
	r := *f.reached
	r.Rehearsed = rehearsed
	r.Hosts = f.reachedHosts(at)
	if !rehearsed && len(at.Hosts) > len(f.Pods) {
		r.Spare = at.Hosts[len(f.Pods):]
	}
	return &r
}

// reachedHosts are the launcher's hosts at first.
func (f *File) reachedHosts(at Places) (hosts []job.ReachedHost) {
	for i, p := range f.Pods {
		hosts = append(hosts, job.ReachedHost{Host: at.host(i), Name: p.Name, Slots: max(1, p.Accelerators)})
	}
	return hosts
}

// MostHosts is how many hosts may be named for the launcher, no fewer than pods: as many as it may have at once, and
// those that may take the places of others. Negative: any number.
func (f *File) MostHosts() int {
	switch r := f.reached; {
	case r == nil:
		return len(f.Pods)
	case !r.Replace:
		return r.Max
	case r.Limit < 0:
		return -1
	default:
		return r.Max + r.Limit
	}
}

// Least is how many of Nodes an elastic job goes on with; of others it is all of them.
func (f *File) Least() int {
	if f.shape.elastic {
		return f.shape.least
	}
	return len(f.Nodes())
}

// Port is where the pods meet in the cluster.
func (f *File) Port() int { return f.port }

// Nodes are the nodes that run commands: the pods, or the launcher alone.
func (f *File) Nodes() []Pod {
	if f.Launcher != nil {
		return []Pod{*f.Launcher}
	}
	return f.Pods
}

// meetingNames are variables by which operators say which nodes there are and how they meet, and that are the same for all
// of them.
var meetingNames = []string{"PET_NNODES", "PET_RDZV_BACKEND"}

// Places reports whether the operator says by a variable of that name which node of the job a pod is, or where it meets
// the others.
func (f *File) Places(name string) bool {
	if f.beside == nil {
		return false
	}
	value := func(i int, at Places) (text string, found bool) {
		for _, v := range f.beside(f, i, at) {
			if v.Name == name {
				text, found = v.Value, true
			}
		}
		return text, found
	}
	first, found := value(0, Places{Hosts: []string{"a"}, Port: 1})
	other, _ := value(len(f.Nodes())-1, Places{Hosts: []string{"b"}, Port: 2})
	return found && (first != other || slices.Contains(meetingNames, name))
}

// Called are the names of the i-th of Nodes: what the cluster would call it and, where they mean no other one, its group with
// its number there, and its group alone.
func (f *File) Called(i int) []string {
	nodes := f.Nodes()
	p, group, numbered := &nodes[i], 0, 0
	for _, other := range nodes {
		if other.Role == p.Role {
			if group++; other.Index == p.Index {
				numbered++
			}
		}
	}
	names := []string{p.Name}
	if numbered == 1 {
		names = append(names, p.Role+"-"+strconv.Itoa(p.Index))
	}
	if group == 1 {
		names = append(names, p.Role)
	}
	return names
}

// Node is what a node runs, and the variables that it is told.
type Node struct {
	Argv []string
	Env  []job.Var
}

// Place says what each of Nodes runs where the nodes are at those places, and the command that all of them have.
func (f *File) Place(at Places) (job.Command, []Node, error) {
	pods := f.Nodes()
	nodes := make([]Node, len(pods))
	names := f.names(at)
	for i := range pods {
		nodes[i] = f.node(&pods[i], i, at, names)
	}
	same := !slices.ContainsFunc(nodes, func(n Node) bool { return !slices.Equal(n.Argv, nodes[0].Argv) })
	if f.Native && !same {
		return job.Command{}, nil, errors.New("the nodes run muster run with different commands: give all the same")
	}
	plain := f.Native || same && f.Launcher == nil && !slices.ContainsFunc(nodes, func(n Node) bool {
		return launches(n.Argv) || n.meets(pods)
	})
	for i := range nodes {
		n := &nodes[i]
		if !plain {
			continue
		}
		// The command itself is the worker, and muster tells workers as operators tell pods.
		n.Env = slices.DeleteFunc(n.Env, func(v job.Var) bool { return v.Source.Kind == job.FromMuster && job.TellsWorkers(v.Name) })
	}
	hiding := at
	hiding.Hide = true
	title := job.TitleOf(f.node(&pods[0], 0, hiding, names).Argv)
	if plain {
		return job.Command{Kind: job.Program, Name: nodes[0].Argv[0], Args: nodes[0].Argv[1:], Title: title}, nodes, nil
	}
	for i := range nodes {
		nodes[i].Env = append(nodes[i].Env, own(ReplicaVariable, strconv.Itoa(i)))
	}
	script, err := f.script(nodes, at)
	return job.Command{
		Kind: job.Program, Name: "/bin/sh", Args: []string{"-c", script}, Title: title, Links: launchers,
	}, nodes, err
}

// meets reports whether the container itself says where workers meet.
func (n Node) meets([]Pod) bool {
	return slices.ContainsFunc(n.Env, func(v job.Var) bool { return v.Source.Kind != job.FromMuster && job.TellsWorkers(v.Name) })
}

// node is a pod with the values that its references have.
func (f *File) node(p *Pod, i int, at Places, names func(string) string) Node {
	var env []job.Var
	values, shown := map[string]string{}, map[string]string{}
	if f.beside != nil {
		env = slices.DeleteFunc(f.beside(f, i, at), func(v job.Var) bool { return f.given[v.Name] })
	}
	if f.schedule != "" && !f.given[startVariable] {
		env = append(env, own(startVariable, f.schedule))
	}
	for _, v := range env {
		values[v.Name], shown[v.Name] = v.Value, v.Value
	}
	operators := len(env)
	for _, x := range p.env {
		v := x.Var
		if x.of != nil {
			v.Value = x.of(p, at, i, f)
		}
		if slices.ContainsFunc(env[:operators], func(o job.Var) bool { return o.Name == v.Name }) {
			continue // the operator's wins, as it does in a pod
		}
		shown[v.Name] = v.Value
		switch {
		case x.kind == kindSecret:
			shown[v.Name], v.Secret = "$("+v.Name+")", true
		case x.of == nil && x.kind == "":
			shown[v.Name] = expand(names(v.Value), shown)
			v.Value = expand(names(v.Value), values)
			v.Secret = shown[v.Name] != v.Value
		}
		values[v.Name] = v.Value
		if f.Native && strings.HasPrefix(v.Name, ownPrefix) {
			continue // muster run keeps its own settings from its workers
		}
		if j := slices.IndexFunc(env, func(o job.Var) bool { return o.Name == v.Name }); j >= 0 {
			env[j] = v
			continue
		}
		env = append(env, v)
	}
	if at.Hide {
		values = shown
	}
	n := Node{Env: env, Argv: make([]string, len(p.Argv))}
	for j, word := range p.Argv {
		n.Argv[j] = expand(names(word), values)
	}
	if !f.Native {
		n.Argv = AsLauncher(n.Argv)
	}
	return n
}

// expand replaces $(NAME) as Kubernetes does: by variables that are known, and $$ stands for a dollar sign.
func expand(text string, values map[string]string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		switch end := strings.IndexByte(text[i:], ')'); {
		case text[i+1] == '$':
			b.WriteByte('$')
			i++
		case text[i+1] == '(' && end > 0:
			if value, known := values[text[i+2:i+end]]; known {
				b.WriteString(value)
			} else {
				b.WriteString(text[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// names returns what replaces the names that pods have in a cluster by the places of their nodes.
func (f *File) names(at Places) func(string) string {
	where := map[string]string{}
	var all []string
	for i, p := range f.Pods {
		where[p.Name] = at.host(i)
		all = append(all, regexp.QuoteMeta(p.Name))
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	found := regexp.MustCompile(`(^|[^A-Za-z0-9.-])(` + strings.Join(all, "|") + `)((?:\.[a-z0-9-]+)*)($|[^A-Za-z0-9.-])`)
	return func(text string) string {
		if !strings.Contains(text, f.Name) {
			return text
		}
		for range 2 { // two names may share what stands between them
			text = found.ReplaceAllStringFunc(text, func(word string) string {
				m := found.FindStringSubmatch(word)
				return m[1] + where[m[2]] + m[4]
			})
		}
		return text
	}
}

// modules are the launchers that Python starts by -m, with the names under which muster is them.
var modules = map[string]string{
	"torch.distributed.run": "torch.distributed.run", "torch.distributed.launch": "torch.distributed.launch",
	"accelerate.commands.launch": "accelerate-launch", "torch.distributed.elastic.agent": "",
}

// launchers are the programs that muster is inside of a node's command.
var launchers = []string{
	"torchrun", "dlrover-run", "ft_launcher", "horovodrun", "accelerate", "accelerate-launch", "colossalai", "deepspeed", "mpirun",
	"mpiexec", "torch.distributed.run", "torch.distributed.launch",
}

// AsLauncher names a launcher in a command so that muster's is found.
func AsLauncher(argv []string) []string {
	if len(argv) == 0 {
		return argv
	}
	base := path.Base(argv[0])
	if slices.Contains(launchers, base) {
		return append([]string{base}, argv[1:]...)
	}
	for i := 1; i+1 < len(argv) && strings.HasPrefix(base, "python"); i++ {
		if argv[i] == "-m" && modules[argv[i+1]] != "" {
			return append([]string{modules[argv[i+1]]}, argv[i+2:]...)
		}
		if !strings.HasPrefix(argv[i], "-") {
			break
		}
	}
	return argv
}

// shells run scripts, in which launchers may stand.
var shells = []string{"sh", "bash", "dash", "ash", "zsh", "env", "exec", "nohup", "stdbuf", "numactl", "timeout"}

// launches reports whether launchers may be in a command.
func launches(argv []string) bool {
	base := path.Base(argv[0])
	return slices.Contains(launchers, base) || slices.Contains(shells, base) || strings.HasSuffix(base, ".sh") ||
		strings.Contains(argv[0], "/") &&
			!strings.HasPrefix(base, "python")
}

// podless are the variables of muster's workers that no pod has, and placed those by which pods are told apart, too.
var (
	podless = []string{
		"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
		"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
		"TORCHELASTIC_SIGNALS_TO_HANDLE",
	}
	placed = []string{"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"}
)

// untold are the variables that the nodes' commands are not to have, though muster tells its workers: where the
// operator or the file says how pods meet, or a launcher does that. Otherwise they meet as muster's workers do.
func untold(nodes []Node) []string {
	set := func(name string) bool {
		return slices.ContainsFunc(nodes, func(n Node) bool {
			return slices.ContainsFunc(n.Env, func(v job.Var) bool { return v.Name == name })
		})
	}
	launcher := slices.ContainsFunc(nodes, func(n Node) bool { return slices.Contains(launchers, n.Argv[0]) })
	if !launcher && !set("MASTER_ADDR") && !set("PET_NNODES") {
		return nil
	}
	return slices.DeleteFunc(slices.Concat(podless, placed), set)
}

// script is what a shell runs on each node: it puts muster under its launchers' names, as the node's agent has linked it,
// first in PATH, writes what the operator mounts, and becomes the replica's command.
func (f *File) script(nodes []Node, at Places) (string, error) {
	var b strings.Builder
	b.WriteString("d=$MUSTER_RUN_DIR/" + job.PodDir + "\nPATH=$d:$PATH\nexport PATH\n")
	if unset := untold(nodes); len(unset) > 0 {
		fmt.Fprintf(&b, "unset %s\n", strings.Join(unset, " "))
	}
	var mounted []string
	if f.reached != nil {
		fmt.Fprintf(&b, "%s=%s\nexport %[1]s\n", job.ReachedVariable, job.ReachedID("${MUSTER_RUN_DIR##*/job-}"))
	}
	if f.files != nil {
		files := f.files(at)
		for name := range files {
			mounted = append(mounted, name)
		}
		slices.Sort(mounted)
		for _, name := range mounted {
			base := path.Base(name)
			if f.reached != nil { // hosts have come and gone since, where the launcher starts anew
				fmt.Fprintf(&b, "[ -e \"$d\"/%s ] || ", base)
			}
			fmt.Fprintf(&b, "printf %%s %s >\"$d\"/%s || exit 125\nchmod 755 \"$d\"/%[2]s\n", shellescape.Quote(files[name]), base)
		}
		for _, v := range nodes[0].Env {
			if slices.Contains(mounted, v.Value) {
				fmt.Fprintf(&b, "%s=$d/%s\nexport %[1]s\n", v.Name, path.Base(v.Value))
			}
		}
	}
	alike := map[string][]string{}
	var order []string
	for i, n := range nodes {
		words := make([]string, len(n.Argv))
		for j, word := range n.Argv {
			words[j] = quoted(word, mounted)
		}
		line := strings.Join(words, " ")
		if alike[line] == nil {
			order = append(order, line)
		}
		alike[line] = append(alike[line], strconv.Itoa(i))
	}
	if len(order) == 1 {
		fmt.Fprintf(&b, "exec %s\n", order[0])
	} else {
		fmt.Fprintf(&b, "case $%s in\n", ReplicaVariable)
		for _, line := range order {
			fmt.Fprintf(&b, "%s) exec %s ;;\n", strings.Join(alike[line], "|"), line)
		}
		b.WriteString("esac\n")
	}
	const most = 100 << 10 // of the 128 KiB that an argument may have
	if b.Len() > most {
		return "",
			errhint.With(fmt.Errorf("the commands of the job's nodes have %d bytes, more than the %d that a shell takes", b.Len(), most),
				"put long scripts into files")
	}
	return b.String(), nil
}

// quoted is a word for a shell, with the paths of what the operator mounts replaced by where it lies here.
func quoted(word string, mounted []string) string {
	for _, name := range mounted {
		if before, after, found := strings.Cut(word, name); found {
			text := `"$d"/` + path.Base(name)
			if before != "" {
				text = quoted(before, mounted) + text
			}
			if after != "" {
				text += quoted(after, mounted)
			}
			return text
		}
	}
	return shellescape.Quote(word)
}
