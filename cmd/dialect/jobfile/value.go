package jobfile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"
	"go.yaml.in/yaml/v3"

	"muster/internal/errhint"
	"muster/internal/lazyregexp"
	"muster/internal/typos"
	"muster/launch/job"
)

// maxWrong bounds what is reported of one file.
const maxWrong = 20

// reader reads one job of a file.
type reader struct {
	Options
	file   *File
	wrong  *multierror.Error
	set    map[*yaml.Node]string // nodes that --set has made, with the path
	job    *yaml.Node            // the document that is read
	others []*yaml.Node          // the other documents
}

func (r *reader) add(err error) {
	if r.wrong == nil || len(r.wrong.Errors) < maxWrong {
		r.wrong = multierror.Append(r.wrong, err)
	}
}

// value is a node of the file with its path.
type value struct {
	r    *reader
	node *yaml.Node
	path string
}

// fields are those of a map, each with what reads it.
type fields map[string]func(value)

// at is the place of a node, with its column where that is wanted.
func (r *reader) at(n *yaml.Node, column bool) string {
	if path, made := r.set[n]; made {
		return "--set " + path
	}
	if column {
		return fmt.Sprintf("%s:%d:%d", r.File, n.Line, n.Column)
	}
	return fmt.Sprintf("%s:%d", r.File, n.Line)
}

func (v value) source() job.Source {
	if path, made := v.r.set[v.node]; made {
		return job.Source{Kind: job.FromFlag, Name: "--set " + path}
	}
	return job.Source{Kind: job.FromConfig, Name: v.r.at(v.node, false)}
}

// fail reports that something is wrong with the value.
func (v value) fail(format string, args ...any) {
	v.r.add(fmt.Errorf("%s: %s: %s", v.r.at(v.node, true), v.path, fmt.Sprintf(format, args...)))
}

// refuse reports that the value asks for what muster cannot do, with what to do about it.
func (v value) refuse(hint, format string, args ...any) {
	v.r.add(errhint.With(fmt.Errorf("%s: %s: %s", v.r.at(v.node, true), v.path, fmt.Sprintf(format, args...)), hint))
}

// object reads a map whose fields are known.
func (v value) object(known fields) {
	if v.node.Kind != yaml.MappingNode {
		v.fail("give a map, with %s", some(known))
		return
	}
	v.each(func(key *yaml.Node, field value) {
		read, ok := known[key.Value]
		if ok {
			read(field)
			return
		}
		problem := fmt.Sprintf("unknown field %q", key.Value)
		if near := typos.Nearest(key.Value, slices.Sorted(maps.Keys(known))); near != "" {
			problem += ": did you mean " + near + "?"
		}
		if v.r.Lenient {
			field.note(Unknown, "nobody knows the field: it is passed over")
			return
		}
		v.r.add(fmt.Errorf("%s: %s: %s", v.r.at(key, true), v.where(), problem))
	})
}

// where names a map for people.
func (v value) where() string {
	if v.path == "" {
		return "the document"
	}
	return v.path
}

// each reads a map with any keys.
func (v value) each(read func(key *yaml.Node, field value)) {
	if v.node.Kind != yaml.MappingNode {
		v.fail("give a map")
		return
	}
	list := pairs(v.node, func(again, first *yaml.Node) {
		v.r.add(fmt.Errorf("%s: %s: %s stands there twice, first in line %d", v.r.at(again, true), v.where(), again.Value, first.Line))
	})
	for _, p := range list {
		path := p.key.Value
		if v.path != "" {
			path = v.path + "." + path
		}
		if p.key.Kind != yaml.ScalarNode {
			v.r.add(fmt.Errorf("%s: %s: a field's name must be a word", v.r.at(p.key, true), v.path))
			continue
		}
		node := aim(p.value)
		if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
			continue // as if it were not there
		}
		read(p.key, value{v.r, node, path})
	}
}

// some names a few fields for people.
func some(known fields) string {
	names := slices.Sorted(maps.Keys(known))
	if len(names) > 4 {
		return strings.Join(names[:4], ", ") + " …"
	}
	return strings.Join(names, ", ")
}

