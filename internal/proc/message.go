package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// messageLimit bounds a message of a template or of what it forked. They are sentences; this is for hostile modules.
const messageLimit = 1 << 20

// channel carries messages between us and a template: a length, then strings with a length each; lengths have four
// bytes, little-endian. Descriptors travel with the first bytes.
type channel struct{ conn *net.UnixConn }

// newChannel returns our end of a connection, and the other one for a child.
func newChannel() (c channel, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return c, nil, err
	}
	theirs = os.NewFile(uintptr(pair[1]), "channel")
	ours := os.NewFile(uintptr(pair[0]), "channel")
	defer func() { _ = ours.Close() }() // FileConn has its own
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return c, nil, err
	}
	return channel{conn.(*net.UnixConn)}, theirs, nil
}

// send writes a message, with files if there are any, before deadline.
func (c channel) send(deadline time.Time, message []string, files ...*os.File) error {
	body := make([]byte, 4, 4096)
	for _, s := range message {
		body = binary.LittleEndian.AppendUint32(body, uint32(len(s)))
		body = append(body, s...)
	}
	binary.LittleEndian.PutUint32(body, uint32(len(body)-4))
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.conn.WriteMsgUnix(body, rights, nil)
	if err == nil && n < len(body) {
		_, err = c.conn.Write(body[n:])
	}
	return err
}

// receive reads a message before deadline; the zero time waits for ever. io.EOF: the other end is closed.
func (c channel) receive(deadline time.Time) ([]string, error) {
	if err := c.conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		if errors.Is(err, unix.ECONNRESET) { // it ended with something of ours unread
			err = io.EOF
		}
		return nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > messageLimit {
		return nil, fmt.Errorf("message of %d bytes", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.conn, body); err != nil {
		return nil, err
	}
	var message []string
	for len(body) > 0 {
		if len(body) < 4 || uint64(binary.LittleEndian.Uint32(body))+4 > uint64(len(body)) {
			return nil, errors.New("malformed message")
		}
		end := 4 + int(binary.LittleEndian.Uint32(body))
		message = append(message, string(body[4:end]))
		body = body[end:]
	}
	return message, nil
}

func (c channel) close() { _ = c.conn.Close() }
