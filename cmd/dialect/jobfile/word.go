package jobfile

import (
	"fmt"

	"go.yaml.in/yaml/v3"

	"muster/internal/errhint"
)

// words are those of a list that is a part of the template's command.
func (t *template) words(v value) []string {
	t.lists = append(t.lists, v)
	return v.texts()
}

// word finds where a word of the pod's command stands in the file.
func (p *Pod) word(text string) (v value, ok bool) {
	for _, list := range p.lists {
		for i, item := range list.node.Content {
			if item = aim(item); item.Value == text {
				return value{list.r, item, fmt.Sprintf("%s[%d]", list.path, i)}, true
			}
		}
	}
	return value{}, false
}

// Lacks reports that a start needs what a word of a pod's command names, with the word's place in the file. Where the
// file is only explained there is a line that says so, and no error.
func (f *File) Lacks(p *Pod, word, problem, hint string) error {
	v, ok := p.word(word)
	switch {
	case !ok:
		return errhint.With(fmt.Errorf("the command of %s: %s", p.Name, problem), hint)
	case f.lacking[v.node]: // several replicas have the command
		return nil
	}
	if f.lacking == nil {
		f.lacking = map[*yaml.Node]bool{}
	}
	if f.lacking[v.node] = true; !v.r.Explain {
		return errhint.With(fmt.Errorf("%s: %s: %s", v.r.at(v.node, true), v.path, problem), hint)
	}
	v.note(Missing, problem+": "+hint)
	f.sort()
	return nil
}

// Mounted is what the operator mounts into the launcher's pod where the nodes are at those places, by paths.
func (f *File) Mounted(at Places) map[string]string {
	if f.files == nil {
		return nil
	}
	return f.files(at)
}
