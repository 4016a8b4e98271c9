package jobfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"muster/internal/lazyregexp"
)

// Bounds of a file: a cluster takes no larger object than 1.5 MB, and a job of a thousand lines has a few thousand
// values.
const (
	maxFile      = 2 << 20
	maxDocuments = 100
	maxNodes     = 200_000 // with everything that aliases stand for
	maxDepth     = 100
)

// documents parses a file. None of the documents is nil, and all of them are maps.
func documents(file string, content []byte) ([]*yaml.Node, error) {
	if len(content) > maxFile {
		return nil, fmt.Errorf("cannot read %s: %d bytes exceed the limit of %d", file, len(content), maxFile)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var list []*yaml.Node
	size := counter{sizes: map[*yaml.Node]int{}}
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, syntaxError(file, content, err)
		}
		top := document.Content[0]
		if top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
			continue
		}
		if len(list) == maxDocuments {
			return nil, fmt.Errorf("%s:%d: more than %d documents are in the file", file, top.Line, maxDocuments)
		}
		if _, err := size.of(top, 0); err != nil {
			return nil, fmt.Errorf("%s:%w", file, err)
		}
		if top.Kind != yaml.MappingNode {
			return nil,
				fmt.Errorf("%s:%d:%d: a document must be a map with apiVersion, kind, metadata and spec", file, top.Line, top.Column)
		}
		list = append(list, top)
	}
}

var lineOfError = lazyregexp.New(`^line ([0-9]+): `)

// grammarErrors begin what the parser says of the order of what it has read, whose line it counts from 0.
var grammarErrors = []string{
	"did not find expected <", "did not find expected node content", "did not find expected '-' indicator", "did not find expected key",
	"did not find expected ',' or", "found undefined tag handle", "found duplicate %", "found incompatible YAML document",
}

// SyntaxText is what the parser of YAML says of an error in a content, without its own prefix and with the line that it
// means; of the end it is the last one.
func SyntaxText(content []byte, err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	m := lineOfError().FindStringSubmatch(text)
	if m == nil {
		return text
	}
	rest := strings.TrimPrefix(text, m[0])
	n, err := strconv.Atoi(m[1])
	if err == nil && slices.ContainsFunc(grammarErrors, func(begin string) bool { return strings.HasPrefix(rest, begin) }) {
		last := bytes.Count(bytes.TrimRight(content, "\n"), []byte("\n")) + 1
		return fmt.Sprintf("line %d: %s", min(n+1, last), rest)
	}
	return text
}

// syntaxError says where the parser gave up. It names the tab or the byte where that is the reason, whose place the
// parser does not say; nor does it count its first line.
func syntaxError(file string, content []byte, err error) error {
	text := SyntaxText(content, err)
	line := 1
	if m := lineOfError().FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = strings.TrimPrefix(text, m[0])
	}
	if strings.Contains(text, "cannot start any token") || strings.Contains(text, "a tab character") {
		n := 0
		for one := range strings.SplitSeq(string(content), "\n") {
			n++
			indent := one[:len(one)-len(strings.TrimLeft(one, " \t-"))]
			// The parser stands in the tab's line or in the one before: those further down may be in a text.
			if tab := strings.IndexByte(indent, '\t'); tab >= 0 && (n == line || n == line+1) {
				return fmt.Errorf("%s:%d:%d: a tab stands in the indentation: YAML takes blanks only", file, n, tab+1)
			}
		}
	}
	if name, found := strings.CutPrefix(text, "unknown anchor '"); found {
		name, _, _ = strings.Cut(name, "'")
		return fmt.Errorf("%s%s: %s", file, placeOf(content, unknownAlias(content, name)), text)
	}
	if strings.Contains(text, "control characters") || strings.Contains(text, "UTF-8") {
		return fmt.Errorf("%s%s: %s", file, placeOf(content, oddByte(content)), text)
	}
	return fmt.Errorf("%s:%d: %s", file, line, text)
}

