package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
	"muster/internal/lazyregexp"
)

// Bounds of a hostfile, in bytes: a line is a name and a few settings, a file may have MaxHosts of them.
const (
	MaxFile = 8 << 20
	maxLine = 4096
)

// File is what a hostfile says.
type File struct {
	// Hosts are the machines in the order of the file.
	Hosts []Host
	// Warnings are what was passed over, one sentence each.
	Warnings []string
}

// Any reads muster's own form of a hostfile, which takes those of the launchers that it replaces together. A line is
//
//	[USER@]HOST[:SLOTS] [slots=N] [port=N] [user=NAME]
//
// with an IPv6 address in brackets where slots follow, and a hostlist of Slurm for many hosts at once. Blanks around =
// do not matter. A host may stand there once. name is the file's, for messages; what is wrong is reported together, as
// a *multierror.Error.
func Any(name string, content []byte) (File, error) {
	return readFile(name, content, false, func(t *table, n int, text string) error {
		words := settingWords(text)
		found, err := parseItem(words[0])
		if err != nil {
			return err
		}
		var s lineSettings
		if err := s.read(words[1:], "slots", "port", "user"); err != nil {
			return err
		}
		t.ignored(n, s.ignored)
		for _, h := range found {
			switch {
			case s.slots > 0 && h.Slots > 0:
				return errors.New("the slots are there twice: behind the host and as slots=")
			case s.user != "" && h.User != "":
				return errors.New("the user is there twice: in front of the host and as user=")
			}
			h.Slots, h.Port = max(h.Slots, s.slots), s.port
			if s.user != "" {
				h.User = s.user
			}
			t.add(n, h)
		}
		return nil
	})
}

// MPI reads a hostfile as Open MPI has it, "HOST [slots=N] [max_slots=N]", and as MPICH has it, "HOST[:N]". A host that
// stands there again has more slots, and a line without a number counts as one slot.
func MPI(name string, content []byte) (File, error) {
	return readFile(name, content, true, func(t *table, n int, text string) error {
		words := settingWords(text)
		if strings.HasPrefix(words[0], "^") || strings.HasPrefix(words[0], "+") {
			return fmt.Errorf("%.80q leaves hosts out or counts them, which is not supported: name the hosts", words[0])
		}
		h, err := parseSlotted(words[0])
		if err != nil {
			return err
		}
		var s lineSettings
		if err := s.read(words[1:], "slots", "cpu", "count", "port", "user"); err != nil {
			return err
		}
		if s.slots > 0 && h.Slots > 0 {
			return errors.New("the slots are there twice: behind the host and as slots=")
		}
		h.Slots, h.Port = max(h.Slots, s.slots), s.port
		if h.User == "" {
			h.User = s.user
		}
		t.ignored(n, s.ignored)
		t.add(n, h)
		return nil
	})
}

// Horovod reads a hostfile of horovodrun: "HOST", "HOST slots=N" or "HOST:N", each host once.
func Horovod(name string, content []byte) (File, error) {
	return readFile(name, content, false, func(t *table, n int, text string) error {
		words := settingWords(text)
		h, err := parseSlotted(words[0])
		if err != nil {
			return err
		}
		var s lineSettings
		if err := s.read(words[1:], "slots"); err != nil {
			return err
		}
		if s.slots > 0 && h.Slots > 0 {
			return errors.New("the slots are there twice: behind the host and as slots=")
		}
		h.Slots = max(h.Slots, s.slots)
		t.ignored(n, s.ignored)
		t.add(n, h)
		return nil
	})
}

// deepSpeedLine is a host with its slots; DeepSpeed passes over what follows.
var deepSpeedLine = lazyregexp.New(`^(\S+)\s+slots=([0-9]+)`)

// DeepSpeed reads a hostfile of DeepSpeed: "HOST slots=N", each host once. What follows the slots is not looked at.
func DeepSpeed(name string, content []byte) (File, error) {
	return readFile(name, content, false, func(t *table, n int, text string) error {
		m := deepSpeedLine().FindStringSubmatch(text)
		if m == nil {
			return fmt.Errorf("%.80q is not of the form HOST slots=N", text)
		}
		h, err := parseName(m[1])
		if err != nil {
			return err
		}
		h.Slots, err = parseSlots(m[2])
		if err != nil {
			return err
		}
		t.add(n, h)
		return nil
	})
}

