package peertls

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// protocol is the version of what is derived here. Ends with different ones do not let each other in.
const protocol = "muster peers 1"

// derive returns 32 bytes that follow from the token and from what they are for.
func (d *Domain) derive(what string, id Identity) []byte {
	var info strings.Builder
	for _, field := range []string{protocol, d.Purpose, d.RunID, what, string(id)} {
		info.WriteString(strconv.Quote(field)) // no two lists of fields have one text
	}
	key, err := hkdf.Key(sha256.New, d.Token, nil, info.String(), 32)
	if err != nil {
		panic("internal error: HKDF: " + err.Error()) // of its length, which is constant
	}
	return key
}

func (d *Domain) key(role string, id Identity) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(d.derive(role, id))
}

// knock is what a client says before there are keys: that it has the token, and whom it wants. The name for ALPN is at
// most 255 bytes.
func (d *Domain) knock(id Identity) string { return hex.EncodeToString(d.derive("knock", id)[:16]) }

// The two roles have keys of their own, so that nothing that one end has shown can be shown to the other.
const (
	roleServer = "server"
	roleClient = "client"
)

// commonName is in the certificates: it tells ours from those of another program, and proves nothing.
const commonName = "muster"

// certificate wraps a key for TLS.
func certificate(key ed25519.PrivateKey) (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: commonName},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<36, 0), // clocks have no part in it
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cannot make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