// aliases are where an alias of a name may stand: also in comments and texts, but not as the front of a longer name.
func aliases(content []byte, name string) (all []int) {
	alias := []byte("*" + name)
	for at := 0; ; at++ {
		next := bytes.Index(content[at:], alias)
		if next < 0 {
			return all
		}
		at += next
		behind, _ := utf8.DecodeRune(content[at+len(alias):])
		if behind != '-' && behind != '_' && (behind > unicode.MaxASCII || !unicode.IsLetter(behind) && !unicode.IsDigit(behind)) {
			all = append(all, at)
		}
	}
}

// unknownAlias is where the first alias stands whose name nothing has, which the parser does not say; -1 where that
// cannot be told. What is a comment or a text the parser knows: it tells of another name where that one is changed, with all
// behind it, and of the same where only those behind it are.
func unknownAlias(content []byte, name string) int {
	const other = "*muster-no-such-anchor"
	all := aliases(content, name)
	changed := func(i int) bool { // those from all[i] on
		head, tail := content[:all[i]], content[all[i]:]
		var b bytes.Buffer
		b.Write(head)
		last := 0
		for _, at := range all[i:] {
			b.Write(tail[last : at-len(head)])
			b.WriteString(other)
			last = at - len(head) + 1 + len(name)
		}
		b.Write(tail[last:])
		decoder := yaml.NewDecoder(&b)
		for {
			var document yaml.Node
			if err := decoder.Decode(&document); err != nil {
				return strings.Contains(err.Error(), "'"+other[1:]+"'")
			}
		}
	}
	after := sort.Search(len(all), func(i int) bool { return !changed(i) })
	if after == 0 {
		return -1
	}
	return all[after-1]
}

// placeOf is the line and column of a byte, as they stand behind a file's name; empty for none.
func placeOf(content []byte, at int) string {
	if at < 0 {
		return ""
	}
	before := content[:at]
	return fmt.Sprintf(":%d:%d", bytes.Count(before, []byte("\n"))+1, at-bytes.LastIndexByte(before, '\n'))
}

// oddByte is where the first byte is that is no text, or a control character; -1 for none.
func oddByte(content []byte) int {
	for i := 0; i < len(content); {
		r, size := utf8.DecodeRune(content[i:])
		if r == utf8.RuneError && size == 1 || unicode.IsControl(r) && !strings.ContainsRune("\t\r\n\u0085", r) {
			return i
		}
		i += size
	}
	return -1
}

// counter counts what a tree would be with its aliases replaced by what they stand for.
type counter struct {
	sizes map[*yaml.Node]int // 0 while a node is being counted
}

func (c *counter) of(n *yaml.Node, depth int) (int, error) {
	size, known := c.sizes[n]
	switch {
	case known && size == 0:
		return 0, fmt.Errorf("%d:%d: an alias stands for something that it is a part of", n.Line, n.Column)
	case known:
		return size, nil
	case depth > maxDepth:
		return 0, fmt.Errorf("%d:%d: more than %d levels are nested", n.Line, n.Column, maxDepth)
	}
	c.sizes[n] = 0
	size = 1
	parts := n.Content
	if n.Kind == yaml.AliasNode {
		parts = []*yaml.Node{n.Alias}
	}
	for _, part := range parts {
		more, err := c.of(part, depth+1)
		if err != nil {
			return 0, err
		}
		if size += more; size > maxNodes {
			return 0, fmt.Errorf("%d:%d: the file stands for more than %d values", n.Line, n.Column, maxNodes)
		}
	}
	c.sizes[n] = size
	return size, nil
}

// aim is the node that n is or stands for.
func aim(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

type pair struct{ key, value *yaml.Node }

// pairs are the fields of a map, with those that <<: merges into it. A key that stands there twice is reported.
func pairs(n *yaml.Node, twice func(again, first *yaml.Node)) []pair {
	var list []pair
	var merged []*yaml.Node
	at := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			if m := aim(value); m.Kind == yaml.SequenceNode {
				merged = append(merged, m.Content...)
			} else {
				merged = append(merged, m)
			}
			continue
		}
		if first, there := at[key.Value]; there {
			twice(key, list[first].key)
			continue
		}
		at[key.Value] = len(list)
		list = append(list, pair{key, value})
	}
	for _, m := range merged {
		for _, p := range pairs(aim(m), twice) {
			if _, there := at[p.key.Value]; !there {
				at[p.key.Value] = len(list)
				list = append(list, p)
			}
		}
	}
	return list
}

