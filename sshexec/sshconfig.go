package sshexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kevinburke/ssh_config"
	"github.com/rs/zerolog"

	"muster/internal/errhint"
	"muster/internal/hosts"
	"muster/internal/lazyregexp"
)

// systemConfig holds for all users of this machine.
const systemConfig = "/etc/ssh/ssh_config"

// configFiles are ssh's configuration: the user's and the system's.
type configFiles struct {
	home string
	log  zerolog.Logger
	// ask runs OpenSSH's client to hear what it makes of the files; nil where there is none.
	ask  func(ctx context.Context, args []string, stdin string) (string, error)
	read func() (parsedConfig, error)
}

// parsedConfig is what was read of the files. conditions reports that they have some which only OpenSSH's client
// decides.
type parsedConfig struct {
	files      []*ssh_config.Config
	conditions bool
}

func newConfigFiles(home string, log zerolog.Logger, ask func(context.Context, []string, string) (string, error)) *configFiles {
	c := &configFiles{home: home, log: log, ask: ask}
	c.read = sync.OnceValues(c.parse)
	return c
}

func (c *configFiles) user() string { return filepath.Join(c.home, ".ssh", "config") }

// of returns what the files say of a machine.
func (c *configFiles) of(ctx context.Context, h hosts.Host) (lookup, error) {
	parsed, err := c.read()
	if err != nil {
		return nil, err
	}
	if parsed.conditions {
		return c.asked(ctx, h)
	}
	return func(name string) []string {
		var all []string
		for _, f := range parsed.files {
			values, _ := f.GetAll(h.Name, name) // it fails for nodes of kinds that the parser does not make
			all = append(all, values...)
		}
		return all
	}, nil
}

// parse reads both files. The parser refuses a file with a condition as a whole, or takes the words behind the first
// criterion for names of hosts. So conditions are looked for before.
func (c *configFiles) parse() (parsed parsedConfig, err error) {
	type source struct{ path, base string }
	for _, s := range []source{{c.user(), filepath.Dir(c.user())}, {systemConfig, filepath.Dir(systemConfig)}} {
		text, err := os.ReadFile(s.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return parsed, errhint.Usagef("cannot read ssh's configuration: %v", err)
		}
		text = absoluteIncludes(text, s.base)
		if where := c.condition(s.path, text, s.base, 0); where != "" {
			if c.ask != nil {
				return parsedConfig{conditions: true}, nil
			}
			c.log.Warn().Str("line",
				where).Msg("what stands below a Match line of ssh's configuration is not used, as there is no ssh to decide it")
			text = c.withoutConditions(text, s.base)
		}
		f, err := ssh_config.DecodeBytes(text)
		if err != nil {
			return parsed, errhint.With(errhint.Usagef("cannot read ssh's configuration %s: %v", s.path, err),
				"OpenSSH's own client may understand it: --ssh-program ssh")
		}
		parsed.files = append(parsed.files, f)
	}
	return parsed, nil
}

var (
	includeLine = lazyregexp.New(`(?i)^\s*include[\s=]\s*=?\s*(.*)$`)
	matchLine   = lazyregexp.New(`(?i)^\s*match[\s=]\s*=?\s*(.*)$`)
	hostLine    = lazyregexp.New(`(?i)^\s*host[\s=]`)
)

// absoluteIncludes names the files to include as they would be found: the parser looks for all of them below the home
// that the list of users has.
func absoluteIncludes(text []byte, base string) []byte {
	lines := bytes.Split(text, []byte("\n"))
	for i, line := range lines {
		if m := includeLine().FindSubmatch(line); m != nil {
			lines[i] = []byte("Include " + strings.Join(included(string(m[1]), base), " "))
		}
	}
	return bytes.Join(lines, []byte("\n"))
}

