package sshexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/crypto/ssh"

	"muster/internal/errhint"
	"muster/internal/printable"
)

// Reason is why a machine was not reached, or why nothing could be started there.
type Reason int

// The reasons.
const (
	Failed         Reason = iota // for a reason that is not known better
	NameUnknown                  // nobody knows the address of the name
	Refused                      // nobody listens at the port
	Unreachable                  // no route leads there
	TimedOut                     // no answer in time
	Closed                       // the connection ended before we were let in
	Lost                         // the connection ended later
	NotSSH                       // what listens there does not speak ssh, or not as we do
	AuthFailed                   // we are not let in
	HostKeyUnknown               // its key is not known, and strictness asks for that
	HostKeyChanged               // its key is not the one that is known, or is revoked
	NoProgram                    // our binary can neither be found nor brought there
)

// transient says which reasons may be gone a moment later: the machine boots, or its name is not yet known.
func (r Reason) transient() bool {
	switch r {
	case Failed, NameUnknown, Refused, Unreachable, TimedOut, Closed, Lost:
		return true
	case NotSSH, AuthFailed, HostKeyUnknown, HostKeyChanged, NoProgram:
		return false
	default:
		return false
	}
}

// Error is a machine on which nothing could be started, or to which the connection was lost.
type Error struct {
	// Host is its name as it was given, Addr where it was sought (empty where only a program knows), User who was to
	// log in.
	Host, Addr, User string
	// Jump is true where the machine is one that others are reached through.
	Jump   bool
	Reason Reason
	Err    error
}

func (e *Error) Error() string {
	what := "host"
	if e.Jump {
		what = "jump host"
	}
	var where []string
	if e.User != "" {
		where = append(where, "as "+e.User)
	}
	if e.Addr != "" {
		where = append(where, "at "+e.Addr)
	}
	at := ""
	if len(where) > 0 {
		at = " (" + strings.Join(where, " ") + ")"
	}
	switch e.Reason {
	case Lost:
		return fmt.Sprintf("lost the connection to %s %s%s: %v", what, e.Host, at, e.Err)
	case NoProgram:
		return fmt.Sprintf("cannot start muster on %s %s%s: %v", what, e.Host, at, e.Err)
	default:
		return fmt.Sprintf("cannot reach %s %s%s: %v", what, e.Host, at, e.Err)
	}
}

func (e *Error) Unwrap() error { return e.Err }

// Transient reports whether what failed may work a moment later, because the machine is not up yet: its name is not
// known, nobody listens, no answer comes, or the connection ends while we log in. A key that is refused stays so.
func Transient(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason.transient()
}

// fail makes the error of a machine. It carries the status with which muster ends, and a hint where there is one.
func (s *settings) fail(reason Reason, hint string, err error) error {
	e := &Error{Host: s.name, Addr: s.addr(), User: s.user, Jump: s.jump, Reason: reason, Err: err}
	return errhint.Code(withHint(e, hint), errhint.TryAgain)
}

func withHint(err error, hint string) error {
	if hint == "" {
		return err
	}
	return errhint.With(err, hint)
}

// dialFailed explains why no connection came about, after how long.
func (s *settings) dialFailed(ctx context.Context, err error, took time.Duration) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		return s.fail(Failed, "", cause) // nobody wants it any more
	}
	up := "is the machine up, and does every firewall on the way let the port through?"
	refused := "does sshd run there, at this port? another port can be given by --ssh-port, by port=N in a hostfile, or in ssh's " +
		"configuration"
	if open, ok := errors.AsType[*ssh.OpenChannelError](err); ok { // the jump host tells
		return s.throughFailed(open, refused, up)
	}
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case isDNS && dns.IsNotFound:
		return s.fail(NameUnknown, "is the name right? it must be in DNS, in /etc/hosts or in ssh's configuration here",
			fmt.Errorf("nobody knows the name %s", s.hostname))
	case isDNS:
		return s.fail(NameUnknown, "is the name server reachable from here?", fmt.Errorf("cannot look up the name %s: %w", s.hostname, err))
	case errors.Is(err, syscall.ECONNREFUSED):
		return s.fail(Refused, refused, errors.New("connection refused"))
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return s.fail(Unreachable, up, errors.New("no route to the host"))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT),
		isTimeout(err):
		const least = 100 * time.Millisecond
		return s.fail(TimedOut, up, fmt.Errorf("no answer within %v", min(s.timeout, max(took.Round(least), least))))
	default:
		return s.fail(Failed, "", err)
	}
}

