package dialect

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/cmd/dialect/jobfile"
	"muster/launch/job"
)

// config reads the file of --config-file into what tunes Horovod. What Horovod does not know is passed over, as it does.
func (h *horovodJob) config() {
	file := h.w.configFile
	if file.none {
		return
	}
	content, err := h.read(file.text)
	if err != nil {
		h.refuse(h.w.configFile, err)
		return
	}
	var sections map[string]yaml.Node
	if err := yaml.Unmarshal(content, &sections); err != nil {
		h.refuse(h.w.configFile, fmt.Errorf("%s: %s", file.text, jobfile.SyntaxText(content, err)))
		return
	}
	source := func(node *yaml.Node) job.Source {
		return job.Source{Kind: job.FromConfig, Name: fmt.Sprintf("%s:%d", file.text, node.Line)}
	}
	if node, ok := sections["controller"]; ok {
		switch strings.ToLower(node.Value) {
		case "gloo", "":
		case "mpi":
			h.mpi.say(node.Value, source(&node))
		default:
			h.wrong.add(fmt.Errorf("cannot use %s:%d: there is no controller %q: choose gloo", file.text, node.Line, node.Value))
		}
	}
	keys := map[string]map[string]yaml.Node{}
	for _, name := range []string{"params", autotune, "timeline", "stall_check", "library_options", "logging"} {
		node, ok := sections[name]
		if !ok || node.Tag == "!!null" {
			continue
		}
		values := map[string]yaml.Node{}
		if err := node.Decode(&values); err != nil {
			h.wrong.add(fmt.Errorf("cannot use %s:%d: %s is no map", file.text, node.Line, name))
			continue
		}
		keys[name] = values
	}
	for _, o := range h.tuned {
		t := o.tuning
		values, ok := keys[t.section]
		if !ok {
			continue
		}
		node, ok := values[t.key]
		if !ok && t.section == "stall_check" && t.key == "enabled" && len(values) > 0 {
			// Horovod takes a section that does not say it for one that says yes.
			section := sections[t.section]
			t.file.say("false", source(&section))
		}
		if !ok || node.Tag == "!!null" {
			continue
		}
		text, err := o.variableFromYAML(&node)
		if err != nil {
			h.wrong.add(fmt.Errorf("cannot use %s:%d: %s: %w", file.text, node.Line, t.key, err))
			continue
		}
		t.file.say(text, source(&node))
	}
}

// variableFromYAML returns a value of a config file in the form in which it goes into the environment, before fusion's
// factor.
func (o *option) variableFromYAML(node *yaml.Node) (string, error) {
	if node.Kind != yaml.ScalarNode {
		return "", errors.New("give one value")
	}
	if o.kind == kindFlag {
		var on bool
		if err := node.Decode(&on); err != nil {
			return "", errors.New("give true or false")
		}
		return strconv.FormatBool(on != o.tuning.inverted), nil
	}
	switch node.Tag {
	case "!!int":
		n, err := pyInt(node.Value)
		if err != nil {
			return "", err
		}
		return strconv.Itoa(n), nil
	case "!!float":
		var f float64
		if err := node.Decode(&f); err != nil {
			return "", err
		}
		return pyRepr(f), nil
	}
	if o.kind != kindText {
		return "", errors.New("give a number")
	}
	return node.Value, nil
}

// word returns what was given for a tuning option on the command line or in the config file; false for nothing.
func (h *horovodJob) word(o *option) (value, bool) {
	t := o.tuning
	for _, v := range []*value{o.word, t.old} {
		if v == nil || !v.explicit() {
			continue
		}
		text := v.text
		switch o.kind {
		case kindFlag:
			text = "true"
		case kindFloat:
			text = pyRepr(v.f)
		case kindInt:
			text = strconv.Itoa(v.n)
		default: // as it was typed
		}
		return value{text: text, source: v.source}, true
	}
	for _, v := range []*value{t.offWord, t.oldOff} {
		if v != nil && v.explicit() {
			return value{text: "false", source: v.source}, true
		}
	}
	return t.file, t.file.given
}

// environment makes variables of the tuning flags, and says what else the workers have.
func (h *horovodJob) environment() {
	set := func(name, value string, source job.Source) {
		h.job.Env.Set = append(h.job.Env.Set, job.Var{Name: name, Value: value, Source: source})
	}
	ours := job.Source{Kind: job.FromMuster, Name: "horovodrun with gloo"}
	set("HOROVOD_CONTROLLER", "gloo", ours)
	set("HOROVOD_CPU_OPERATIONS", "gloo", ours)
	set("PYTHONUNBUFFERED", "1", ours)
	if h.ask.Elastic {
		set("HOROVOD_ELASTIC", "1", ours)
	}
	if len(h.ask.NICs) > 0 {
		source := h.w.networkInterfaces.source
		if !h.w.networkInterfaces.explicit() {
			source = h.w.networkInterface.source
		}
		set("HOROVOD_GLOO_IFACE", h.ask.NICs[0], source)
		set("NCCL_SOCKET_IFNAME", strings.Join(h.ask.NICs, ","), source)
	}
	tuning, timeline := false, false
	for _, o := range h.tuned {
		word, ok := h.word(o)
		if !ok {
			continue
		}
		on := word.switched()
		switch {
		case o.word == &h.w.autotune:
			if tuning = on; !on {
				continue // which is not told
			}
		case o.tuning.section == autotune && !tuning, o.word == &h.w.timelineMarkCycles && !timeline:
			h.checked(o, word)
			continue
		case o.word == &h.w.timelineFilename:
			if timeline = word.text != ""; !timeline {
				continue
			}
		}
		if value, ok := h.checked(o, word); ok {
			set(o.tuning.variable, value, word.source)
		}
	}
	h.job.Env.Deny = []string{"BASH_FUNC_*", "OLDPWD*", "*CUDA_VISIBLE_DEVICES*", "_HOROVOD_SECRET_KEY*"}
	// Horovod's workers get none of these. Libraries that look for torchelastic would take its place for Horovod's.
	h.job.Env.Unset = elasticNames(h.env)
}

// checked returns the value of a variable, and refuses numbers out of bounds.
func (h *horovodJob) checked(o *option, word value) (string, bool) {
	refuse := func(why string) (string, bool) {
		h.wrong.add(fmt.Errorf("cannot use %s: %s", word.writtenAs(o.name), why))
		return "", false
	}
	if o.kind == kindText {
		return word.text, true
	}
	if o.kind == kindFlag {
		if word.switched() {
			return "1", true
		}
		return "0", true
	}
	f, err := pyFloat(word.text)
	switch {
	case err != nil:
		return refuse(err.Error())
	case math.IsNaN(f) || o.tuning.bounded && f < 0:
		return refuse("give a number from 0")
	case o.tuning.key == "gaussian_process_noise" && (f < 0 || f > 1):
		return refuse("give a number from 0 to 1")
	case !o.tuning.mib:
		return word.text, true
	case f > 1<<30:
		return refuse("this is more than 1 PiB")
	}
	if n, err := pyInt(word.text); err == nil {
		return strconv.Itoa(n << 20), true
	}
	return pyRepr(f * (1 << 20)), true
}

// pyRepr writes a number as Python does.
func pyRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.Trim(fmt.Sprint(f), "+")
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
