package sshexec

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"muster/internal/errhint"
	"muster/internal/hosts"
)

// settings are how one machine is reached, after everything that says something of it was read.
type settings struct {
	name     string // as it was given
	hostname string // a name or an address
	port     int
	user     string
	jump     bool // it is one that others are reached through
	network  string
	timeout  time.Duration // of a connection; the login may take handshakes times as long

	alias       string // what known_hosts calls it; empty: hostname
	hostKeys    string // "accept-new", "strict" or "off"
	known       []string
	hash        bool // names go into known_hosts as hashes
	identities  []identity
	onlyThose   bool   // of the agent's keys, only those that identities name
	agent       string // its socket; empty: none
	jumps       []string
	proxy       string // a command of the shell; empty: none
	aliveEvery  time.Duration
	aliveMisses int
}

// identity is a file with a private key.
type identity struct {
	path  string
	asked bool // somebody named it: that it cannot be used is worth saying
}

// handshakes is how many times the limit for a connection the login may take: logins are slow where directories of
// users are.
const handshakes = 3

func (s *settings) addr() string { return net.JoinHostPort(s.hostname, strconv.Itoa(s.port)) }

// own are the options that Config.Options may set, in lower case, and whether they hold for jump hosts as well. What is
// not among them is refused, since it would have no effect.
var own = map[string]bool{
	"addressfamily": true, "batchmode": true, "connecttimeout": true, "globalknownhostsfile": true, "hashknownhosts": true,
	"hostkeyalias": false,
	"hostname":     false, "identitiesonly": true, "identityagent": true, "identityfile": true, "port": false, "proxycommand": false,
	"proxyjump": false, "serveralivecountmax": true, "serveraliveinterval": true, "stricthostkeychecking": true, "user": false,
	"userknownhostsfile": true,
}

// parseOptions reads "Name=value", or "Name value" as ssh's -o takes it too.
func parseOptions(options []string, program bool) (map[string][]string, error) {
	parsed := map[string][]string{}
	for _, o := range options {
		i := strings.IndexAny(o, "= \t")
		if i <= 0 || strings.TrimLeft(o[i:], "= \t") == "" {
			return nil, errhint.Usagef("cannot use the ssh option %q: it must be Name=value", o)
		}
		name := strings.ToLower(o[:i])
		if _, known := own[name]; !known && !program {
			return nil, errhint.With(errhint.Usagef("cannot use the ssh option %q: muster's own ssh does not have it", o[:i]),
				"let OpenSSH's client do it: --ssh-program ssh")
		}
		value := strings.TrimSpace(strings.TrimLeft(o[i:], "= \t"))
		if name == "batchmode" && value != "yes" && !program {
			return nil, errhint.Usagef("cannot use the ssh option %q: muster never asks a person", o)
		}
		parsed[name] = append(parsed[name], value)
	}
	return parsed, nil
}

// lookup returns the values of an option for one machine, those that win first.
type lookup func(name string) []string

func (l lookup) first(name, fallback string) string {
	if v := l(name); len(v) > 0 {
		return v[0]
	}
	return fallback
}

func (l lookup) number(name string, fallback, least, most int) (int, error) {
	v := l(name)
	if len(v) == 0 {
		return fallback, nil
	}
	n, err := strconv.Atoi(v[0])
	if err != nil || n < least || n > most {
		return 0, errhint.Usagef("cannot use ssh's option %s %q: it must be a number from %d to %d", name, v[0], least, most)
	}
	return n, nil
}

// resolve finds out how a machine is reached. A jump host is not asked for the user, the port and the name that were
// given for the machine behind it.
func (d *Dialer) resolve(ctx context.Context, h hosts.Host, jump bool) (*settings, error) {
	if h.Name == "" || strings.HasPrefix(h.Name, "-") || strings.ContainsAny(h.Name, " \t\r\n\x00") {
		return nil, errhint.Usagef("cannot reach a host by ssh whose name is %q", h.Name)
	}
	s := &settings{name: h.Name, jump: jump}
	files, err := d.files.of(ctx, h)
	if err != nil {
		return nil, err
	}
	get := lookup(func(name string) []string {
		var values []string
		if all := own[name]; all || !jump {
			values = append(values, d.options[name]...)
		}
		return append(values, files(name)...)
	})
	if err := s.fill(d, h, get); err != nil {
		return nil, fmt.Errorf("cannot reach host %s: %w", h.Name, err)
	}
	return s, nil
}

