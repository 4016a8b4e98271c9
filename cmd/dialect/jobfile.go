package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/hashicorp/go-multierror"

	"muster/cmd/dialect/jobfile"
	"muster/internal/errhint"
	"muster/internal/platform"
	"muster/launch/job"
)

const groupJobFile = "Job files"

// ofJobFile is met where a job file is read.
var ofJobFile = condition{"without a job file", "name one by -f", func(r *Request, _ *ownWords) bool { return r.File != nil }}

// jobFileSettings are read by readJobFile, before all others.
func jobFileSettings(w *ownWords) []option {
	later := func(*Request, string) error { return nil }
	return []option{
		{
			name: "job-file", word: &w.JobFile, inside: insideRefused, short: "f", arg: "FILE", group: groupJobFile, use: always,
			help: "Run the job of FILE (- is standard input), YAML for a cluster: " + strings.Join(jobfile.Kinds(), ", ") +
				". Its replicas become nodes, on this machine or on --hosts; what stands behind -- are further arguments of its " +
				"command. muster explain FILE says what becomes of each line.",
			set: later, once: "a job has one file: put several into one, with a line of --- between them",
		},
		{
			name: "kind", word: &w.Kind, arg: "KIND", group: groupJobFile, use: use{ofJobFile},
			help: "With --job-file: the kind of the job that is meant, where the file has several.", set: later,
		},
		{
			name: "name", word: &w.Name, arg: "NAME", group: groupJobFile, use: use{ofJobFile},
			help: "With --job-file: the name of the job that is meant, where the file has several.", set: later,
		},
		{
			name: "set", word: &w.Set, separator: several, arg: "PATH=VALUE", group: groupJobFile, use: use{ofJobFile},
			help: "With --job-file: read the file as if VALUE stood at PATH, as in spec.runPolicy.backoffLimit=3 or " +
				"spec.replicaSpecs[0].replicas=2. May be given again.",
			set: later,
		},
		{
			name: "secrets", word: &w.Secrets, arg: "DIR", group: groupJobFile, use: use{ofJobFile},
			help: "With --job-file: where variables from Secrets and ConfigMaps come from: DIR has a directory for each, and a file in " +
				"it for each key.",
			set: later,
		},
		{
			name: "lenient", word: &w.Lenient, kind: kindFlag, def: "false", group: groupJobFile, use: use{ofJobFile},
			help: "With --job-file: pass over fields and kinds that nobody knows, with a warning, where they would be refused.",
			set:  checkSwitch,
		},
	}
}

// PlacedNode is a node of a job file where it will run.
type PlacedNode struct {
	Pod  jobfile.Pod
	Host string
	Node jobfile.Node
}

// jobFile is the file of a job that is being read. The zero value is a command line without one.
type jobFile struct {
	named bool // even where it could not be read
	file  *jobfile.File
	path  string
	hosts []string // of a rehearsal, or those that a launcher in the file reaches
	here  bool     // it is a rehearsal
	// given are the variables that somebody gives the workers.
	given map[string]bool
	// ignored is what somebody says of the nodes elsewhere than in flags: the file says it.
	ignored []string
	at      jobfile.Places
}

// readJobFile reads the file that the words name, if they name one.
func readJobFile(inv Invocation, words *ownWords, args []string, wrong *problems) jobFile {
	word := words.JobFile
	if !word.given {
		return jobFile{}
	}
	f := jobFile{named: true, path: word.text}
	if f.path == "-" {
		f.path = "/dev/stdin"
	}
	if inv.ReadFile == nil {
		wrong.add(fmt.Errorf("cannot read %s: no files can be read here", word.text))
		return f
	}
	content, err := inv.ReadFile(f.path)
	if err != nil {
		wrong.add(fmt.Errorf("cannot use %s: %w", word.written(), err))
		return f
	}
	o := jobfile.Options{
		File: f.path, Content: content, Kind: words.Kind.text, Name: words.Name.text, Secrets: words.Secrets.text,
		Lenient: words.Lenient.switched(), Explain: inv.Explain, Args: args, Given: map[string]bool{}, ReadFile: inv.ReadFile,
		ReadDir: inv.ReadDir, Run: insideRun, NameFlag: inv.JobNameFlag, Success: words.SuccessPolicy.given,
		Stronger: func(flag string) bool { return settingNamed(flag).of(words).given },
	}
	for _, s := range words.Set.pieces() {
		o.Set = append(o.Set, s.text)
	}
	for _, e := range words.Env.pieces() {
		name, _, _ := strings.Cut(e.text, "=")
		o.Given[name] = true
	}
	for _, e := range words.EnvFile.pieces() {
		list, _ := readEnvFile(e.text, inv.ReadFile, false) // settleEnv tells what is wrong with it
		for _, v := range list {
			o.Given[v.Name] = true
		}
	}
	f.given = o.Given
	f.file, err = jobfile.Read(o)
	if list, ok := errors.AsType[*multierror.Error](err); ok {
		for _, one := range list.Errors {
			wrong.add(one)
		}
	} else {
		wrong.add(err)
	}
	return f
}

