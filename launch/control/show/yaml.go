package show

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML writes v with the names and in the order that JSON would have.
func YAML(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var plain bytes.Buffer
	switch err := newYAMLWriter(&plain, text).document(); {
	case err == nil:
		_, err = w.Write(plain.Bytes())
		return err
	case !errors.Is(err, errNotPlain):
		return fmt.Errorf("cannot write YAML: %w", err)
	}
	return anyYAML(w, text)
}

// anyYAML writes JSON as YAML, whatever there is in it. It takes four times as long as a yamlWriter: half a second for
// thousands of ranks.
func anyYAML(w io.Writer, text []byte) error {
	var tree yaml.Node
	if err := yaml.Unmarshal(text, &tree); err != nil { // YAML has JSON in it
		return fmt.Errorf("cannot write YAML: %w", err)
	}
	unstyled(&tree)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&tree); err != nil {
		return err
	}
	return enc.Close()
}

// unstyled has a tree written as people write YAML.
func unstyled(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		unstyled(child)
	}
}

// errNotPlain is what comes of a text whose form follows from where it stands.
var errNotPlain = errors.New("no plain text")

// yamlWriter writes JSON of objects, lists and texts of one line as anyYAML does.
type yamlWriter struct {
	to    *bufio.Writer
	from  *json.Decoder
	known map[string]string // texts as they are written
}

func newYAMLWriter(w io.Writer, text []byte) *yamlWriter {
	y := &yamlWriter{to: bufio.NewWriter(w), from: json.NewDecoder(bytes.NewReader(text)), known: map[string]string{}}
	y.from.UseNumber()
	return y
}

// document writes all of it. An empty one has another form.
func (y *yamlWriter) document() error {
	token, err := y.from.Token()
	if err == nil && (token != json.Delim('{') || !y.from.More()) {
		err = errNotPlain
	}
	if err == nil {
		err = y.object(0, false)
	}
	return errors.Join(err, y.to.Flush())
}

// indent begins a line.
func (y *yamlWriter) indent(depth int) {
	for range depth {
		_, _ = y.to.WriteString("  ") // a bufio.Writer keeps its error
	}
}

// object writes an object that has begun, whose first line was begun where inline says so.
func (y *yamlWriter) object(depth int, inline bool) error {
	for y.from.More() {
		token, err := y.from.Token()
		if err != nil {
			return err
		}
		key, err := y.text(token.(string)) // of an object: the decoder sees to it
		if err != nil || len(key) > longestKey {
			return errors.Join(err, errNotPlain)
		}
		if !inline {
			y.indent(depth)
		}
		inline = false
		_, _ = y.to.WriteString(key + ":")
		if err := y.value(depth + 1); err != nil {
			return err
		}
	}
	_, err := y.from.Token()
	return err
}

// longestKey is less than that from which a key is written in another form.
const longestKey = 100

// value writes what follows a key, with the end of its line.
func (y *yamlWriter) value(depth int) error {
	token, err := y.from.Token()
	if err != nil {
		return err
	}
	switch {
	case token == json.Delim('{') && y.from.More():
		_ = y.to.WriteByte('\n')
		return y.object(depth, false)
	case token == json.Delim('[') && y.from.More():
		_ = y.to.WriteByte('\n')
		return y.list(depth)
	}
	_ = y.to.WriteByte(' ')
	return y.line(token)
}

// list writes a list that has begun and has items.
func (y *yamlWriter) list(depth int) error {
	for y.from.More() {
		token, err := y.from.Token()
		if err != nil {
			return err
		}
		y.indent(depth)
		_, _ = y.to.WriteString("- ")
		switch {
		case token == json.Delim('{') && y.from.More():
			err = y.object(depth+1, true)
		case token == json.Delim('[') && y.from.More():
			err = errNotPlain // there is none
		default:
			err = y.line(token)
		}
		if err != nil {
			return err
		}
	}
	_, err := y.from.Token()
	return err
}

// line writes a value without items in the rest of a line.
func (y *yamlWriter) line(token json.Token) (err error) {
	text := "null"
	switch t := token.(type) {
	case json.Delim: // it is empty
		text = t.String()
		var end json.Token
		if end, err = y.from.Token(); err == nil {
			text += end.(json.Delim).String()
		}
	case json.Number:
		text = t.String()
	case bool:
		text = fmt.Sprint(t)
	case string:
		text, err = y.text(t)
	}
	_, _ = y.to.WriteString(text + "\n")
	return err
}

// text is a text as it is written, with quotes where it needs them.
func (y *yamlWriter) text(s string) (string, error) {
	if known, is := y.known[s]; is {
		return known, nil
	}
	var out strings.Builder
	enc := yaml.NewEncoder(&out)
	err := enc.Encode(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}}})
	if err := errors.Join(err, enc.Close()); err != nil {
		return "", err
	}
	text := strings.TrimSuffix(strings.TrimPrefix(out.String(), "- "), "\n")
	if strings.Contains(text, "\n") {
		return "", errNotPlain
	}
	y.known[s] = text
	return text, nil
}