func (s *settings) fill(d *Dialer, h hosts.Host, get lookup) (err error) {
	given := d.cfg
	if s.jump {
		given.User, given.Port = "", 0
	}
	s.user = firstOf(h.User, given.User, get.first("user", ""), d.me)
	if s.user == "" {
		return errhint.Usagef("nothing says as which user to log in")
	}
	if s.port = firstOf(h.Port, given.Port); s.port == 0 {
		if s.port, err = get.number("port", 22, 1, 65535); err != nil {
			return err
		}
	}
	if s.hostname, err = d.expand(get.first("hostname", h.Name), map[byte]string{'h': h.Name}); err != nil {
		return err
	}
	s.hostname = strings.ToLower(strings.Trim(s.hostname, "[]"))
	tokens := d.tokens(s)
	s.network = map[string]string{"inet": "tcp4", "inet6": "tcp6"}[get.first("addressfamily", "")]
	s.network = firstOf(s.network, "tcp")
	if s.timeout = d.cfg.ConnectTimeout; s.timeout == 0 {
		n, err := get.number("connecttimeout", 0, 0, 1<<20)
		if err != nil {
			return err
		}
		s.timeout = firstOf(time.Duration(n)*time.Second, defaultConnectTimeout)
	}
	if err := s.fillAlive(d, get); err != nil {
		return err
	}
	if err := s.fillHostKeys(d, get, tokens); err != nil {
		return err
	}
	if err := s.fillKeys(d, get, tokens); err != nil {
		return err
	}
	return s.fillProxy(d, get, tokens)
}

