package dialect

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"muster/internal/errhint"
	"muster/launch/job"
)

// ftLauncher is the name of the launcher of NVIDIA's resiliency extension.
const ftLauncher = "ft_launcher"

// FTLauncher reads a command line of ft_launcher: torchrun's flags without abbreviations, and those of NVRx (as of
// nvidia-resiliency-ext 0.7.0, fault_tolerance/launcher.py, cli_args.py and config.py).
func FTLauncher(inv Invocation) (Request, error) {
	w := new(ftWords)
	return torchrun(inv, ftParser(w), &w.torchrunWords, func(t *torchrunJob) {
		(&ftJob{torchrunJob: t, w: w, readFile: inv.ReadFile, keys: map[string]ftValue{}}).adapt()
	})
}

func ftParser(w *ftWords) *parser {
	p := torchrunParser(ftLauncher, &w.torchrunWords)
	p.options, p.exact, p.dashes = ftOptions(w), true, true
	p.help = func() string { return p.helpText(ftAbout) }
	return p
}

// ftJob is torchrun's, with what ft_launcher has beyond it.
type ftJob struct {
	*torchrunJob
	w        *ftWords
	readFile func(string) ([]byte, error)
	keys     map[string]ftValue
}

// ftValue is what one of NVRx's settings has, and where that stood.
type ftValue struct {
	text   string
	none   bool
	pairs  []ftPair // of a map in a file
	as     string   // as it was written
	source job.Source
}

// ftPair is a section and its time-out, of a file.
type ftPair struct {
	name, text string
	none       bool
}

// adapt puts what ft_launcher has beyond torchrun into terms of torchrun and of muster's own settings.
func (f *ftJob) adapt() {
	f.readConfig()
	for _, k := range ftKeys {
		if word := f.w.ft[k.key]; word != nil && word.explicit() {
			f.keys[k.key] = ftValue{text: word.text, none: ftNone(word.text), as: word.written(), source: word.source}
		}
	}
	f.idle()
	f.meeting()
	f.grace()
	f.monitor()
	f.progress()
	f.health()
	if v, is := f.keys[ftLogLevel]; is {
		f.levelFrom = v.source.Name
		f.env = mapWith(f.env, f.levelFrom, map[string]string{"DBG": "DEBUG"}[strings.ToUpper(v.text)])
		if f.env[f.levelFrom] == "" {
			f.env[f.levelFrom] = v.text
		}
	}
}

// mapWith is a copy of an environment with another variable.
func mapWith(env environ, name, text string) environ {
	other := environ{name: text}
	for n, t := range env {
		if n != name {
			other[n] = t
		}
	}
	return other
}

// ftNone reports whether a time-out on the command line is none.
func ftNone(text string) bool {
	return slices.Contains([]string{"none", "null", ""}, strings.ToLower(strings.TrimSpace(text)))
}

// readConfig reads the file of --ft-cfg-path.
func (f *ftJob) readConfig() {
	word := f.w.ft[ftCfgPath]
	if !word.explicit() {
		return
	}
	if f.readFile == nil {
		f.refuse(word, errors.New("no files can be read here"))
		return
	}
	content, err := f.readFile(word.text)
	if err != nil {
		f.wrong.add(fmt.Errorf("cannot read the configuration of NVRx: %w", err))
		return
	}
	top, err := yamlMap(word.text, content, "keys and values, with fault_tolerance among them")
	if err != nil {
		f.wrong.add(err)
		return
	}
	section := ftSection(top, 0)
	if section == nil {
		f.warn("%s has no map fault_tolerance, and nothing in it counts", word.text)
		return
	}
	for i := 0; i+1 < len(section.Content); i += 2 {
		f.key(word.text, section.Content[i], section.Content[i+1])
	}
}

// ftSection finds the map fault_tolerance at any depth, as NVRx does.
func ftSection(node *yaml.Node, depth int) *yaml.Node {
	const deepest = 100
	if node == nil || depth > deepest {
		return nil
	}
	switch node.Kind {
	case yaml.AliasNode:
		return ftSection(node.Alias, depth+1)
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if value := node.Content[i+1]; node.Content[i].Value == "fault_tolerance" {
				if value.Kind == yaml.AliasNode {
					value = value.Alias
				}
				if value.Kind == yaml.MappingNode {
					return value
				}
				return nil
			}
		}
		for i := 1; i < len(node.Content); i += 2 {
			if found := ftSection(node.Content[i], depth+1); found != nil {
				return found
			}
		}
	case yaml.SequenceNode:
		for _, item := range node.Content {
			if found := ftSection(item, depth+1); found != nil {
				return found
			}
		}
	default: // a single value
	}
	return nil
}

