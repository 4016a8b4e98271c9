package manifest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"muster/internal/lazyregexp"
)

// field is a field of an object with the reason why it is there, which may be empty. A nil value leaves it out.
type field struct {
	key   string
	value any
	why   string
}

// object is a map, in the order in which it is written; list has strings, numbers, objects, or fields without a key
// where an item has a comment.
type (
	object []field
	list   []any
)

// inline is a list that is written in one line.
type inline []string

// raw is a scalar that is written as it is.
type raw string

// commentWidth bounds lines of comments.
const commentWidth = 100

// documents writes YAML documents, each a map.
func documents(head string, docs ...object) string {
	var b strings.Builder
	for _, line := range rewrapped(head, commentWidth) {
		fmt.Fprintf(&b, "# %s\n", line)
	}
	for i, d := range docs {
		if i > 0 {
			b.WriteString("---\n")
		}
		d.write(&b, "", "")
	}
	return b.String()
}

func comment(b *strings.Builder, why, indent string) {
	if why == "" {
		return
	}
	for _, line := range rewrapped(why, commentWidth-len(indent)) {
		fmt.Fprintf(b, "%s# %s\n", indent, line)
	}
}

// write writes a map. first is what the first line begins with: the indent, or the dash of a list's item.
func (o object) write(b *strings.Builder, first, indent string) {
	for _, f := range o {
		if empty(f.value) {
			continue
		}
		if first == indent {
			comment(b, f.why, indent)
		}
		fmt.Fprintf(b, "%s%s:", first, scalar(f.key))
		first = indent
		switch v := f.value.(type) {
		case object:
			b.WriteString("\n")
			v.write(b, indent+"  ", indent+"  ")
		case list:
			b.WriteString("\n")
			v.write(b, indent+"  ")
		default:
			fmt.Fprintf(b, " %s\n", scalar(v))
		}
	}
}

func (l list) write(b *strings.Builder, indent string) {
	for _, item := range l {
		why := ""
		if f, ok := item.(field); ok {
			item, why = f.value, f.why
		}
		if o, ok := item.(object); ok {
			if i := slices.IndexFunc(o, func(f field) bool { return !empty(f.value) }); why == "" && i >= 0 {
				why = o[i].why
			}
			comment(b, why, indent)
			o.write(b, indent+"- ", indent+"  ")
			continue
		}
		comment(b, why, indent)
		fmt.Fprintf(b, "%s- %s\n", indent, scalar(item))
	}
}

// empty reports whether a value is left out.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case object:
		return !slices.ContainsFunc(v, func(f field) bool { return !empty(f.value) })
	case list:
		return len(v) == 0
	case inline:
		return len(v) == 0
	case string:
		return v == ""
	}
	return false
}

// plainWord is a text that every reader of YAML takes for a string.
var plainWord = lazyregexp.New(`^(--?)?[A-Za-z/][A-Za-z0-9._/=,+-]*$`)

// notWords are those that some reader takes for something else.
var notWords = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}

// scalar writes a scalar or a list in one line.
func scalar(value any) string {
	switch v := value.(type) {
	case raw:
		return string(v)
	case int:
		return strconv.Itoa(v)
	case bool:
		return strconv.FormatBool(v)
	case inline:
		words := make([]string, len(v))
		for i, w := range v {
			words[i] = scalar(w)
			if strings.Contains(w, ",") {
				words[i] = quoted(w)
			}
		}
		return "[" + strings.Join(words, ", ") + "]"
	case string:
		if plainWord().MatchString(v) && !slices.Contains(notWords, strings.ToLower(v)) {
			return v
		}
		return quoted(v)
	}
	panic(fmt.Sprintf("internal error: %T is no scalar", value))
}

// quoted is a string in double quotes, as YAML and JSON have them alike.
func quoted(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic("internal error: a string cannot be written: " + err.Error())
	}
	text = strings.TrimSuffix(b.String(), "\n")
	b.Reset()
	for _, r := range text {
		if r >= 0x7f && r < 0xa0 || r == 0xfeff { // JSON has them as they are, YAML does not
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
