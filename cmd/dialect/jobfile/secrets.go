package jobfile

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/internal/lazyregexp"
)

// objectName is what Secrets, ConfigMaps and their keys may be called: nothing that leads out of a directory.
var objectName = lazyregexp.New(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}$`)

// kindSecret is the kind of an object whose texts are shown to nobody, kindConfigMap that of one beside it.
const (
	kindSecret    = "Secret"
	kindConfigMap = "ConfigMap"
)

// maxSecret is the largest value that is taken for a variable.
const maxSecret = 128 << 10

// object is the Secret or ConfigMap of a name in the same file, nil for none.
func (r *reader) object(kind, name string) *yaml.Node {
	for _, d := range r.others {
		if m := get(d, "metadata"); scalar(d, "kind") == kind && m != nil && m.Kind == yaml.MappingNode && scalar(m, "name") == name {
			return d
		}
	}
	return nil
}

// data are the texts of an object in the file, by their keys.
func (r *reader) data(object *yaml.Node) (map[string]string, error) {
	all := map[string]string{}
	for _, field := range []string{"data", "stringData"} {
		m := get(object, field)
		if m == nil || m.Kind != yaml.MappingNode {
			continue
		}
		for _, p := range pairs(m, func(_, _ *yaml.Node) {}) {
			text := aim(p.value).Value
			if field == "data" && scalar(object, "kind") == "Secret" {
				plain, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					return nil, fmt.Errorf("the Secret in line %d has data under %s that is no base64", object.Line, p.key.Value)
				}
				text = string(plain)
			}
			all[p.key.Value] = text
		}
	}
	return all, nil
}

// entry is the text of a key of a Secret or a ConfigMap: of this file, or of the directory of --secrets. Its errors
// name no text.
func (r *reader) entry(kind, name, key string) (text string, found bool, err error) {
	if !objectName().MatchString(name) || !objectName().MatchString(key) {
		return "", false, fmt.Errorf("%q and %q are no names of a %s and its key", name, key, kind)
	}
	beside, there, err := r.besideFile(name, key)
	object := r.object(kind, name)
	if object == nil {
		return beside, there, err
	}
	all, dataErr := r.data(object)
	text, found = all[key]
	switch {
	case dataErr != nil:
		return "", false, dataErr
	case there && err == nil && found && beside != text && !r.meansOther(kind, name):
		return "", false, fmt.Errorf("the %s %s in line %d of the file has another value under %s than --secrets %s: leave one of them out",
			kind, name, object.Line, key, r.Secrets)
	case !found:
		return beside, there, err
	}
	return text, found, nil
}

// references are the fields that name an object of a kind.
var references = map[string][]string{
	kindSecret: {"secretKeyRef", "secretRef"}, kindConfigMap: {"configMapKeyRef", "configMapRef"},
}

// meansOther reports whether a directory of --secrets may be for the object of the other kind with the same name, which a
// cluster keeps apart: the job names that one, and the file does not have it.
func (r *reader) meansOther(kind, name string) bool {
	other := kindSecret
	if kind == kindSecret {
		other = kindConfigMap
	}
	return r.object(other, name) == nil && names(r.job, references[other], name)
}

// names reports whether one of the fields in a tree names an object.
func names(n *yaml.Node, fields []string, name string) bool {
	if n.Kind == yaml.AliasNode {
		return false // what it stands for is in the tree, too
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			ref := aim(n.Content[i+1])
			if slices.Contains(fields, n.Content[i].Value) && ref.Kind == yaml.MappingNode && scalar(ref, "name") == name {
				return true
			}
		}
	}
	return slices.ContainsFunc(n.Content, func(part *yaml.Node) bool { return names(part, fields, name) })
}

// besideFile is the text of a key in the directory of --secrets.
func (r *reader) besideFile(name, key string) (text string, found bool, err error) {
	if r.Secrets == "" || r.ReadFile == nil {
		return "", false, nil
	}
	content, err := r.ReadFile(filepath.Join(r.Secrets, name, key))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false, nil
	case err != nil:
		return "", false, err
	case len(content) > maxSecret || slices.Contains(content, 0):
		return "", false, fmt.Errorf("the file %s is no text of a variable: it has a zero byte, or more than %d bytes",
			filepath.Join(r.Secrets, name, key), maxSecret)
	}
	return string(content), true, nil
}

// keys are those of a Secret or a ConfigMap, in this file and in the directory of --secrets.
func (r *reader) keys(kind, name string) (list []string, found bool, err error) {
	if !objectName().MatchString(name) {
		return nil, false, fmt.Errorf("%q is no name of a %s", name, kind)
	}
	if object := r.object(kind, name); object != nil {
		all, err := r.data(object)
		if err != nil {
			return nil, true, err
		}
		list, found = slices.Sorted(maps.Keys(all)), true
	}
	if r.Secrets == "" || r.ReadDir == nil {
		return list, found, nil
	}
	names, err := r.ReadDir(filepath.Join(r.Secrets, name))
	if errors.Is(err, fs.ErrNotExist) {
		return list, found, nil
	}
	for _, key := range names {
		if objectName().MatchString(key) && key[0] != '.' { // ..data is how a cluster mounts them
			list = append(list, key)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), true, err
}

// lacks says why a key of a Secret or a ConfigMap was not found.
func (r *reader) lacks(kind, name string) string {
	list, found, err := r.keys(kind, name)
	switch {
	case err == nil && found && len(list) > 0:
		return "has no such key: it has " + strings.Join(list, ", ")
	case err == nil && found:
		return "has no key"
	}
	if r.Secrets != "" && r.ReadDir != nil {
		if _, err := r.ReadDir(r.Secrets); err != nil {
			return fmt.Sprintf("is not here: cannot read --secrets %s: %v", r.Secrets, err)
		}
	}
	return "is not here"
}
