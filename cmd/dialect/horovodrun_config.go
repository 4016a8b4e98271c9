package dialect

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/launch/job"
)

// config reads the file of --config-file into tuned. What Horovod does not know is passed over, as it does.
func (h *horovodJob) config() {
	file := h.value("config-file")
	if file.none {
		return
	}
	content, err := h.read(file.text)
	if err != nil {
		h.refuse("config-file", err)
		return
	}
	var sections map[string]yaml.Node
	if err := yaml.Unmarshal(content, &sections); err != nil {
		h.refuse("config-file", fmt.Errorf("%s: %s", file.text, yamlText(err)))
		return
	}
	source := func(node *yaml.Node) job.Source {
		return job.Source{Kind: job.FromConfig, Name: fmt.Sprintf("%s:%d", file.text, node.Line)}
	}
	if node, ok := sections["controller"]; ok {
		switch strings.ToLower(node.Value) {
		case "gloo", "":
		case "mpi":
			h.tuned["mpi"] = value{text: node.Value, source: source(&node)}
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
	for _, e := range envFlags() {
		values, ok := keys[e.section]
		if !ok {
			continue
		}
		node, ok := values[e.key]
		if !ok && e.section == "stall_check" && e.key == "enabled" && len(values) > 0 {
			// Horovod takes a section that does not say it for one that says yes.
			section := sections[e.section]
			h.tuned[e.flag] = value{text: "false", source: source(&section)}
		}
		if !ok || node.Tag == "!!null" {
			continue
		}
		text, err := e.fromYAML(&node)
		if err != nil {
			h.wrong.add(fmt.Errorf("cannot use %s:%d: %s: %w", file.text, node.Line, e.key, err))
			continue
		}
		h.tuned[e.flag] = value{text: text, source: source(&node)}
	}
}

// fromYAML returns a value of a config file in the form in which it goes into the environment, before fusion's factor.
func (e *envFlag) fromYAML(node *yaml.Node) (string, error) {
	if node.Kind != yaml.ScalarNode {
		return "", errors.New("give one value")
	}
	if e.form == envSwitch {
		var on bool
		if err := node.Decode(&on); err != nil {
			return "", errors.New("give true or false")
		}
		return strconv.FormatBool(on != e.inverted), nil
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
	if e.form != envText {
		return "", errors.New("give a number")
	}
	return node.Value, nil
}

// word returns what was given for a tuning flag on the command line or in the config file; false for nothing.
func (h *horovodJob) word(e *envFlag) (value, bool) {
	old := map[string]string{"log-without-timestamp": "log-hide-timestamp", "log-with-timestamp": "no-log-hide-timestamp"}
	for _, name := range []string{e.flag, old[e.flag]} {
		if v := h.value(name); name != "" && v.explicit() {
			text := v.text
			switch e.form {
			case envSwitch:
				text = "true"
			case envFloat:
				text = pyRepr(v.f)
			case envInt, envMiB:
				text = strconv.Itoa(v.n)
			case envText:
			}
			return value{text: text, source: v.source}, true
		}
	}
	for _, name := range []string{e.off, old[e.off]} {
		if v := h.value(name); name != "" && v.explicit() {
			return value{text: "false", source: v.source}, true
		}
	}
	word, ok := h.tuned[e.flag]
	return word, ok
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
		source := h.value("network-interfaces").source
		if !h.value("network-interfaces").explicit() {
			source = h.value("network-interface").source
		}
		set("HOROVOD_GLOO_IFACE", h.ask.NICs[0], source)
		set("NCCL_SOCKET_IFNAME", strings.Join(h.ask.NICs, ","), source)
	}
	tuning, timeline := false, false
	for _, e := range envFlags() {
		word, ok := h.word(&e)
		if !ok {
			continue
		}
		on := word.switched()
		switch {
		case e.flag == autotune:
			if tuning = on; !on {
				continue // which is not told
			}
		case strings.HasPrefix(e.flag, autotune+"-") && !tuning, e.flag == "timeline-mark-cycles" && !timeline:
			h.checked(&e, word)
			continue
		case e.flag == timelineFile:
			if timeline = word.text != ""; !timeline {
				continue
			}
		}
		if value, ok := h.checked(&e, word); ok {
			set(e.variable, value, word.source)
		}
	}
	h.job.Env.Deny = []string{"BASH_FUNC_*", "OLDPWD*", "*CUDA_VISIBLE_DEVICES*", "_HOROVOD_SECRET_KEY*"}
	// Horovod's workers get none of these. Libraries that look for torchelastic would take its place for Horovod's.
	h.job.Env.Unset = elasticNames(h.env)
}

// checked returns the value of a variable, and refuses numbers out of bounds.
func (h *horovodJob) checked(e *envFlag, word value) (string, bool) {
	refuse := func(why string) (string, bool) {
		h.wrong.add(fmt.Errorf("cannot use %s: %s", word.writtenAs(e.flag), why))
		return "", false
	}
	if e.form == envText {
		return word.text, true
	}
	if e.form == envSwitch {
		if word.switched() {
			return "1", true
		}
		return "0", true
	}
	f, err := pyFloat(word.text)
	switch {
	case err != nil:
		return refuse(err.Error())
	case math.IsNaN(f) || e.bounded && f < 0:
		return refuse("give a number from 0")
	case e.key == "gaussian_process_noise" && (f < 0 || f > 1):
		return refuse("give a number from 0 to 1")
	case e.form != envMiB:
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
