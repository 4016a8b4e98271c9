package dialect

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// pythonTruth reads a truth value as accelerate's str_to_bool does.
func pythonTruth(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "y", "yes", "t", "true", "on", "1":
		return true, nil
	case "n", "no", "f", "false", "off", "0":
		return false, nil
	}
	return false, errors.New("give true or false")
}

// pythonBool is str(bool) of Python.
func pythonBool(on bool) string {
	if on {
		return "True"
	}
	return "False"
}

// pythonFloat is str(float) of Python.
func pythonFloat(f float64) string {
	switch abs := math.Abs(f); {
	case math.IsInf(f, 0), math.IsNaN(f):
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+"))
	case abs != 0 && (abs < 1e-4 || abs >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// yamlForms are what plain scalars are to PyYAML 6, which knows YAML 1.1.
type yamlForms struct{ null, yes, no, whole, float *regexp.Regexp }

// Compiled for the first who asks: most command lines have no file.
var plainForms = sync.OnceValue(func() yamlForms {
	return yamlForms{
		null:  regexp.MustCompile(`^(~|null|Null|NULL|)$`),
		yes:   regexp.MustCompile(`^(yes|Yes|YES|true|True|TRUE|on|On|ON)$`),
		no:    regexp.MustCompile(`^(no|No|NO|false|False|FALSE|off|Off|OFF)$`),
		whole: regexp.MustCompile(`^[-+]?(0b[0-1_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)$`),
		float: regexp.MustCompile(`^([-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?$`),
	}
})

// pythonText is str() of what PyYAML reads from a node, and whether that is None. The items of a list are joined by
// commas, which is how workers read lists. Maps are refused.
func pythonText(node *yaml.Node) (text string, none bool, err error) {
	switch node.Kind {
	case yaml.AliasNode:
		return pythonText(node.Alias)
	case yaml.SequenceNode:
		items := make([]string, len(node.Content))
		for i, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return "", false, fmt.Errorf("item %d of the list is no single value", i+1)
			}
			if items[i], _, err = pythonText(item); err != nil {
				return "", false, err
			}
		}
		return strings.Join(items, ","), false, nil
	case yaml.ScalarNode:
	default:
		return "", false, errors.New("give a single value")
	}
	text = node.Value
	if node.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 ||
		node.Style&yaml.TaggedStyle != 0 && node.Tag == "!!str" {
		return text, false, nil
	}
	forms, digits := plainForms(), strings.ReplaceAll(text, "_", "")
	switch {
	case forms.null.MatchString(text):
		return "", true, nil
	case forms.yes.MatchString(text):
		return "True", false, nil
	case forms.no.MatchString(text):
		return "False", false, nil
	case forms.whole.MatchString(text):
		n, ok := new(big.Int).SetString(digits, 0)
		if !ok {
			return text, false, nil
		}
		return n.String(), false, nil
	case forms.float.MatchString(text):
		if f, err := strconv.ParseFloat(digits, 64); err == nil {
			return pythonFloat(f), false, nil
		}
	}
	return text, false, nil
}
