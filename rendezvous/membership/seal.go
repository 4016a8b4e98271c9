package membership

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strings"
	"sync"

	"muster/internal/errhint"
	"muster/rendezvous"
)

// maxRecord bounds what is decoded from the store, in bytes.
const maxRecord = 8 << 20

// codec writes and reads what agents say to each other. With a token every record carries who wrote it, and a code that
// nobody can make without the token, over key, writer and content:
//
//	<content>\n<writer>:<code>
//
// Without one a record is its content. What has no seal is not taken where there is a token, and the other way round.
//
// A seal says nothing of when a record was written. That follows from its key, which carries a nonce of the
// coordinator, of the job or of the round that it is for: see doc.go.
type codec struct {
	writer string
	macs   *sync.Pool // of hash.Hash; nil without a token
}

// sealPurpose begins what the key of the seals is derived for. It changes with the form of the seal.
const sealPurpose = "muster rollcall seal 2 "

// newCodec returns the codec of an agent of job runID. token may be empty.
func newCodec(runID string, token []byte, writer string) codec {
	c := codec{writer: writer}
	if len(token) == 0 {
		return c
	}
	key, err := hkdf.Key(sha256.New, token, nil, sealPurpose+runID, sha256.Size)
	if err != nil {
		panic("internal error: cannot derive a key: " + err.Error()) // only where that were too long
	}
	c.macs = &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}
	return c
}

var macText = base64.RawURLEncoding

// errUnsigned and errSigned are two agents of which only one has a token, or another one.
var (
	errUnsigned = errors.New("it is not signed with this job's token")
	errSigned   = errors.New("it is signed with a token, and this agent has none")
)

const macHint = "give every agent of the job the same MUSTER_TOKEN_FILE (--token-file), or none of them"

// untrusted says that what stands under a key is not what an agent of this job writes there.
type untrusted struct{ error }

func (e *untrusted) Unwrap() error { return e.error }

func (e *untrusted) Is(target error) bool { return target == rendezvous.ErrUntrusted }

// isUntrusted reports whether a record was read that nobody of this job has written, and not that the store failed.
func isUntrusted(err error) bool {
	_, is := errors.AsType[*untrusted](err)
	return is
}

func (c codec) mac(key, writer string, body []byte) []byte {
	h := c.macs.Get().(hash.Hash) //nolint:forcetypeassert // the pool has no others
	defer c.macs.Put(h)
	h.Reset()
	var lengths [8]byte
	binary.BigEndian.PutUint32(lengths[:4], uint32(len(key)))
	binary.BigEndian.PutUint32(lengths[4:], uint32(len(writer)))
	h.Write(lengths[:])
	h.Write([]byte(key))
	h.Write([]byte(writer))
	h.Write(body)
	return macText.AppendEncode(nil, h.Sum(nil))
}

// sealBytes returns body as it is to be stored under key.
func (c codec) sealBytes(key string, body []byte) []byte {
	if c.macs == nil {
		return body
	}
	mac := c.mac(key, c.writer, body)
	value := make([]byte, 0, len(body)+len(c.writer)+len(mac)+2)
	value = append(append(value, body...), '\n')
	value = append(append(value, c.writer...), ':')
	return append(value, mac...)
}

// seal encodes v for being stored under key.
func (c codec) seal(key string, v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("internal error: cannot encode %T: %v", v, err)) // strings, numbers and bools only
	}
	return c.sealBytes(key, body)
}

// unseal takes a value apart; sealed is false for one without the form of a seal.
func unseal(value []byte) (body []byte, writer string, mac []byte, sealed bool) {
	i := bytes.LastIndexByte(value, '\n')
	if i < 0 {
		return value, "", nil, false
	}
	name, mac, found := bytes.Cut(value[i+1:], []byte(":"))
	if !found || !isNonce(string(name)) || len(mac) != macText.EncodedLen(sha256.Size) {
		return value, "", nil, false
	}
	return value[:i], string(name), mac, true
}

// openBytes returns what was found under key, and who wrote it, "" without a token. Its errors are *untrusted.
func (c codec) openBytes(key string, value []byte) (body []byte, writer string, err error) {
	if len(value) > maxRecord {
		return nil, "", &untrusted{fmt.Errorf("cannot read %q in the store: %d bytes, at most %d are taken", key, len(value), maxRecord)}
	}
	body, writer, mac, sealed := unseal(value)
	switch {
	case c.macs == nil && sealed:
		return nil, "", &untrusted{errhint.With(fmt.Errorf("cannot trust %q in the store: %w", key, errSigned), macHint)}
	case c.macs != nil && (!sealed || !hmac.Equal(mac, c.mac(key, writer, body))):
		return nil, "", &untrusted{errhint.With(fmt.Errorf("cannot trust %q in the store: %w", key, errUnsigned), macHint)}
	}
	return body, writer, nil
}

// open decodes what was found under key, and checks it. Its errors are *untrusted.
func (c codec) open(key string, value []byte, v any) (writer string, err error) {
	body, writer, err := c.openBytes(key, value)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return "", &untrusted{errhint.With(fmt.Errorf("cannot read %q in the store: %w", key, err),
			"does another program or another version of muster use this store under the same run id?")}
	}
	if checked, ok := v.(interface{ check() error }); ok {
		if err := checked.check(); err != nil {
			return "", &untrusted{fmt.Errorf("cannot use %q in the store: %w", key, err)}
		}
	}
	return writer, nil
}

// by refuses a record of somebody else than agent. Without a token nobody knows who wrote it.
func (c codec) by(key, writer, agent string) error {
	if c.macs != nil && writer != agent {
		return &untrusted{fmt.Errorf("cannot trust %q in the store: agent %s wrote it, and not %s", key, writer, agent)}
	}
	return nil
}

// newNonce returns a name that nobody has had before and nobody can guess.
func newNonce() string { return strings.ToLower(rand.Text()) }

// isNonce reports whether a text from the network may be a nonce or the id of an agent. It is part of keys.
func isNonce(text string) bool {
	if len(text) < 8 || len(text) > 64 {
		return false
	}
	for _, r := range text {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return true
}
