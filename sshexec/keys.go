package sshexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// keys are what we log in with at one machine.
type keys struct {
	signers []ssh.Signer
	tried   []string // what they are called
	// skipped are the keys that cannot be used, with why; encrypted is the first file that an agent could open.
	skipped   []string
	encrypted string
	close     func()
}

func (k *keys) add(s ssh.Signer, name string) {
	blob := s.PublicKey().Marshal()
	if !slices.ContainsFunc(k.signers, func(have ssh.Signer) bool { return bytes.Equal(have.PublicKey().Marshal(), blob) }) {
		k.signers = append(k.signers, s)
		k.tried = append(k.tried, name)
	}
}

// keys gathers what there is to log in with. Files that somebody named come first, also those whose key only the agent
// can use; then what else the agent has; then the files that ssh looks for by itself. A server listens to a few keys
// only.
func (s *settings) keys(ctx context.Context) *keys {
	k := &keys{close: func() {}}
	var held []ssh.Signer
	var comments []string
	if s.agent != "" {
		conn, err := (&net.Dialer{Timeout: s.timeout}).DialContext(ctx, "unix", s.agent)
		if err != nil {
			k.skipped = append(k.skipped, fmt.Sprintf("the agent (%v)", err))
		} else {
			k.close = func() { _ = conn.Close() }
			held, comments = k.ask(agent.NewClient(conn))
		}
	}
	asked := slices.IndexFunc(s.identities, func(i identity) bool { return !i.asked })
	if asked < 0 {
		asked = len(s.identities)
	}
	for _, i := range s.identities[:asked] {
		k.file(i, held)
	}
	if !s.onlyThose {
		for i, signer := range held {
			k.add(signer, "the agent's "+comments[i])
		}
	}
	for _, i := range s.identities[asked:] {
		k.file(i, held)
	}
	return k
}

// ask returns the keys of an agent.
func (k *keys) ask(a agent.ExtendedAgent) (held []ssh.Signer, comments []string) {
	list, err := a.List()
	if err != nil {
		k.skipped = append(k.skipped, fmt.Sprintf("the agent (%v)", err))
		return nil, nil
	}
	signers, err := a.Signers()
	if err != nil {
		k.skipped = append(k.skipped, fmt.Sprintf("the agent (%v)", err))
		return nil, nil
	}
	for _, s := range signers {
		comment := ssh.FingerprintSHA256(s.PublicKey())
		for _, l := range list {
			if l.Comment != "" && bytes.Equal(l.Marshal(), s.PublicKey().Marshal()) {
				comment = l.Comment
			}
		}
		held, comments = append(held, s), append(comments, comment)
	}
	return held, comments
}

// file adds the key of a file, and before it the certificate that lies beside it.
func (k *keys) file(i identity, held []ssh.Signer) {
	text, err := os.ReadFile(i.path)
	if errors.Is(err, fs.ErrNotExist) && !i.asked {
		return
	}
	skip := func(why error) { k.skipped = append(k.skipped, fmt.Sprintf("%s (%v)", i.path, why)) }
	if err != nil {
		if public := readPublic(i.path + ".pub"); public != nil && k.fromAgent(i, public, held) {
			return // the private half is in the agent alone
		}
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		skip(err)
		return
	}
	signer, err := ssh.ParsePrivateKey(text)
	if locked, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok {
		public := locked.PublicKey
		if public == nil {
			public = readPublic(i.path + ".pub")
		}
		if public == nil || !k.fromAgent(i, public, held) {
			skip(errors.New("encrypted"))
			if k.encrypted == "" {
				k.encrypted = i.path
			}
		}
		return
	}
	if err != nil {
		if public, _, _, _, pubErr := ssh.ParseAuthorizedKey(text); pubErr == nil { // the public half names a key of the agent
			if !k.fromAgent(i, public, held) {
				skip(errors.New("a public key, and the agent does not have its private half"))
			}
			return
		}
		skip(err)
		return
	}
	k.certified(i, signer)
	k.add(signer, i.path)
}

// fromAgent adds the key of the agent that is the private half of public.
func (k *keys) fromAgent(i identity, public ssh.PublicKey, held []ssh.Signer) bool {
	at := slices.IndexFunc(held, func(s ssh.Signer) bool { return bytes.Equal(s.PublicKey().Marshal(), public.Marshal()) })
	if at < 0 {
		return false
	}
	k.certified(i, held[at])
	k.add(held[at], i.path)
	return true
}

// certified adds the certificate for a key where there is one.
func (k *keys) certified(i identity, signer ssh.Signer) {
	path := i.path + "-cert.pub"
	cert, ok := readPublic(path).(*ssh.Certificate)
	if !ok {
		return
	}
	certified, err := ssh.NewCertSigner(cert, signer)
	if err != nil {
		k.skipped = append(k.skipped, fmt.Sprintf("%s (%v)", path, err))
		return
	}
	k.add(certified, path)
}

// readPublic returns nil where there is no public key.
func readPublic(path string) ssh.PublicKey {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(text)
	if err != nil {
		return nil
	}
	return public
}
