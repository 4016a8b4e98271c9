package sshexec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"al.essio.dev/pkg/shellescape"
	"github.com/rs/zerolog"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"

	"muster/internal/durable"
)

// hostKeys are the keys of machines that this user knows. Its methods may be called by several goroutines at once.
type hostKeys struct {
	log zerolog.Logger

	mu      sync.Mutex
	read    map[string]*knownFiles   // by the names of the files
	learned map[string]ssh.PublicKey // by address, accepted since we run: also those that no file could take
}

// knownFiles is what some files said when they had these stamps.
type knownFiles struct {
	db     *knownhosts.HostKeyDB
	stamps []string
	origin map[string]string // a copy's path, and the file that it is a copy of
}

// loadLocked reads files, unless they are as they were.
func (k *hostKeys) loadLocked(files []string) (*knownFiles, error) {
	var present, stamps []string
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil || !st.Mode().IsRegular() {
			continue // there need be none, and /dev/null is how some say so
		}
		present = append(present, f)
		stamps = append(stamps, fmt.Sprint(f, st.Size(), st.ModTime().UnixNano()))
	}
	name := strings.Join(files, "\n")
	if had := k.read[name]; had != nil && slices.Equal(had.stamps, stamps) {
		return had, nil
	}
	loaded := &knownFiles{stamps: stamps}
	db, err := knownhosts.NewDB(present...)
	if err != nil {
		if db, loaded.origin, err = k.withoutOddLines(present); err != nil {
			return nil, fmt.Errorf("cannot read the known host keys: %w", err)
		}
	}
	loaded.db = db
	if k.read == nil {
		k.read = map[string]*knownFiles{}
	}
	k.read[name] = loaded
	return loaded, nil
}

// withoutOddLines reads copies of the files, less the lines that cannot be understood: the library takes a single one,
// for example with a kind of key that has gone out of use, for the end of everything. OpenSSH passes over them.
func (k *hostKeys) withoutOddLines(files []string) (db *knownhosts.HostKeyDB, origin map[string]string, err error) {
	dir, err := durable.MkdirTemp(os.TempDir(), "muster-known-hosts-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	origin = map[string]string{}
	var copies []string
	for i, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, nil, err
		}
		lines := bytes.Split(text, []byte("\n"))
		path := filepath.Join(dir, strconv.Itoa(i))
		for n, line := range lines {
			if err := os.WriteFile(path, line, 0o600); err != nil { //nolint:gosec // a number in a directory of ours
				return nil, nil, err
			}
			if _, err := xknownhosts.New(path); err != nil {
				k.log.Warn().Str("file", f).Int("line", n+1).Err(err).Msg("a known host key cannot be read, and is passed over")
				lines[n] = nil
			}
		}
		if err := os.WriteFile(path, bytes.Join(lines, []byte("\n")), 0o600); err != nil { //nolint:gosec // as above
			return nil, nil, err
		}
		copies, origin[path] = append(copies, path), f
	}
	db, err = knownhosts.NewDB(copies...)
	return db, origin, err
}

// place is where a known key stands, file:line.
func (f *knownFiles) place(k xknownhosts.KnownKey) string {
	file := k.Filename
	if o, ok := f.origin[file]; ok {
		file = o
	}
	return file + ":" + strconv.Itoa(k.Line)
}

// knownAddr is what the files call the machine, host:port.
func (s *settings) knownAddr() string {
	if s.alias != "" {
		return net.JoinHostPort(s.alias, "22") // an alias stands there without a port
	}
	return s.addr()
}

// forget is the hint for a key that is not the known one.
func (s *settings) forget() string {
	file := ""
	if len(s.known) > 0 {
		file = " -f " + shellescape.Quote(s.known[0])
	}
	return fmt.Sprintf("if the machine was installed anew, forget its old key: ssh-keygen -R '%s'%s",
		knownhosts.Normalize(s.knownAddr()), file)
}

// plainKeys are the algorithms that a machine is asked for whose key is not known, in the order of OpenSSH's client: so
// both write down the same key.
var plainKeys = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}