func isTimeout(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// throughFailed explains what a jump host said of the machine behind it.
func (s *settings) throughFailed(open *ssh.OpenChannelError, refused, up string) error {
	said := fmt.Errorf("the jump host %s says: %s", s.jumps[len(s.jumps)-1], oneLine(open.Message))
	if open.Reason == ssh.Prohibited {
		return s.fail(AuthFailed, "its sshd must allow TCP forwarding (AllowTcpForwarding, PermitOpen)", said)
	}
	switch reason := reasonOf(open.Message); reason {
	case Refused:
		return s.fail(reason, refused, said)
	case NameUnknown:
		return s.fail(reason, "the jump host must know the name; HostName in ssh's configuration may give it an address", said)
	default:
		return s.fail(reason, up, said)
	}
}

// reasonOf reads a reason from what OpenSSH writes: its client about a connection, its server about one that a client
// wanted through it. Nothing but text comes from there.
func reasonOf(text string) Reason {
	for _, known := range []struct {
		part   string
		reason Reason
	}{
		{"host key is known for", HostKeyUnknown},
		{"Host key verification failed", HostKeyChanged},
		{"Permission denied (", AuthFailed},
		{"Too many authentication failures", AuthFailed},
		{"Could not resolve hostname", NameUnknown},
		{"Name or service not known", NameUnknown},
		{"Temporary failure in name resolution", NameUnknown},
		{"Connection refused", Refused},
		{"No route to host", Unreachable},
		{"Network is unreachable", Unreachable},
		{"timed out", TimedOut},
		{"not responding", Lost},
		{"Connection closed by", Closed},
		{"Connection reset by", Closed},
		{"kex_exchange_identification", Closed},
	} {
		if strings.Contains(text, known.part) {
			return known.reason
		}
	}
	return Failed
}

// handshakeFailed explains why the two sides did not agree.
func (s *settings) handshakeFailed(ctx context.Context, a *attempt, err error) error {
	if a.hostKey != nil {
		return a.hostKey
	}
	if cause := context.Cause(ctx); cause != nil {
		if !errors.Is(cause, context.DeadlineExceeded) {
			return s.fail(Failed, "", cause)
		}
		return s.fail(TimedOut, "is this the port of an sshd, and is the machine overloaded?",
			fmt.Errorf("it took the connection, and did not finish the login within %v", handshakes*s.timeout))
	}
	if n, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); ok {
		if len(a.known) > 0 {
			return s.fail(HostKeyChanged, s.forget(), fmt.Errorf("it has no host key of the kind that is known for it (%s): %w",
				strings.Join(a.known, ", "), n))
		}
		return s.fail(NotSSH, "OpenSSH's own client may know the algorithms of an old server: --ssh-program ssh", n)
	}
	if brokenOff(err) {
		hint := "its sshd may be starting, or have too many logins at once (MaxStartups), or not let this machine in"
		if a.methods != nil {
			hint = "its sshd may have too many logins at once, or was offered too many keys: name the right one with --ssh-identity"
		}
		if p, ok := errors.AsType[*proxyError](err); ok {
			return s.fail(Closed, "try the command by hand: "+s.proxy, p)
		}
		return s.fail(Closed, hint, errors.New("it closed the connection before the login was complete"))
	}
	if a.methods != nil || strings.Contains(err.Error(), "unable to authenticate") {
		return s.authFailed(a, err)
	}
	return s.fail(NotSSH, "is this the port of an sshd?", err)
}

// brokenOff reports whether err is the end of a connection, and nothing that the other side has said.
func brokenOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}

// authFailed says what was tried, and what would have been asked for.
func (s *settings) authFailed(a *attempt, err error) error {
	text := "it takes none of our keys"
	noKeys := len(a.methods) > 0 && !slices.Contains(a.methods, "publickey")
	switch {
	case strings.Contains(err.Error(), "Too many authentication failures"):
		text = "it stopped listening after too many keys"
	case a.partial:
		text = "it took a key, and asks for more"
	case noKeys:
		text = "it takes no keys"
	case len(a.tried) == 0:
		text = "there is no key to log in with"
	}
	if len(a.tried) > 0 && (a.partial || !noKeys) {
		text += "; tried: " + strings.Join(a.tried, ", ")
	}
	if len(a.skipped) > 0 {
		text += "; not used: " + strings.Join(a.skipped, ", ")
	}
	if len(a.methods) > 0 {
		text += "; it takes: " + strings.Join(a.methods, ", ")
	}
	var hint string
	switch login := s.user + "@" + s.hostname; {
	case strings.Contains(err.Error(), "Too many authentication failures"):
		hint = "name the right key with --ssh-identity, or with IdentityFile and IdentitiesOnly in ssh's configuration"
	case noKeys, a.partial:
		hint = "muster never asks for a password: let the machine take keys alone (PubkeyAuthentication, AuthenticationMethods in its " +
			"sshd_config)"
	case a.encrypted != "":
		hint = "load the encrypted key into an agent: ssh-add " + shellescape.Quote(a.encrypted)
	case len(a.tried) == 0:
		hint = fmt.Sprintf("make a key with ssh-keygen and let it in with ssh-copy-id -p %d %s, or name one with --ssh-identity",
			s.port, login)
	default:
		hint = fmt.Sprintf("let the key in with ssh-copy-id -p %d %s, name another with --ssh-identity, or check the user's name",
			s.port, login)
	}
	return s.fail(AuthFailed, hint, errors.New(text))
}

// oneLine makes what the other side said fit to be shown in an error: its last lines, as one.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return printable.Line(strings.Join(lines[max(0, len(lines)-4):], "; "), 1000)
}