func firstOf[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

func (s *settings) fillAlive(d *Dialer, get lookup) error {
	s.aliveEvery, s.aliveMisses = d.cfg.Alive, aliveMisses
	if s.aliveEvery != 0 {
		return nil
	}
	n, err := get.number("serveraliveinterval", 0, 0, 1<<20)
	if err != nil {
		return err
	}
	if s.aliveEvery = aliveEvery; n > 0 { // 0, the default, is never: a machine that is gone would be waited for
		s.aliveEvery = time.Duration(n) * time.Second
	}
	s.aliveMisses, err = get.number("serveralivecountmax", aliveMisses, 1, 1000)
	return err
}

func (s *settings) fillHostKeys(d *Dialer, get lookup, tokens map[byte]string) (err error) {
	if s.hostKeys = d.cfg.HostKeys; s.hostKeys == "" {
		switch get.first("stricthostkeychecking", "") {
		case "yes", "true":
			s.hostKeys = "strict"
		case "no", "off", "false":
			s.hostKeys = "off"
		default: // "ask" among them, and nobody can be asked
			s.hostKeys = "accept-new"
		}
	}
	s.alias = strings.ToLower(get.first("hostkeyalias", ""))
	s.hash = get.first("hashknownhosts", "no") == "yes"
	user := get.first("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
	global := get.first("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2")
	for _, file := range append(splitFiles(user), splitFiles(global)...) {
		path, err := d.expandPath(file, tokens)
		if err != nil {
			return err
		}
		s.known = append(s.known, path) // the first one takes new keys
	}
	return nil
}

// splitFiles splits a list of files, of which each may be in double quotes.
func splitFiles(list string) []string {
	if list == "none" {
		return nil
	}
	quoted := regexp.MustCompile(`"([^"]*)"|[^\s"]+`)
	var files []string
	for _, m := range quoted.FindAllStringSubmatch(list, -1) {
		files = append(files, firstOf(m[1], strings.Trim(m[0], `"`)))
	}
	return files
}

// fillKeys lists the keys in the order in which they are tried.
func (s *settings) fillKeys(d *Dialer, get lookup, tokens map[byte]string) error {
	s.onlyThose = get.first("identitiesonly", "no") == "yes"
	var asked []string
	if d.cfg.Identity != "" {
		asked = append(asked, d.cfg.Identity)
		s.onlyThose = true
	}
	asked = append(asked, get("identityfile")...)
	for _, file := range asked {
		if file == "none" {
			continue
		}
		path, err := d.expandPath(strings.Trim(file, `"`), tokens)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(s.identities, func(i identity) bool { return i.path == path }) {
			s.identities = append(s.identities, identity{path: path, asked: true})
		}
	}
	if len(asked) == 0 {
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			s.identities = append(s.identities, identity{path: filepath.Join(d.cfg.Home, ".ssh", name)})
		}
	}
	socket, _ := d.cfg.Env("SSH_AUTH_SOCK")
	switch agent := strings.Trim(get.first("identityagent", ""), `"`); {
	case agent == "none":
	case agent == "", agent == "SSH_AUTH_SOCK":
		s.agent = socket
	case strings.HasPrefix(agent, "$") && !strings.HasPrefix(agent, "${"):
		s.agent, _ = d.cfg.Env(agent[1:])
	default:
		path, err := d.expandPath(agent, tokens)
		if err != nil {
			return err
		}
		s.agent = path
	}
	return nil
}

func (s *settings) fillProxy(d *Dialer, get lookup, tokens map[byte]string) (err error) {
	// Of the two the one that is given first wins; where both come from files, their order is not known here, and few
	// have both.
	command, jump := get.first("proxycommand", ""), get.first("proxyjump", "")
	if jump != "" && jump != "none" {
		for hop := range strings.SplitSeq(jump, ",") {
			s.jumps = append(s.jumps, strings.TrimSpace(hop))
		}
		return nil
	}
	if command == "" || strings.EqualFold(command, "none") {
		return nil
	}
	if d.cfg.Tree == nil {
		return errhint.With(errhint.Usagef("ssh's configuration has a ProxyCommand for it, and no programs can be started here"),
			"use ProxyJump, or let OpenSSH's client do it: --ssh-program ssh")
	}
	s.proxy, err = d.expand(command, tokens)
	return err
}

// tokens are what stands for %h and its like.
func (d *Dialer) tokens(s *settings) map[byte]string {
	return map[byte]string{
		'h': s.hostname, 'n': s.name, 'p': strconv.Itoa(s.port), 'r': s.user, 'u': d.me, 'd': d.cfg.Home, 'l': d.thisHost,
		'L': strings.SplitN(d.thisHost, ".", 2)[0], 'k': firstOf(s.alias, s.name), 'i': strconv.Itoa(d.uid),
	}
}

// expand puts values in place of tokens and of ${NAME}.
func (d *Dialer) expand(text string, tokens map[byte]string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch end := strings.IndexByte(text[i:], '}'); {
		case text[i] == '%' && i+1 < len(text):
			i++
			value, known := tokens[text[i]]
			if text[i] == '%' {
				value, known = "%", true
			}
			if !known {
				return "", errhint.Usagef("cannot use %q of ssh's configuration: muster does not know what %%%c stands for", text, text[i])
			}
			b.WriteString(value)
		case strings.HasPrefix(text[i:], "${") && end > 0:
			name := text[i+2 : i+end]
			value, set := d.cfg.Env(name)
			if !set {
				return "", errhint.Usagef("cannot use %q of ssh's configuration: the variable %s is not set", text, name)
			}
			b.WriteString(value)
			i += end
		default:
			b.WriteByte(text[i])
		}
	}
	return b.String(), nil
}

// expandPath is expand for a file, which may be in the home directory, and is where it is relative.
func (d *Dialer) expandPath(path string, tokens map[byte]string) (string, error) {
	path, err := d.expand(path, tokens)
	if err != nil {
		return "", err
	}
	if rest, home := strings.CutPrefix(path, "~/"); home {
		path = filepath.Join(d.cfg.Home, rest)
	}
	return path, nil
}

// parseJump reads one machine of ProxyJump: [user@]host[:port], or the same as ssh://.
func parseJump(text string) (hosts.Host, error) {
	bad := func() (hosts.Host, error) {
		return hosts.Host{}, errhint.Usagef("cannot use ProxyJump %q: it must be [user@]host[:port]", text)
	}
	h := hosts.Host{Name: strings.TrimSuffix(strings.TrimPrefix(text, "ssh://"), "/")}
	if i := strings.LastIndexByte(h.Name, '@'); i >= 0 {
		h.User, h.Name = h.Name[:i], h.Name[i+1:]
	}
	if name, port, err := net.SplitHostPort(h.Name); err == nil {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return bad()
		}
		h.Name, h.Port = name, n
	}
	if h.Name = strings.Trim(h.Name, "[]"); h.Name == "" {
		return bad()
	}
	return h, nil
}