// check returns the callback that decides about the key of a machine, and the algorithms to ask it for: those of keys
// that are known, so that it shows one of these. What it decides is left in a.
func (k *hostKeys) check(s *settings, a *attempt) (ssh.HostKeyCallback, []string, error) {
	if s.hostKeys == "off" {
		return ssh.InsecureIgnoreHostKey(), nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	files, err := k.loadLocked(s.known)
	if err != nil {
		return nil, nil, s.fail(HostKeyUnknown, "", err)
	}
	a.known = files.db.HostKeyAlgorithms(s.knownAddr())
	algorithms := a.known
	if !slices.ContainsFunc(files.db.HostKeys(s.knownAddr()), func(p knownhosts.PublicKey) bool { return !p.Cert }) {
		// Nothing is known, or authorities alone: a machine that has no certificate of theirs is to show its bare key.
		algorithms, a.known = append(slices.Clone(algorithms), plainKeys...), nil
	}
	return func(_ string, remote net.Addr, key ssh.PublicKey) error {
		a.hostKey = k.decide(s, remote, key)
		return a.hostKey
	}, algorithms, nil
}

// decide lets a key pass, or says why not.
func (k *hostKeys) decide(s *settings, remote net.Addr, key ssh.PublicKey) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	files, err := k.loadLocked(s.known)
	if err != nil {
		return s.fail(HostKeyUnknown, "", err)
	}
	unknown, err := k.verdict(s, files, remote, key)
	if err != nil || !unknown {
		return err
	}
	if s.hostKeys == "strict" {
		return s.fail(HostKeyUnknown,
			fmt.Sprintf("add it with: ssh-keyscan -p %d %s, after a look at the fingerprint; or let muster accept new keys", s.port,
				s.hostname),
			fmt.Errorf("its host key is not known (%s %s)", key.Type(), ssh.FingerprintSHA256(key)))
	}
	return k.learnLocked(s, remote, key)
}

// verdict compares a key with the known ones. unknown means that there is none for the machine.
func (k *hostKeys) verdict(s *settings, files *knownFiles, remote net.Addr, key ssh.PublicKey) (unknown bool, err error) {
	err = files.db.HostKeyCallback()(s.knownAddr(), placeOf(remote), key)
	if err == nil {
		return false, nil
	}
	if revoked, ok := errors.AsType[*xknownhosts.RevokedError](err); ok {
		return false, s.fail(HostKeyChanged, "do not use this machine: its key was declared stolen",
			fmt.Errorf("its host key is revoked in %s", files.place(revoked.Revoked)))
	}
	mismatch, ok := errors.AsType[*xknownhosts.KeyError](err)
	if !ok {
		return false, s.fail(HostKeyChanged, "", fmt.Errorf("its host key is not accepted: %w", err))
	}
	authorities := 0
	for _, known := range files.db.HostKeys(s.knownAddr()) {
		if known.Cert {
			authorities++
		}
	}
	if len(mismatch.Want) > authorities {
		return false, s.changed(files.place(mismatch.Want[0]), key)
	}
	if learned := k.learned[s.knownAddr()]; learned != nil {
		if !bytes.Equal(learned.Marshal(), key.Marshal()) {
			return false, s.changed("a connection a moment ago", key)
		}
		return false, nil
	}
	return true, nil
}

func (s *settings) changed(where string, key ssh.PublicKey) error {
	return s.fail(HostKeyChanged, s.forget(),
		fmt.Errorf("its host key has changed: it is not the one of %s, but %s %s; somebody may be listening in",
			where, key.Type(), ssh.FingerprintSHA256(key)))
}

// placeOf is an address in the form that the library takes: what comes through a jump host or a program has none.
func placeOf(remote net.Addr) net.Addr {
	if a, ok := remote.(*net.TCPAddr); ok && a.IP != nil {
		return a
	}
	return &net.TCPAddr{IP: net.IPv4zero}
}

// learnLocked adds a key to the user's file. Others may do the same now: the file is locked, and read again before.
func (k *hostKeys) learnLocked(s *settings, remote net.Addr, key ssh.PublicKey) error {
	if k.learned == nil {
		k.learned = map[string]ssh.PublicKey{}
	}
	log := k.log.With().Str("host", s.name).Str("addr", s.addr()).Str("key", key.Type()+" "+ssh.FingerprintSHA256(key)).Logger()
	if len(s.known) == 0 {
		k.learned[s.knownAddr()] = key
		log.Info().Msg("host key accepted")
		return nil
	}
	added, err := k.appendLocked(s, remote, key)
	if err != nil {
		if _, refused := errors.AsType[*Error](err); refused {
			return err
		}
		log.Warn().Err(err).Msg("host key accepted, and not written down")
	} else if added {
		log.Info().Str("file", s.known[0]).Msg("host key accepted")
	}
	k.learned[s.knownAddr()] = key
	return nil
}

func (k *hostKeys) appendLocked(s *settings, remote net.Addr, key ssh.PublicKey) (added bool, err error) {
	file := s.known[0]
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return false, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX) // some network file systems have no locks; then a key may stand there twice
	files, err := k.loadLocked(s.known)
	if err != nil {
		return false, err
	}
	if unknown, err := k.verdict(s, files, remote, key); err != nil || !unknown {
		return false, err
	}
	name := knownhosts.Normalize(s.knownAddr())
	if s.hash {
		name = xknownhosts.HashHostname(name)
	}
	line := name + " " + string(ssh.MarshalAuthorizedKey(key)) // which ends the line
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, st.Size()-1); err == nil && last[0] != '\n' {
			line = "\n" + line
		}
	}
	_, err = io.WriteString(f, line) // at once, so that readers see all of it or nothing
	return true, err
}
