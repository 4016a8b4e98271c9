package jobfile

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/launch/job"
)

// unwrap takes muster run out of a template's command: its flags become settings of the job, and what its workers run
// the command.
func (r *reader) unwrap(t *template) bool {
	argv := slices.Concat(t.argv, t.args)
	if r.Run == nil || len(argv) < 2 || path.Base(argv[0]) != "muster" || argv[1] != "run" || t.command.node == nil {
		return false
	}
	flags, command, err := r.Run(argv[2:])
	switch {
	case err != nil:
		t.command.fail("muster run: %v", err)
		t.argv, t.args = nil, nil
		return true
	case len(command) == 0:
		t.command.fail("muster run has no command: name it behind its flags")
		t.argv, t.args = nil, nil
		return true
	}
	t.argv, t.args = command, nil
	for _, f := range flags {
		at := t.command.flagWord(f.Name)
		source := job.Source{Kind: job.FromConfig, Name: r.at(at.node, false)}
		if f.Left != "" {
			at.note(Cluster, f.Left)
			r.file.Apart = append(r.file.Apart, Word{Flag: f.Name, Text: f.Text, Source: source, Own: true})
			continue
		}
		r.file.Words = append(r.file.Words, Word{Flag: f.Name, Text: f.Text, Source: source, Own: true})
		at.note(Applied, "--"+f.Name+" of muster run")
	}
	return true
}

// flagWord is the item of a command in which a flag stands, or the whole command.
func (v value) flagWord(flag string) value {
	if v.node.Kind != yaml.SequenceNode {
		return v
	}
	for i, item := range v.node.Content {
		name, _, _ := strings.Cut(aim(item).Value, "=")
		if strings.ReplaceAll(name, "_", "-") == "--"+flag {
			return value{v.r, aim(item), v.path + "[" + strconv.Itoa(i) + "]"}
		}
	}
	return v
}

// told takes what the operator tells pods by torchrun's variable for a flag, where they run muster run: it reads the
// variable unless it has the flag. v is the value that says it, or the one around it where none does.
func (v value) told(flag, text string) {
	f := v.r.file
	if !f.Native {
		return
	}
	reader := "the node's muster run"
	if slices.ContainsFunc(f.Words, func(w Word) bool { return w.Own && w.Flag == flag }) {
		reader += ", whose flag --" + flag + " counts instead"
	} else {
		f.Words = append(f.Words, Word{Flag: flag, Text: text, Source: v.source(), Own: true})
	}
	for i := range f.Lines {
		if l := &f.Lines[i]; l.Path == v.path {
			l.As = strings.Replace(l.As, "the node's torchrun", reader, 1)
		}
	}
}

// Plain are the variables of a pod's container whose values stand in the file.
func (p *Pod) Plain() []job.Var {
	var list []job.Var
	for _, x := range p.env {
		if x.of == nil && x.kind == "" {
			list = append(list, x.Var)
		}
	}
	return list
}

// Names are those of all variables of the pod's container, also of those whose values come from elsewhere.
func (p *Pod) Names() []string {
	var list []string
	for _, x := range p.env {
		list = append(list, x.Name)
	}
	return list
}