// words gives settings the words that follow from the file, where nobody says something stronger.
func (f *jobFile) words(words *ownWords, wrong *problems) {
	if f.file == nil {
		return
	}
	fromFile, own := newOwnWords(), map[*value]bool{}
	for _, w := range f.file.Words {
		before := settingNamed(w.Flag).of(fromFile)
		word := value{option: before.option, text: w.Text, source: w.Source, given: true, secret: w.Secret}
		switch {
		case w.Own && before.option.separator == several: // each of them counts, once where several groups say the same
			if !slices.ContainsFunc(before.all(), func(v value) bool { return v.text == w.Text }) {
				before.over(word)
			}
			continue
		case w.Own && !own[before]:
			own[before] = true
		case own[before] && !w.Own:
			continue // muster run in the pods says it
		case before.given && before == &fromFile.FatalExitCodes:
			word.text = bothLists(before.text, w.Text)
		case before.given && before.text != w.Text:
			wrong.add(errhint.With(fmt.Errorf("cannot use %s and %s together: muster has one for all nodes of a job",
				before.written(), word.written()), "give --"+w.Flag))
			continue
		}
		*before = word
	}
	nodes := f.file.Nodes()
	source := nodes[0].Source
	fromFile.RunID.say(f.file.Name, source)
	if !own[&fromFile.NProcPerNode] {
		fromFile.NProcPerNode.say("1", source)
	}
	fromFile.Platform.say(platform.None, source)
	for _, word := range []*value{
		&words.Standalone, &words.SimulateNodes, &words.NNodes, &words.NProcPerNode, &words.NodeRank, &words.MasterAddr,
		&words.MasterPort, &words.Rdzv, &words.Spares, &words.Module, &words.NoPython,
	} {
		switch {
		case word.source.Kind == job.FromFlag:
			wrong.add(fmt.Errorf("cannot use %s with %s: the file says what runs on which nodes", word.written(), f.path))
		case word.given: // such variables are often meant for other jobs
			f.ignored = append(f.ignored, word.written())
		}
		word.forget()
	}
	f.ownRestarts(fromFile, own)
	settleRestarts(words, fromFile, own)
	if f.here = !hosted(words); f.here {
		f.unfiltered(words, wrong)
	}
	if f.here && len(f.file.Pods) > maxSimulated {
		wrong.add(errhint.With(fmt.Errorf("cannot run %d nodes on this machine: %d are the most (%s)", len(f.file.Pods), maxSimulated,
			f.file.Pods[0].Source), "name machines by --hosts, or give fewer replicas by --set"))
		return
	}
	if f.here {
		for i := range f.file.Pods {
			f.hosts = append(f.hosts, "127.0.0."+strconv.Itoa(i+1))
		}
	}
	if f.file.Launcher == nil {
		count := strconv.Itoa(len(nodes))
		if least := f.file.Least(); least < len(nodes) {
			count = strconv.Itoa(least) + ":" + count
		}
		fromFile.NNodes.say(count, source)
	}
	if f.here && len(nodes) > 1 {
		fromFile.Hosts.say(strings.Join(f.hosts, ","), source)
	}
	if f.here && len(nodes) == 1 {
		fromFile.StartTimeout.forget() // of hosts, which this job has not
	}
	for _, s := range settings() {
		for word := s.of(fromFile); word != nil && word.given; word = word.weaker {
			weaker := *word
			weaker.weaker = nil
			s.of(words).under(weaker)
		}
	}
}

// unfiltered refuses what chooses among hosts where the nodes are this machine's addresses.
func (f *jobFile) unfiltered(words *ownWords, wrong *problems) {
	for _, word := range []*value{&words.Include, &words.Exclude} {
		if word.fromFlag() {
			wrong.add(fmt.Errorf("cannot use %s: it has no effect %s; %s", word.written(), onHosts.lack, onHosts.remedy))
		} else if word.given {
			f.ignored = append(f.ignored, word.written())
		}
		word.forget()
	}
}