// key takes one key of the file.
func (f *ftJob) key(file string, key, node *yaml.Node) {
	at := fmt.Sprintf("%s:%d", file, key.Line)
	known := slices.IndexFunc(ftKeys, func(k ftKey) bool { return k.key == key.Value && !k.flagOnly })
	if known < 0 {
		var names []string
		for _, k := range ftKeys {
			if !k.flagOnly {
				names = append(names, k.key)
			}
		}
		text := fmt.Sprintf("%s: %s is no setting of NVRx, and is ignored", at, key.Value)
		if near := nearest(key.Value, names); near != "" {
			text += "; did you mean " + near + "?"
		}
		f.warn("%s", text)
		return
	}
	v := ftValue{source: job.Source{Kind: job.FromConfig, Name: at}}
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	var err error
	if node.Kind == yaml.MappingNode && key.Value == ftSections {
		for i := 0; i+1 < len(node.Content) && err == nil; i += 2 {
			p := ftPair{name: node.Content[i].Value}
			p.text, p.none, err = pythonText(node.Content[i+1])
			v.pairs = append(v.pairs, p)
		}
		v.as = fmt.Sprintf("%s (%s)", at, key.Value)
	} else {
		v.text, v.none, err = pythonText(node)
		v.as = fmt.Sprintf("%s (%s: %s)", at, key.Value, v.text)
	}
	if err != nil {
		f.wrong.add(fmt.Errorf("%s: %s: %w", at, key.Value, err))
		return
	}
	f.keys[key.Value] = v
}

// idle tells of what was asked for and does nothing in muster.
func (f *ftJob) idle() {
	for _, k := range ftKeys {
		v, is := f.keys[k.key]
		switch {
		case !is || k.idle == "" || v.none:
		case k.key == ftCheckpoint && f.keys[ftCycles].text != "":
		case k.key == ftStatus && v.text == "93", k.key == ftSegment && v.text == "1":
		case strings.HasPrefix(k.key, "enable_") && slices.Contains([]string{"false", "0", "no"}, strings.ToLower(v.text)):
		default:
			f.warn("%s has no effect: %s", v.as, k.idle)
		}
	}
	for _, name := range []string{
		"NVRX_GPUS_PER_NUMA", "FT_LAUNCHER_LOGLEVEL", "NVRX_REPLACEMENT_GROUP_ID", "NVRX_INFRA_RANK_FROM_NODENAME",
	} {
		if f.env[name] != "" {
			f.warn("%s is not supported and has no effect", name)
		}
	}
}

// meeting finds where the nodes meet: at --rdzv-endpoint, else at --master-addr. Nodes beyond the fewest are spare ones.
func (f *ftJob) meeting() {
	v := f.w
	nodes, err := parseNodes(v.nnodes.text)
	if err != nil {
		return // which is refused elsewhere
	}
	master := v.masterAddr.explicit() || v.masterPort.explicit()
	switch {
	case v.standalone.on || v.rdzvEndpoint.explicit() || v.rdzvBackend.text != backendC10d && v.rdzvBackend.text != backendMuster:
	case nodes.Max <= 1:
		v.rdzvBackend = value{option: v.rdzvBackend.option, text: backendStatic} // torchrun's way to be alone
	case master:
		endpoint := v.masterAddr
		port := v.masterPort.text
		if v.masterPort.none {
			port = strconv.Itoa(staticPort)
		}
		endpoint.text += ":" + port
		v.rdzvEndpoint.become(endpoint)
	}
	if nodes.Max > nodes.Min {
		words := new(*f.own.given())
		if spares := &words.Spares; !spares.given {
			spares.say(strconv.Itoa(nodes.Max-nodes.Min), v.nnodes.source)
			spares.theirs = true
		}
		f.own = Own{words}
		v.nnodes.text = strconv.Itoa(nodes.Min)
	}
}

// grace makes of ft_launcher's two times for stopping workers torchrun's one.
func (f *ftJob) grace() {
	v := f.w
	for _, word := range []*value{&v.termTimeout, &v.stopTimeout} {
		if !word.explicit() {
			continue
		}
		if !(word.f >= 0) || word.f > maxSeconds {
			f.refuse(word, errors.New("give seconds from 0"))
			continue
		}
		if n := int(math.Ceil(word.f)); v.shutdownTimeout.none || n > v.shutdownTimeout.n {
			v.shutdownTimeout.become(value{text: strconv.Itoa(n), n: n, source: word.source})
		}
	}
}

