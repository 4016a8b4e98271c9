package hosts

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"muster/internal/wire"
)

// kind is what a frame holds. The numbers are the wire's.
type kind byte

const (
	// From the launcher to an agent.
	kindOrder  kind = 1 // an Order
	kindGo     kind = 2 // workers may be started
	kindSignal kind = 3 // a signalMessage: the launcher has received it
	kindStart  kind = 4 // a StartProcess
	kindStop   kind = 5 // a stopProcess
	kindWhose  kind = 6 // a whoseMessage
	kindAsk    kind = 7 // an Ask: somebody has asked the launcher for something that the nodes do
	kindRank   kind = 8 // a RankProcess

	// From an agent to the launcher.
	kindHello   kind = 16 // a Hello
	kindReady   kind = 17 // a Ready
	kindStdout  kind = 18 // output of the workers
	kindStderr  kind = 19
	kindLog     kind = 20 // lines of the agent's own log, JSON
	kindResult  kind = 21 // a Result; the last frame but beats
	kindFile    kind = 22 // a fileMessage, then its bytes in kindData until an empty one
	kindData    kind = 23
	kindStarted kind = 24 // a processMessage
	kindEnded   kind = 25 // a processMessage
	kindStatus  kind = 26 // the status file as it is now
	kindOwner   kind = 27 // an ownerMessage
	kindAnswer  kind = 28 // an Answer to an Ask
	kindEvent   kind = 29 // an event of the node, JSON

	// Both ways.
	kindTunnel kind = 33 // of a tunnel: its number, and what is said there
	kindBeat   kind = 32 // nothing: whoever sends it lives
)

const (
	headerBytes = 5
	// maxFrame bounds what is taken at once: an order with the largest environment and command line that a kernel
	// takes, several times over.
	maxFrame = 64 << 20
	// maxAnswer bounds a frame of an agent: nothing that one says is as long as an order.
	maxAnswer = 8 << 20
	// maxText bounds each text of a result: three of them fit into a frame, with six bytes for each of theirs.
	maxText = 400 << 10
	// maxOutput bounds a frame of output or of a file, so that beats and results are not behind much of it.
	maxOutput = 64 << 10
)

// errTooLong is what comes of a message that nobody would take.
var errTooLong = errors.New("cannot send a message")

// errNoise is what comes of a far side that sends no frames, such as a login script that prints something.
var errNoise = errors.New("what came is no message of muster's agent")

// frames sends and receives frames. Each direction may be used by one reader, and by many writers.
type frames struct {
	r    io.Reader
	most uint32 // bytes of a frame that is received

	mu    sync.Mutex
	w     io.Writer
	takes int // bytes of a frame that the other side takes
}

// send writes one frame.
func (w *frames) send(k kind, payload []byte) error {
	if len(payload) > w.takes {
		return fmt.Errorf("%w of %d bytes: %d are the most", errTooLong, len(payload), w.takes)
	}
	frame := make([]byte, headerBytes, headerBytes+len(payload))
	frame[0] = byte(k)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	frame = append(frame, payload...) // one write, so that a frame is whole for a reader of whole packets
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(frame)
	return err
}

// end closes what frames are written to, between two of them.
func (w *frames) end(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = c.Close()
}

// sendJSON writes one frame that holds v.
func (w *frames) sendJSON(k kind, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("internal error: %w", err)
	}
	return w.send(k, payload)
}

// receive reads one frame. Memory is taken as its bytes come.
func (w *frames) receive() (kind, []byte, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(w.r, header[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > w.most {
		return 0, nil, fmt.Errorf("%w: it begins with %q", errNoise, header[:])
	}
	payload, err := wire.ReadN(w.r, int(size))
	if err != nil {
		return 0, nil, err
	}
	return kind(header[0]), payload, nil
}

// decode reads the JSON of a frame.
func decode(payload []byte, v any) error {
	if err := json.Unmarshal(payload, v); err != nil {
		return fmt.Errorf("%w: %w", errNoise, err)
	}
	return nil
}
