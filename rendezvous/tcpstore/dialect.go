package tcpstore

import "encoding/binary"

// dialect is what a server understands.
type dialect struct {
	gen  Generation
	ping bool // PyTorch 2.5 and later
}

// nonce is what our PING carries. A server of PyTorch 2.0 or older takes the handshake for the length of a key: with
// these bytes it is one that no allocation can satisfy, so that the server drops us at once instead of waiting for it.
const nonce = 0x74737563

// probe returns what a client says first to find out whether a server speaks d, and the length of the answer. It names
// private, unless that is empty.
func (d dialect) probe(private string) (request []byte, answer int) {
	hello := binary.LittleEndian.AppendUint32([]byte{byte(opValidate)}, magic)
	switch {
	case d.ping:
		request, answer = binary.LittleEndian.AppendUint32(append(hello, byte(opPing)), nonce), 4
	case d.gen == G2:
		// Four GETNUMKEYS, for the reason given at nonce.
		request, answer = append(hello, byte(opNumKeys), byte(opNumKeys), byte(opNumKeys), byte(opNumKeys)), 4*8
	case private == "":
		private = "-" // any key: CHECK has one number in both old tables
	}
	if private != "" {
		code, _ := d.gen.code(opCheck)
		request, answer = appendBytes(appendU64(append(request, code), 1), private), answer+1
	}
	return request, answer
}

// question returns a request that has an answer and no effect, and the length of the answer.
func (d dialect) question() (request []byte, answer int) {
	if d.ping {
		return binary.LittleEndian.AppendUint32([]byte{byte(opPing)}, nonce), 4
	}
	code, _ := d.gen.code(opNumKeys) // every generation has it
	return []byte{code}, 8
}
