// Package notify tells elastic Horovod's workers that hosts were added or removed: the driver's side of the worker
// notification service (horovod 0.28.1, horovod/runner/elastic/worker.py and horovod/runner/common/util/network.py).
//
// A worker registers with the driver: where it listens, and the key it made for this. A message is one TCP connection:
// an HMAC with that key, a length, and a pickle. What is sent are four pickles that never change but for two numbers;
// of what comes back only the HMAC and a class's name are looked at. Nothing that came from the network is made an
// object.
package notify

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"muster/internal/pickle"
)

// Limits of a registration.
const (
	maxRegistration = 64 << 10 // bytes
	maxAddresses    = 1024
	keySize         = 32
)

// Registration is where a worker listens for notifications.
type Registration struct {
	// Addresses are where it may be reached, those of the loopback interface last.
	Addresses []netip.AddrPort
	key       [keySize]byte
}

// ParseRegistration reads what a worker sends: base64 of the pickle of a tuple, ({interface: [(address, port)]}, key).
// Anything that is not plain data is refused.
func ParseRegistration(body []byte) (Registration, error) {
	reg, err := parseRegistration(body)
	if err != nil {
		return Registration{}, fmt.Errorf("cannot read where a worker listens: %w", err)
	}
	return reg, nil
}

var errShape = errors.New("it is not a table of addresses and a key")

func parseRegistration(body []byte) (Registration, error) {
	var reg Registration
	if len(body) > maxRegistration {
		return reg, fmt.Errorf("%d bytes are more than %d", len(body), maxRegistration)
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(body)))
	n, err := base64.StdEncoding.Decode(data, body)
	if err != nil {
		return reg, err
	}
	decoded, err := pickle.Read(data[:n])
	if err != nil {
		return reg, err
	}
	pair, ok := decoded.(pickle.Tuple)
	if !ok || len(pair) != 2 {
		return reg, errShape
	}
	table, isTable := pair[0].(*pickle.Dict)
	key, isKey := pair[1].([]byte)
	if !isTable || !isKey {
		return reg, errShape
	}
	if len(key) != keySize {
		return reg, fmt.Errorf("a key of %d bytes, not %d", len(key), keySize)
	}
	copy(reg.key[:], key)
	for _, p := range table.Pairs {
		addresses, isList := p.Value.(*pickle.List)
		if _, named := p.Key.(string); !named || !isList {
			return reg, errShape
		}
		for _, item := range addresses.Items {
			address, err := parseAddress(item)
			if err != nil {
				return reg, err
			}
			if len(reg.Addresses) == maxAddresses {
				return reg, fmt.Errorf("more than %d addresses", maxAddresses)
			}
			reg.Addresses = append(reg.Addresses, address)
		}
	}
	slices.SortFunc(reg.Addresses, func(a, b netip.AddrPort) int {
		if a.Addr().IsLoopback() != b.Addr().IsLoopback() {
			return cmp.Compare(b2i(a.Addr().IsLoopback()), b2i(b.Addr().IsLoopback()))
		}
		return a.Compare(b)
	})
	reg.Addresses = slices.Compact(reg.Addresses)
	return reg, nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func parseAddress(item any) (netip.AddrPort, error) {
	pair, ok := item.(pickle.Tuple)
	if !ok || len(pair) != 2 {
		return netip.AddrPort{}, errShape
	}
	text, isText := pair[0].(string)
	port, isPort := pair[1].(int64)
	if !isText || !isPort {
		return netip.AddrPort{}, errShape
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if port < 1 || port > 65535 {
		return netip.AddrPort{}, fmt.Errorf("port %d", port)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}