// list reads a list's items.
func (v value) list(read func(value)) {
	if v.node.Kind != yaml.SequenceNode {
		v.fail("give a list")
		return
	}
	for i, item := range v.node.Content {
		read(value{v.r, aim(item), fmt.Sprintf("%s[%d]", v.path, i)})
	}
}

// texts are the words of a list.
func (v value) texts() []string {
	var list []string
	v.list(func(item value) {
		if text, ok := item.text(); ok {
			list = append(list, text)
		}
	})
	return list
}

// text is a string, or a number or a truth value where one would have to be quoted: the cluster refuses those.
func (v value) text() (string, bool) {
	if v.node.Kind != yaml.ScalarNode || v.node.Tag != "!!str" {
		hint := "give a string"
		if v.node.Kind == yaml.ScalarNode {
			hint = fmt.Sprintf("give a string: write %q", v.node.Value)
		}
		v.fail("%s", hint)
		return "", false
	}
	if strings.Contains(v.node.Value, "\x00") {
		v.fail("a value cannot hold a zero byte")
		return "", false
	}
	return v.node.Value, true
}

// word is a string or a whole number.
func (v value) word() (string, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.Tag == "!!int" {
		return v.node.Value, true
	}
	return v.text()
}

const maxCount = 1 << 31

// count is a whole number from least on.
func (v value) count(least int) (int, bool) {
	n, err := strconv.ParseInt(v.node.Value, 0, 64)
	if v.node.Kind != yaml.ScalarNode || v.node.Tag != "!!int" || err != nil || n < int64(least) || n >= maxCount {
		v.fail("give a whole number from %d", least)
		return 0, false
	}
	return int(n), true
}

// boolean is true or false.
func (v value) boolean() (on, ok bool) {
	if v.node.Kind != yaml.ScalarNode || v.node.Tag != "!!bool" {
		v.fail("give true or false")
		return false, false
	}
	return strings.EqualFold(v.node.Value, "true"), true
}

// choice is one of some words.
func (v value) choice(words ...string) (string, bool) {
	text, ok := v.text()
	if !ok || slices.Contains(words, text) {
		return text, ok
	}
	if near := typos.Nearest(text, words); near != "" {
		v.fail("unknown value %q: did you mean %s?", text, near)
	} else {
		v.fail("unknown value %q: choose one of %s", text, strings.Join(words, ", "))
	}
	return "", false
}

var quantityText = lazyregexp.New(`^[0-9]+(\.[0-9]*)?([mkKMGTPE]|[KMGTPE]i|e[0-9]{1,2})?$`)

// quantity is an amount as Kubernetes writes it, such as 500m or 16Gi. whole is its value where it is a whole number.
func (v value) quantity() (text string, whole int, ok bool) {
	if v.node.Kind != yaml.ScalarNode || !quantityText().MatchString(v.node.Value) {
		v.fail("give an amount such as 8, 500m or 16Gi")
		return "", 0, false
	}
	whole, err := strconv.Atoi(v.node.Value)
	if err != nil {
		whole = -1
	}
	return v.node.Value, whole, true
}

// shownValue is what a line shows of a value.
func (v value) shownValue() string {
	if v.node.Kind != yaml.ScalarNode {
		return ""
	}
	text, _, more := strings.Cut(v.node.Value, "\n")
	const most = 60
	if len(text) > most {
		text, more = strings.ToValidUTF8(text[:most], ""), true
	}
	if more {
		text += "…"
	}
	return text
}

// note says what becomes of the value.
func (v value) note(state State, as string) {
	v.noteValue(state, job.ShownText(v.shownValue()), as)
}

func (v value) noteValue(state State, shown, as string) {
	v.r.file.Lines = append(v.r.file.Lines, Line{
		Path: v.path, Source: v.r.at(v.node, false), line: v.node.Line, node: v.node, Value: shown, State: state, As: as,
	})
}

// setting gives one of muster's settings a word.
func (v value) setting(flag, text string) {
	v.r.file.Words = append(v.r.file.Words, Word{Flag: flag, Text: text, Source: v.source(), at: v})
}

// cluster reads what is left to the cluster.
func cluster(why string) func(value) { return func(v value) { v.note(Cluster, why) } }

// leave adds fields that are left to the cluster for one reason.
func (f fields) leave(why string, names ...string) fields {
	for _, name := range names {
		f[name] = cluster(why)
	}
	return f
}