// Colossal reads a hostfile of Colossal-AI: a host's name on each line and nothing else, each host once.
func Colossal(name string, content []byte) (File, error) {
	return readFile(name, content, false, func(t *table, n int, text string) error {
		if words := strings.Fields(text); len(words) > 1 {
			return errhint.With(fmt.Errorf("the host %.80q has more behind it: a line is a host's name and nothing else", words[0]),
				"say how many workers each host has by --nproc_per_node")
		}
		h, err := parseName(text)
		if err != nil {
			return err
		}
		t.add(n, h)
		return nil
	})
}

// readFile gives the lines of a hostfile to parse: without blanks around them, comments, and lines that are empty then.
// A comment begins with # at the start of a line or behind a blank.
func readFile(name string, content []byte, adds bool, parse func(t *table, n int, text string) error) (File, error) {
	if len(content) > MaxFile {
		return File{}, fmt.Errorf("cannot read %s: %d bytes exceed the limit of %d", name, len(content), MaxFile)
	}
	t := table{adds: adds, place: func(n int) string { return name + ":" + strconv.Itoa(n) }}
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")) // editors on Windows write it
	n := 0
	for raw := range bytes.Lines(content) {
		n++
		text := strings.TrimRight(string(raw), "\r\n")
		switch {
		case len(text) > maxLine:
			t.bad(n, fmt.Errorf("a line of %d bytes exceeds the limit of %d", len(text), maxLine))
			continue
		case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\t' && unicode.IsControl(r) }):
			t.bad(n, errors.New("it is no text: a control character or a byte that is not UTF-8 is in it"))
		default:
			if text = strings.TrimSpace(withoutComment(text)); text != "" {
				if err := parse(&t, n, text); err != nil {
					t.bad(n, err)
				}
			}
		}
		if t.full() {
			break
		}
	}
	if len(t.hosts) == 0 && t.wrong == nil {
		t.wrong = multierror.Append(t.wrong, fmt.Errorf("%s names no host", name))
	}
	if err := t.wrong.ErrorOrNil(); err != nil {
		return File{}, err
	}
	return File{t.hosts, t.warnings}, nil
}

func withoutComment(text string) string {
	for i := range len(text) {
		if text[i] == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
			return text[:i]
		}
	}
	return text
}

// blanksAround are those around the = of a setting.
var blanksAround = lazyregexp.New(`\s*=\s*`)

// settingWords are the words of a line, "slots = 4" being one; there is at least one.
func settingWords(text string) []string {
	return strings.Fields(blanksAround().ReplaceAllString(text, "="))
}

// parseSlotted reads [USER@]HOST[:SLOTS], one host.
func parseSlotted(word string) (Host, error) {
	found, err := parseItem(word)
	switch {
	case err != nil:
		return Host{}, err
	case len(found) != 1:
		return Host{}, fmt.Errorf("%.80q stands for %d hosts: write each on a line of its own", word, len(found))
	}
	return found[0], nil
}

// lineSettings are what follows a host on its line.
type lineSettings struct {
	slots, port int
	user        string
	ignored     []string
}

// read reads words such as slots=4, each of the names in known once.
func (s *lineSettings) read(words []string, known ...string) error {
	seen := map[string]bool{}
	for _, word := range words {
		name, text, ok := strings.Cut(word, "=")
		name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
		if !ok {
			return fmt.Errorf("%.80q stands behind the host: write %s=…", word, strings.Join(known, "=…, "))
		}
		if bound := name == "max_slots" || name == "slots_max"; bound {
			s.ignored = append(s.ignored, name)
			continue
		}
		index := -1
		for i, k := range known {
			if k == name {
				index = i
			}
		}
		if index < 0 {
			return fmt.Errorf("the setting %.80q is unknown: there are %s", name, strings.Join(known, ", "))
		}
		var err error
		switch name {
		case "port":
			s.port, err = strconv.Atoi(text)
			if err != nil || s.port < 1 || s.port > 65535 {
				err = fmt.Errorf("%.80q is no port: give a number from 1 to 65535", text)
			}
		case "user":
			if s.user = text; !IsUser(text) {
				err = fmt.Errorf("%.80q is no user's name", text)
			}
		default: // slots, and Open MPI's other words for them
			name = "slots"
			s.slots, err = parseSlots(text)
		}
		switch {
		case err != nil:
			return err
		case seen[name]:
			return fmt.Errorf("%s is there twice", name)
		}
		seen[name] = true
	}
	return nil
}

// maxWarnings bounds what is told of one file.
const maxWarnings = 5

// ignored warns of settings that have no effect.
func (t *table) ignored(n int, names []string) {
	for _, name := range names {
		if len(t.warnings) < maxWarnings {
			t.warnings = append(t.warnings,
				fmt.Sprintf("%s: %s has no effect: muster starts no more workers than there are slots", t.place(n), name))
		}
	}
}