// monitor says what clients of NVRx may take.
func (f *ftJob) monitor() {
	m := &job.RankMonitor{Warmup: 5, Factor: 5, Signal: syscall.SIGKILL, Every: 5 * time.Second}
	f.time(&m.First, ftFirst)
	f.time(&m.Heartbeat, ftHeartbeat)
	f.time(&m.Outside, ftOutside)
	f.sections(m)
	if v, is := f.keys[ftEvery]; is && !v.none {
		f.time(&m.Every, ftEvery)
		if s, err := pyFloat(v.text); err == nil && s > maxSeconds {
			m.Every = time.Duration(maxSeconds * float64(time.Second)) // never again: 0 would be all the time
		}
	}
	if v, is := f.keys[ftFactor]; is {
		n, err := pyFloat(v.text)
		if m.Factor = n; err != nil || !(n > 0) || math.IsInf(n, 0) {
			f.bad(v, "give a number above 0")
		}
	}
	if v, is := f.keys[ftWarmup]; is {
		n, err := pyInt(v.text)
		if m.Warmup = n; err != nil || n < 0 || n > math.MaxInt32 {
			f.bad(v, "give a number from 0")
		}
	}
	if v, is := f.keys[ftSignal]; is {
		name := strings.ToUpper(v.text)
		m.Signal = unix.SignalNum(name)
		if n, err := pyInt(v.text); err == nil && n > 0 && n <= 64 {
			m.Signal = syscall.Signal(n)
		}
		if m.Signal == 0 {
			f.bad(v, "give a signal, such as SIGKILL")
		}
	}
	m.Answers = !f.yes(ftNoAnswers, true)
	m.ExceptionHook = f.yes(ftHook, false)
	if f.env["NVRX_DISABLE_RANK_MONITORS"] == "" {
		f.job.Hang.Monitor = m
	} else {
		f.warn("NVRX_DISABLE_RANK_MONITORS is set: a worker's RankMonitorClient finds nobody, and no time-out of NVRx counts")
	}
}

// bad refuses a value.
func (f *ftJob) bad(v ftValue, instead string) {
	f.wrong.add(fmt.Errorf("cannot use %s: %s", v.as, instead))
}

// yes reads a yes or no; NVRx takes true, 1 and yes for one.
func (f *ftJob) yes(key string, otherwise bool) bool {
	v, is := f.keys[key]
	if !is {
		return otherwise
	}
	on, err := parseSwitch(v.text)
	if err != nil {
		f.bad(v, err.Error())
	}
	return on
}

// time reads a time-out, whose none is 0.
func (f *ftJob) time(to *time.Duration, key string) {
	v, is := f.keys[key]
	if !is {
		return
	}
	var err error
	if *to, err = ftTime(v.text, v.none); err != nil {
		f.bad(v, err.Error())
	}
}

func ftTime(text string, none bool) (time.Duration, error) {
	if none {
		return 0, nil
	}
	s, err := pyFloat(text)
	switch {
	case err != nil || !(s > 0):
		return 0, errors.New("give seconds above 0, or none for no time-out")
	case s > maxSeconds:
		return 0, nil
	}
	return time.Duration(s * float64(time.Second)), nil
}

// sections reads the time-outs of sections.
func (f *ftJob) sections(m *job.RankMonitor) {
	v, is := f.keys[ftSections]
	if !is {
		return
	}
	pairs := v.pairs
	if text := strings.TrimSpace(v.text); pairs == nil && text != "" && !v.none {
		for item := range strings.SplitSeq(text, ",") {
			name, limit, both := strings.Cut(item, ":")
			if name = strings.TrimSpace(name); !both || name == "" || strings.Contains(limit, ":") {
				f.bad(v, "write it as NAME:SECONDS,..., such as step:120,checkpointing:600")
				return
			}
			pairs = append(pairs, ftPair{name, limit, ftNone(limit)})
		}
	}
	for _, p := range pairs {
		limit, err := ftTime(p.text, p.none)
		if err != nil {
			f.bad(v, fmt.Sprintf("section %s: %s", p.name, err))
			continue
		}
		if at := slices.IndexFunc(m.Sections, func(s job.SectionLimit) bool { return s.Name == p.name }); at >= 0 {
			m.Sections[at].Limit = limit // the last one counts, as in Python
		} else {
			m.Sections = append(m.Sections, job.SectionLimit{Name: p.name, Limit: limit})
		}
	}
}

// progress makes a crash loop of NVRx's cycles without progress.
func (f *ftJob) progress() {
	v, is := f.keys[ftCycles]
	if !is {
		return
	}
	n, err := pyInt(v.text)
	switch {
	case err != nil || n > math.MaxInt32:
		f.bad(v, "give a number, 0 for none")
	case n == 1:
		f.bad(v, "1 is no restart at all: give --max-restarts 0")
	case n > 1:
		f.job.Restart.CrashLoop = n - 1
		f.habits.CrashLoop.say(strconv.Itoa(n-1), v.source)
	}
}

// health has the site's health service asked, whose protocol is NVRx's own.
func (f *ftJob) health() {
	v, is := f.keys[ftHealth]
	if !is {
		return
	}
	path, err := job.SocketPath(v.text)
	if err != nil {
		f.wrong.add(errhint.With(fmt.Errorf("cannot use %s: %w", v.as, err), "such as /var/run/nvhcd.sock"))
		return
	}
	f.job.Health.Socket = path
	f.habits.HealthEndpoint.say(v.text, v.source)
}
