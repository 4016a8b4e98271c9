package notify

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Change says what a discovery of hosts changed, with the numbers of Horovod's HostUpdateResult.
type Change int

// The changes.
const (
	NoChange Change = 0
	Removed  Change = 1
	Added    Change = 2
	Mixed    Change = 3
)

func (c Change) String() string {
	switch c {
	case NoChange:
		return "none"
	case Removed:
		return "removed"
	case Added:
		return "added"
	case Mixed:
		return "mixed"
	}
	return strconv.Itoa(int(c))
}

// The classes whose objects are exchanged, and where Python finds them.
const (
	networkModule = "horovod.runner.common.util.network"
	workerModule  = "horovod.runner.elastic.worker"
	ackReply      = "AckResponse"
)

// object begins a pickle of protocol 2 with an empty object of a class.
func object(module, class string) []byte {
	b := []byte{0x80, 2, 'c'}
	b = append(b, module+"\n"+class+"\n"...)
	return append(b, ')', 0x81)
}

// hostsUpdated is the message of a change. Workers take it only if at is later than that of the last one, in seconds.
func hostsUpdated(at time.Time, change Change) []byte {
	b := object(workerModule, "HostsUpdatedRequest")
	b = append(b, '}', '(')
	b = appendText(b, "timestamp")
	b = appendInt(b, at.Unix())
	b = appendText(b, "res")
	b = append(b, 'K', byte(change))
	return append(b, 'u', 'b', '.')
}

func appendText(b []byte, text string) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, 'X'), uint32(len(text)))
	return append(b, text...)
}

func appendInt(b []byte, n int64) []byte {
	if int64(int32(n)) == n {
		return binary.LittleEndian.AppendUint32(append(b, 'J'), uint32(n))
	}
	return binary.LittleEndian.AppendUint64(append(b, 0x8a, 8), uint64(n))
}

// maxReply bounds an answer: those that exist have some 200 bytes.
const maxReply = 64 << 10

var errForged = errors.New("the answer is not signed with the worker's key")

// frame puts a body into the form in which it travels: HMAC-SHA256, length in the machine's byte order (of which all
// that run Horovod are little-endian), body.
func frame(key, body []byte) []byte {
	b := sign(key, body)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func sign(key, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	return mac.Sum(nil)
}

// readFrame returns the body of a frame whose HMAC is right.
func readFrame(r io.Reader, key []byte) ([]byte, error) {
	var head [sha256.Size + 4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[sha256.Size:])
	if n > maxReply {
		return nil, fmt.Errorf("an answer of %d bytes is larger than %d", n, maxReply)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	if !hmac.Equal(head[:sha256.Size], sign(key, body)) {
		return nil, errForged
	}
	return body, nil
}

// isObject reports whether a pickle is one of an object of the class, whatever the protocol it was written in.
func isObject(body []byte, class string) bool {
	return bytes.Contains(body, []byte(networkModule)) && bytes.Contains(body, []byte(class))
}