// ownRestarts lets the restarts count that muster run in the pods has itself, and not those of the pods. own are the
// settings that it has.
func (f *jobFile) ownRestarts(fromFile *ownWords, own map[*value]bool) {
	if !own[&fromFile.MaxRestarts] {
		return
	}
	for _, word := range []*value{&fromFile.BackoffLimit, &fromFile.RestartPolicy} {
		if word.given && !own[word] && (word != &fromFile.RestartPolicy || word.text == string(job.RestartNever)) {
			f.file.OwnRestarts(word.option.name)
			word.forget()
		}
	}
}

// settleRestarts takes what somebody says of restarts for all that a file says of them in other settings: its limit is
// that of each node and of all of them together. own are the settings that muster run in the pods has itself.
func settleRestarts(words, fromFile *ownWords, own map[*value]bool) {
	each, all := &fromFile.MaxRestarts, &fromFile.BackoffLimit
	both := each.given && all.given && each.source == all.source && !own[each] && !own[all]
	switch restarts := words.MaxRestarts.given || words.BackoffLimit.given; {
	case words.RestartPolicy.given && words.RestartPolicy.text == string(job.RestartNever):
		each.forget()
		all.forget()
	case restarts && fromFile.RestartPolicy.text == string(job.RestartNever) && words.MaxRestarts.text != "0" &&
		words.BackoffLimit.text != "0":
		fromFile.RestartPolicy.forget()
	}
	switch {
	case words.MaxRestarts.given && both:
		all.forget()
	case words.BackoffLimit.given && both && words.BackoffLimit.text == all.option.def:
		each.say(strconv.Itoa(job.Unlimited), words.BackoffLimit.source)
	case words.BackoffLimit.given && both:
		each.forget() // it follows from the other one
	}
}

// bothLists are the items of two lists, each once: groups of a job that say the same add nothing.
func bothLists(a, b string) string {
	items := strings.Split(a, ",")
	for item := range strings.SplitSeq(b, ",") {
		if !slices.Contains(items, item) {
			items = append(items, item)
		}
	}
	return strings.Join(items, ",")
}

// launcherHosts takes the hosts away from a job whose launcher reaches them.
func (f *jobFile) launcherHosts(r *Request, inv Invocation, words *ownWords, wrong *problems) {
	if f.file == nil || f.file.Launcher == nil || f.here {
		return
	}
	list, from := readHosts(r, inv, words, wrong)
	for _, h := range list {
		f.hosts = append(f.hosts, h.Name)
	}
	n, most := len(f.file.Pods), f.file.MostHosts()
	if list != nil && (len(list) < n || most >= 0 && len(list) > max(n, most)) {
		hint := "name as many hosts, or change the number by --set"
		switch {
		case most < 0:
			hint = fmt.Sprintf("name %d hosts, and spare ones behind them", n)
		case most > n:
			hint = fmt.Sprintf("name %d hosts, or up to %d with spare ones behind them", n, most)
		}
		wrong.add(errhint.With(fmt.Errorf("cannot use %s with %d nodes in %s (%s)", from.written()+filters(words), n, f.path,
			f.file.Pods[0].Source), hint))
	}
	if words.StartTimeout.given { // hosts are the launcher's
		f.file.WaitForHosts(words.StartTimeout.text)
		words.StartTimeout.forget()
		r.Job.Hosts.StartTimeout = 0
	}
	for _, word := range []*value{&words.Hosts, &words.Hostfile, &words.Include, &words.Exclude} {
		word.forget()
	}
}

