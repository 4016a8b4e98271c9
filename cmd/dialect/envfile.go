package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"muster/launch/job"
)

// ParseEnvFile reads a file of variables as dotenv and DeepSpeed's .deepspeed_env have them: a line NAME=VALUE each,
// with "export " in front or not, and comments behind #. A value without quotes ends with its line, or before a #
// behind a blank. One in single quotes is taken as it is, one in double quotes has the escapes \n, \r, \t, \\, \", \$
// and \`; both may have several lines. With expand, all values but those in single quotes get Var.Expand. Errors name
// the file and the line, and never a value: it may be a secret.
func ParseEnvFile(file string, content []byte, expand bool) ([]job.Var, error) {
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	if len(content) > maxConfig {
		return nil, fmt.Errorf("cannot read %s: %d bytes exceed the limit of %d", file, len(content), maxConfig)
	}
	f := envFile{rest: string(content), line: 1, expand: expand}
	var vars []job.Var
	for f.rest != "" {
		at := fmt.Sprintf("%s:%d", file, f.line)
		v, found, err := f.next()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if found {
			v.Source = job.Source{Kind: job.FromConfig, Name: at}
			vars = append(vars, v)
		}
	}
	return vars, nil
}

// envName is a name as files of variables have them.
var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`) })

type envFile struct {
	rest   string
	line   int // of the beginning of rest
	expand bool
}

// cut takes the next line, without what ends it.
func (f *envFile) cut() string {
	line, rest, _ := strings.Cut(f.rest, "\n")
	f.rest = rest
	f.line++
	return strings.TrimSuffix(line, "\r")
}

// next reads a line, and those behind it that belong to a value in quotes.
func (f *envFile) next() (v job.Var, found bool, err error) {
	line := strings.TrimLeft(f.cut(), " \t")
	if line == "" || line[0] == '#' {
		return v, false, nil
	}
	if word, rest, ok := strings.Cut(line, " "); ok && word == "export" {
		line = rest
	}
	name, value, ok := strings.Cut(line, "=")
	name, value = strings.TrimSpace(name), strings.TrimLeft(value, " \t")
	switch {
	case !ok: // it may be a part of a secret
		return v, false, errors.New("the line is not NAME=VALUE; --env NAME takes the value that a variable has here")
	case !envName().MatchString(name):
		return v, false, errors.New("what stands in front of the = is no name of a variable")
	}
	v = job.Var{Name: name, Expand: f.expand}
	switch {
	case strings.HasPrefix(value, "'"):
		v.Value, value, err = f.quoted(value[1:], '\'')
		v.Expand = false
	case strings.HasPrefix(value, `"`):
		v.Value, value, err = f.quoted(value[1:], '"')
	default:
		for i := range value {
			if value[i] == '#' && (i == 0 || value[i-1] == ' ' || value[i-1] == '\t') {
				value = value[:i]
				break
			}
		}
		v.Value, value = strings.TrimRight(value, " \t"), ""
	}
	if err != nil {
		return v, false, fmt.Errorf("%s: %w", name, err)
	}
	if value = strings.TrimLeft(value, " \t"); value != "" && value[0] != '#' {
		return v, false, fmt.Errorf("%s: there is something behind the closing quote", name)
	}
	if strings.Contains(v.Value, "\x00") {
		return v, false, fmt.Errorf("%s: a value cannot hold a zero byte", name)
	}
	return v, true, nil
}

// escapes of values in double quotes.
var escapes = map[byte]string{'n': "\n", 'r': "\r", 't': "\t", '\\': `\`, '"': `"`, '$': "$", '`': "`"}

// quoted reads a value up to its closing quote, and returns what stands behind that in its line.
func (f *envFile) quoted(line string, quote byte) (value, behind string, err error) {
	var b strings.Builder
	for {
		for i := 0; i < len(line); i++ {
			c := line[i]
			switch {
			case c == quote:
				return b.String(), line[i+1:], nil
			case c == '\\' && quote == '"' && i+1 < len(line):
				i++
				text, known := escapes[line[i]]
				if !known {
					text = `\` + line[i:i+1]
				}
				if text == "$" && f.expand {
					text = "$$" // which expansion makes one
				}
				b.WriteString(text)
			default:
				b.WriteByte(c)
			}
		}
		if f.rest == "" {
			return "", "", fmt.Errorf("the closing %c is missing", quote)
		}
		b.WriteByte('\n')
		line = f.cut()
	}
}
