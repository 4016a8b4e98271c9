package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"muster/cmd/dialect/jobfile"
	"muster/internal/errhint"
	"muster/launch/job"
)

// maxConfig is the size of the largest settings file that is read, in bytes: a few lines per flag are a few KiB.
const maxConfig = 1 << 20

// readConfig reads a settings file: a YAML map from flags, without their dashes, to values. Each problem names the file
// and the line.
func readConfig(file string, list []*option, readFile func(string) ([]byte, error)) (*ownWords, problems) {
	var wrong problems
	words := newOwnWords()
	if readFile == nil {
		wrong.add(fmt.Errorf("cannot read %s: no files can be read here", file))
		return words, wrong
	}
	content, err := readFile(file)
	if err != nil {
		wrong.add(fmt.Errorf("cannot read the settings of --config: %w", err))
		return words, wrong
	}
	top, err := yamlMap(file, content, "flags, such as max-restarts: 3")
	if top == nil {
		wrong.add(err)
		return words, wrong
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, node := top.Content[i], top.Content[i+1]
		at := fmt.Sprintf("%s:%d", file, key.Line)
		o, text, err := configWord(key, node, list)
		if err == nil && o.of(words).given {
			err = fmt.Errorf("%s is given twice", o.name)
		}
		if err != nil {
			wrong.add(fmt.Errorf("%s: %w", at, err))
			continue
		}
		o.of(words).say(text, job.Source{Kind: job.FromConfig, Name: at})
	}
	return words, wrong
}

// yamlMap returns the map of a YAML file with one document, nil where there is nothing in it. of says for people what
// the map has.
func yamlMap(file string, content []byte, of string) (*yaml.Node, error) {
	if len(content) > maxConfig {
		return nil, fmt.Errorf("cannot read %s: %d bytes exceed the limit of %d", file, len(content), maxConfig)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF): // an empty file has no settings
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read %s: %s", file, jobfile.SyntaxText(content, err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read %s: there is more than one YAML document in it", file)
	}
	top := document.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" { // only comments
		return nil, nil
	}
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: the file must be a map of %s", file, top.Line, of)
	}
	return top, nil
}

func configWord(key, node *yaml.Node, list []*option) (o *option, text string, err error) {
	flag := strings.TrimPrefix(strings.ReplaceAll(key.Value, "_", "-"), "--")
	var names []string
	for _, s := range list {
		if s.name == flag && s.word == &ownRows().blank.Config {
			return nil, "", errors.New("a settings file cannot name another one")
		}
		if key.Kind == yaml.ScalarNode && slices.Contains(s.names(), flag) {
			text, err := s.fromYAML(node)
			if node.Kind == yaml.ScalarNode && node.Value == s.def { // such as "none" for no limit
				text, err = s.def, nil
			}
			if err != nil {
				return nil, "", fmt.Errorf("%s: %w", s.name, err)
			}
			return s, text, nil
		}
		names = append(names, s.name)
	}
	err = fmt.Errorf("unknown setting %q", key.Value)
	if near := nearest(flag, names); near != "" {
		return nil, "", fmt.Errorf("%w: did you mean %s?", err, near)
	}
	if namesFlag(settings(), flag) {
		return nil, "", errhint.With(fmt.Errorf("%w in front of another launcher's command line", err), "give the launcher its own flag")
	}
	return nil, "", err
}

func namesFlag(list []*option, flag string) bool {
	for _, s := range list {
		if slices.Contains(s.names(), flag) {
			return true
		}
	}
	return false
}

// fromYAML turns the setting's YAML value into what would have been typed.
func (o *option) fromYAML(node *yaml.Node) (string, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if o.separator != several || node.Kind != yaml.SequenceNode {
		return o.kind.fromYAML(node)
	}
	items := make([]string, len(node.Content))
	for i, item := range node.Content {
		if item.Kind != yaml.ScalarNode || item.Tag != "!!str" || strings.Contains(item.Value, several) {
			return "", fmt.Errorf("item %d of the list is no string", i+1)
		}
		items[i] = item.Value
	}
	return strings.Join(items, several), nil
}

// fromYAML turns a YAML value into what would have been typed, or says that its type does not fit.
func (k kind) fromYAML(node *yaml.Node) (string, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind == yaml.SequenceNode && (k == kindList || k == kindPairs) {
		items := make([]string, len(node.Content))
		for i, item := range node.Content {
			if item.Kind != yaml.ScalarNode || item.Tag != "!!str" && item.Tag != "!!int" {
				return "", fmt.Errorf("item %d of the list is neither a number nor a string", i+1)
			}
			items[i] = item.Value
		}
		return strings.Join(items, ","), nil
	}
	accepted := map[kind]struct {
		tags string
		what string
	}{
		kindText:     {"!!str !!int", "a string"},
		kindFlag:     {"!!bool", "true or false"},
		kindInt:      {"!!int", "a whole number"},
		kindFloat:    {"!!int !!float", "a number"},
		kindTime:     {"!!str !!int !!float", "a time such as 30s or a number of seconds"},
		kindList:     {"!!str !!int", "a list, or a string with commas"},
		kindPairs:    {"!!str !!int", "a list, or a string with commas"},
		kindOptional: {"!!str !!bool", "true, false or a string"},
	}[k]
	if node.Kind != yaml.ScalarNode || !strings.Contains(accepted.tags, node.Tag) {
		return "", fmt.Errorf("give %s", accepted.what)
	}
	return node.Value, nil
}
