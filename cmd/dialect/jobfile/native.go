package jobfile

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/errhint"
	"muster/launch/job"
)

// unwrap takes muster run out of a template's command: its flags, and the variables of the container that stand for
// flags, become settings of the job, and what its workers run the command.
func (r *reader) unwrap(t *template) bool {
	argv := slices.Concat(t.argv, t.args)
	if r.Run == nil || len(argv) < 2 || path.Base(argv[0]) != "muster" || argv[1] != "run" || t.command.node == nil {
		return false
	}
	vars := t.inside()
	words := make([]string, len(argv)-2)
	for i, word := range argv[2:] {
		words[i] = expand(word, vars.values)
	}
	flags, command, err := r.Run(words, vars.environ())
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
	t.argv, t.args = argv[len(argv)-len(command):], nil // with the references, which have other values on other nodes
	for _, f := range flags {
		at, state, as := t.command.flagWord(f.Name), Applied, "--"+f.Name+" of muster run"
		secret := vars.inWords(argv, f.Text)
		if f.Variable != "" {
			at, secret = vars.at[f.Variable], vars.secret[f.Variable]
			as += "'s variable"
		}
		w := Word{Flag: f.Name, Text: f.Text, Own: true, Variable: f.Variable, Secret: secret, at: at, open: vars.open}
		if at.node == nil { // one of envFrom
			at = t.container
		}
		w.Source = job.Source{Kind: job.FromConfig, Name: r.at(at.node, false)}
		switch {
		case f.Refused:
			at.fail("%s cannot stand in a pod of a job file", f.Variable)
			continue
		case f.Instead != "":
			state, as = Mapped, "no effect: "+f.Instead+" counts instead"
		case f.Left != "":
			state, as = Cluster, f.Left
			r.file.Apart = append(r.file.Apart, w)
		default:
			r.file.Words = append(r.file.Words, w)
		}
		if f.Variable == "" {
			at.note(state, as)
		} else if w.at.node != nil {
			r.file.retell(w.at, state, as)
		}
	}
	return true
}

// inside are the variables of a container that runs muster run, as far as the file tells them.
type inside struct {
	names  []string
	values map[string]string
	at     map[string]value
	// secret are those with the text of a Secret in them, and open those that have another value in each pod: $(NAME)
	// stands for it.
	secret, open map[string]bool
}

func (t *template) inside() inside {
	in := inside{values: map[string]string{}, at: map[string]value{}, secret: map[string]bool{}, open: map[string]bool{}}
	for _, x := range t.env {
		if _, again := in.values[x.Name]; !again {
			in.names = append(in.names, x.Name)
		}
		text, secret, open := x.Value, x.kind == kindSecret, x.of != nil
		switch {
		case open:
			text = "$(" + x.Name + ")"
		case x.kind == "":
			secret, open = refers(text, in.secret), refers(text, in.open)
			text = expand(text, in.values)
		}
		in.values[x.Name], in.at[x.Name], in.secret[x.Name], in.open[x.Name] = text, x.at, secret, open
	}
	return in
}

func (in *inside) environ() []string {
	var list []string
	for _, name := range in.names {
		list = append(list, name+"="+in.values[name])
	}
	return list
}

// inWords reports whether the text of a flag has that of a Secret in it which one of the words refers to.
func (in *inside) inWords(words []string, text string) bool {
	for name, secret := range in.secret {
		value := in.values[name]
		if secret && value != "" && strings.Contains(text, value) && refers(strings.Join(words, "\n"), map[string]bool{name: true}) {
			return true
		}
	}
	return false
}

// refers reports whether one of the names that are set stands in a text as $(NAME).
func refers(text string, names map[string]bool) bool {
	for name, set := range names {
		if set && strings.Contains(text, "$("+name+")") {
			return true
		}
	}
	return false
}

// onEachNode refuses what muster run in the pods is told by variables that have another value in each of them: muster has
// one value for all nodes of a job. Where somebody else says it, it has no effect.
func (r *reader) onEachNode() {
	f := r.file
	operators := map[string]bool{}
	if f.Native && f.beside != nil {
		for _, v := range f.beside(f, 0, Places{}) {
			operators[v.Name] = true
		}
	}
	f.Words = slices.DeleteFunc(f.Words, func(w Word) bool {
		if !w.Own || !refers(w.Text, w.open) && !refers(w.Text, operators) {
			return false
		}
		const why = "it has another value on each node, and muster has one for all nodes of a job"
		switch {
		case r.Stronger != nil && r.Stronger(w.Flag):
		case r.Explain:
			if w.at.node != nil {
				f.retell(w.at, Missing, why+": a start needs --"+w.Flag)
			}
		default:
			r.add(errhint.With(fmt.Errorf("%s: cannot use %s for --%s: %s", w.Source.Name, w.Text, w.Flag, why), "give --"+w.Flag))
		}
		return true
	})
}

// OwnRestarts says of what the file says of new pods by a setting that it has no effect: muster run in the pods starts its
// workers anew by itself.
func (f *File) OwnRestarts(flag string) {
	for _, w := range f.Words {
		if w.Flag == flag && !w.Own && w.at.node != nil {
			f.retell(w.at, Mapped, "it is of new pods, of which there are none here: muster run in them has restarts of its own")
		}
	}
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
// variable unless it has the flag or muster's own variable. Of two variables with one name in a pod the operator's counts.
// v is the value that says it, or the one around it where none does.
func (v value) told(flag, text string) {
	f := v.r.file
	if !f.Native {
		return
	}
	f.Words = slices.DeleteFunc(f.Words, func(w Word) bool {
		ours := w.Own && w.Flag == flag && strings.HasPrefix(w.Variable, "PET_")
		if ours && w.at.node != nil {
			f.retell(w.at, Mapped, "no effect: the operator's "+w.Variable+" counts instead")
		}
		return ours
	})
	reader := "the node's muster run"
	if i := slices.IndexFunc(f.Words, func(w Word) bool { return w.Own && w.Flag == flag }); i >= 0 {
		own := "flag --" + flag
		if name := f.Words[i].Variable; name != "" {
			own = "variable " + name
		}
		reader += ", whose " + own + " counts instead"
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