// get is the value at a key of a map, nil for none.
func get(n *yaml.Node, key string) *yaml.Node {
	for _, p := range pairs(n, func(_, _ *yaml.Node) {}) {
		if p.key.Value == key {
			return aim(p.value)
		}
	}
	return nil
}

// scalar is the text at a key of a map, empty for none.
func scalar(n *yaml.Node, key string) string {
	if v := get(n, key); v != nil && v.Kind == yaml.ScalarNode {
		return v.Value
	}
	return ""
}

// apart is a tree in which nothing stands for something elsewhere: a change in one place is none in another.
func apart(n *yaml.Node) *yaml.Node {
	c := *aim(n)
	c.Content = make([]*yaml.Node, len(c.Content))
	for i, part := range aim(n).Content {
		c.Content[i] = apart(part)
	}
	return &c
}

var step = lazyregexp.New(`^("[^"]+"|[^\[\].]+)((?:\[[0-9]+\])*)(?:\.|$)`)

// change makes a change such as spec.replicaSpecs[0].replicas=3 in a document, and returns the nodes that it made. A
// name with dots stands in double quotes.
func change(top *yaml.Node, text string) ([]*yaml.Node, error) {
	path, value, ok := strings.Cut(text, "=")
	if !ok || path == "" {
		return nil, fmt.Errorf("cannot use --set %s: give path=value, such as spec.runPolicy.backoffLimit=3", text)
	}
	wrong := func(why string) error { return fmt.Errorf("cannot use --set %s: %s", path, why) }
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(value), &document); err != nil || len(value) > maxDepth*100 {
		return nil, wrong("the value is no YAML: " + strings.TrimPrefix(fmt.Sprint(err), "yaml: "))
	}
	made := yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str"}
	if len(document.Content) > 0 {
		made = *document.Content[0]
	}
	if _, err := (&counter{sizes: map[*yaml.Node]int{}}).of(&made, 0); err != nil {
		return nil, wrong("the value is too large")
	}
	var news []*yaml.Node
	place := func(n yaml.Node) *yaml.Node { news = append(news, &n); return &n }
	at := top
	for rest := path; rest != ""; {
		m := step().FindStringSubmatch(rest)
		if m == nil {
			return nil, wrong("the path has names with dots between, and list items as in spec.replicaSpecs[0].replicas")
		}
		rest = rest[len(m[0]):]
		key := strings.Trim(m[1], `"`)
		if at.Kind != yaml.MappingNode {
			return nil, wrong(key + " would be a field of something that is no map")
		}
		i := 0
		for i < len(at.Content) && at.Content[i].Value != key {
			i += 2
		}
		if i == len(at.Content) {
			if m[2] != "" {
				return nil, wrong("there is no list " + key)
			}
			at.Content = append(at.Content, place(yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}),
				place(yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}))
		}
		slot := &at.Content[i+1]
		for index := range strings.SplitSeq(strings.Trim(m[2], "[]"), "][") {
			if index == "" {
				break
			}
			n, err := strconv.Atoi(index)
			list := aim(*slot)
			if err != nil || list.Kind != yaml.SequenceNode || n >= len(list.Content) {
				return nil, wrong(fmt.Sprintf("%s has no item %s", key, index))
			}
			slot = &list.Content[n]
		}
		if rest == "" {
			*slot = place(made)
			var inner func(n *yaml.Node)
			inner = func(n *yaml.Node) {
				for _, c := range n.Content {
					news = append(news, c)
					inner(c)
				}
			}
			inner(*slot)
			break
		}
		at = aim(*slot)
	}
	return news, nil
}