func included(patterns, base string) []string {
	files := strings.Fields(patterns)
	for i, f := range files {
		f = strings.Trim(f, `"`)
		if rest, home := strings.CutPrefix(f, "~/"); home {
			f = filepath.Join(filepath.Dir(base), rest)
		}
		if !filepath.IsAbs(f) {
			f = filepath.Join(base, f)
		}
		files[i] = f
	}
	return files
}

// condition returns where the first Match stands that is more than "all", in the text of a file or in what it includes.
func (c *configFiles) condition(path string, text []byte, base string, depth int) string {
	for i, line := range strings.Split(string(text), "\n") {
		if m := matchLine().FindStringSubmatch(line); m != nil && !strings.EqualFold(strings.TrimSpace(m[1]), "all") {
			return path + ":" + strconv.Itoa(i+1)
		}
		m := includeLine().FindStringSubmatch(line)
		if m == nil || depth == 5 {
			continue
		}
		for _, pattern := range included(m[1], base) {
			names, _ := filepath.Glob(pattern) // the parser tells of bad patterns
			for _, name := range names {
				inner, err := os.ReadFile(name) //nolint:gosec // what the user's own configuration includes
				if err != nil {
					continue // the parser tells
				}
				if where := c.condition(name, inner, base, depth+1); where != "" {
					return where
				}
			}
		}
	}
	return ""
}

// withoutConditions leaves out the conditions, what stands below them, and the included files that have some.
func (c *configFiles) withoutConditions(text []byte, base string) []byte {
	lines := strings.Split(string(text), "\n")
	skip := false
	for i, line := range lines {
		match, include := matchLine().FindStringSubmatch(line), includeLine().FindStringSubmatch(line)
		switch {
		case match != nil:
			skip = !strings.EqualFold(strings.TrimSpace(match[1]), "all")
		case hostLine().MatchString(line):
			skip = false
		case include != nil:
			lines[i] = c.withoutIncludes(include[1], base)
		}
		if skip {
			lines[i] = ""
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// withoutIncludes includes the files of a list that have no conditions.
func (c *configFiles) withoutIncludes(patterns, base string) string {
	var files []string
	for _, pattern := range included(patterns, base) {
		names, _ := filepath.Glob(pattern) // a bad pattern has no files
		for _, name := range names {
			if text, err := os.ReadFile(name); err == nil && c.condition(name, text, base, 1) == "" { //nolint:gosec // as above
				files = append(files, name)
			}
		}
	}
	if len(files) == 0 {
		return ""
	}
	return "Include " + strings.Join(files, " ")
}

// asked has OpenSSH's client say what the files mean. It would look for the user's file where the list of users has the
// home; so it gets a file that includes both.
func (c *configFiles) asked(ctx context.Context, h hosts.Host) (lookup, error) {
	args := []string{"-F", "/dev/stdin", "-G"}
	if h.User != "" {
		args = append(args, "-l", h.User)
	}
	if h.Port != 0 {
		args = append(args, "-p", strconv.Itoa(h.Port))
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // conditions may run programs
	defer cancel()
	out, err := c.ask(ctx, append(args, "--", h.Name), fmt.Sprintf("Include %q\nInclude %q\n", c.user(), systemConfig))
	if err != nil {
		return nil, errhint.Code(fmt.Errorf("cannot read ssh's configuration for host %s: ssh -G: %w", h.Name, err), errhint.Usage)
	}
	values := map[string][]string{}
	for line := range strings.SplitSeq(out, "\n") {
		if name, value, ok := strings.Cut(line, " "); ok {
			values[name] = append(values[name], value)
		}
	}
	// It says its defaults as well, and these two are not ours.
	if keys := values["identityfile"]; len(keys) > 4 &&
		!slices.ContainsFunc(keys, func(k string) bool { return !strings.HasPrefix(k, "~/.ssh/id_") }) {
		delete(values, "identityfile")
	}
	if slices.Equal(values["connecttimeout"], []string{"none"}) {
		delete(values, "connecttimeout")
	}
	return func(name string) []string { return values[name] }, nil
}