// place puts the file's nodes where they run.
func (f *jobFile) place(r *Request, inv Invocation, words *ownWords, env environ, wrong *problems) {
	if f.file == nil || wrong.list != nil {
		return
	}
	j := &r.Job
	r.File = f.file
	for name := range f.given {
		if f.file.Places(name) && !job.TellsWorkers(name) { // of those settleEnv says it
			wrong.add(fmt.Errorf("cannot give the nodes of %s the variable %s by --env: the file says what runs on which nodes",
				f.path, name))
		}
	}
	at := jobfile.Places{Hosts: f.hosts, Port: f.file.Port(), Hide: inv.Explain}
	if len(j.Hosts.Nodes) > 0 {
		at.Hosts = nil
		for _, n := range j.Hosts.Nodes {
			at.Hosts = append(at.Hosts, n.Name)
		}
	}
	if f.here && inv.Machine.FreePort != nil && !inv.Explain {
		var err error
		if at.Port, err = inv.Machine.FreePort(); err != nil {
			wrong.add(fmt.Errorf("cannot find a port at which the nodes meet: %w", err))
			return
		}
	}
	command, nodes, err := f.file.Place(at)
	if err != nil {
		wrong.add(err)
		return
	}
	if j.Command = command; f.file.Native {
		nativeCommand(r, inv, nodes[0].Argv, words, env, wrong)
		j.Command.Title = j.Command.ShownTitle(nodes[0].Env)
	}
	if r.DryRun && !r.ShowValues {
		r.Shown = f.shown(at)
	}
	pods := f.file.Nodes()
	for i, n := range nodes {
		host := "127.0.0.1"
		if i < len(at.Hosts) && f.file.Launcher == nil {
			host = at.Hosts[i]
		}
		r.Placed = append(r.Placed, PlacedNode{Pod: pods[i], Host: host, Node: n})
		if i < len(j.Hosts.Nodes) {
			j.Hosts.Nodes[i].Env, j.Hosts.Nodes[i].Replica = n.Env, f.file.Called(i)
		} else {
			j.NodeEnv = n.Env
		}
	}
	f.at = at
	j.Reached = f.file.Reached(at, f.here)
	if f.file.Launcher != nil {
		for i, p := range f.file.Pods {
			r.Reached = append(r.Reached, PlacedNode{Pod: p, Host: at.Hosts[i]})
		}
	}
	j.Warnings = append(j.Warnings, f.warnings()...)
	f.makeUp(r, inv, words)
}

// shown are the words of the nodes' command as they may be shown. They are no command that could be planned: nothing is
// found at a path in which $(NAME) stands for the text of a Secret.
func (f *jobFile) shown(at jobfile.Places) []string {
	at.Hide = true
	command, nodes, err := f.file.Place(at)
	switch {
	case err != nil:
		return nil // as Place has said
	case f.file.Native:
		return nodes[0].Argv
	}
	return append([]string{command.Name}, command.Args...)
}

// warnings tell at a start what the file asks for and muster does not do.
func (f *jobFile) warnings() (list []string) {
	var left []string
	for _, l := range f.file.Lines {
		switch l.State {
		case jobfile.Cluster:
			left = append(left, l.Path)
		case jobfile.Unknown:
			list = append(list, fmt.Sprintf("%s: %s is unknown and passed over", l.Source, l.Path))
		default: // done, or told where it is missing
		}
	}
	if len(left) > 0 {
		const most = 6
		more := ""
		if len(left) > most {
			more = fmt.Sprintf(" and %d more", len(left)-most)
		}
		list = append(list, fmt.Sprintf("left to the cluster: %s%s; muster explain %s tells of each line",
			strings.Join(left[:min(most, len(left))], ", "), more, shellescape.Quote(f.path)))
	}
	if len(f.ignored) > 0 {
		list = append(list, fmt.Sprintf("no effect with %s, which says what runs on which nodes: %s", f.path,
			strings.Join(f.ignored, ", ")))
	}
	return list
}

// makeUp makes up the accelerators that the file asks for, where its nodes are rehearsed.
func (f *jobFile) makeUp(r *Request, inv Invocation, words *ownWords) {
	if words.Accelerator.given || !f.here || !f.file.Accelerated {
		return
	}
	if inv.Machine.Accelerators != nil && !r.Job.FakeOnReal {
		if _, n := inv.Machine.Accelerators(""); n > 0 {
			r.Job.Warnings = append(r.Job.Warnings,
				fmt.Sprintf("all nodes of this rehearsal see the same %d accelerators of this machine; --fake-on-real makes some up", n))
			return
		}
	}
	i := slices.IndexFunc(f.file.Pods, func(p jobfile.Pod) bool { return p.Accelerators > 0 })
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\ndefaults: {vendor: %s, count: 0}\nnodes:\n", f.file.Pods[i].Vendor)
	for i, p := range f.file.Pods {
		fmt.Fprintf(&b, "  %s: {vendor: %s, count: %d}\n", f.hosts[i], cmp.Or(p.Vendor, f.file.Pods[i].Vendor, "nvidia"), p.Accelerators)
	}
	if r.Job.Reached != nil { // hosts that come later are as the first
		for k := len(f.hosts); k < maxSimulated; k++ {
			fmt.Fprintf(&b, "  127.0.0.%d: {vendor: %s, count: %d}\n", k+1, f.file.Pods[i].Vendor, f.file.Pods[i].Accelerators)
		}
	}
	r.MadeUp = b.String()
}
