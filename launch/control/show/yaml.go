package show

import (
	"encoding/json"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// YAML writes v with the names and in the order that JSON would have.
func YAML(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
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
