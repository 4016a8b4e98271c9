package gather

import (
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"muster/internal/proc"
	"muster/launch/evidence"
)

// tcpStates are those of /proc/net/tcp that are told.
var tcpStates = map[string]string{
	"01": "established", "02": "connecting", "03": "accepting", "04": "closing", "05": "closing", "08": "closed by its peer",
	"0A": "listening",
}

// sockets are connections by their inodes, for each network namespace.
type sockets map[string]map[uint64]evidence.Socket

// readSockets reads the connections of the namespaces that the processes are in.
func readSockets(looked []*look) sockets {
	all := sockets{}
	for _, l := range looked {
		space := l.space()
		if _, known := all[space]; known || len(l.inodes) == 0 {
			continue
		}
		table := map[uint64]evidence.Socket{}
		for _, name := range []string{"net/tcp", "net/tcp6"} {
			text, err := os.ReadFile(l.path(name))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(text)) {
				if inode, s, is := parseSocket(line); is {
					table[inode] = s
				}
			}
		}
		all[space] = table
	}
	return all
}

func (l *look) space() string {
	link, _ := os.Readlink(l.path("ns/net")) // where it cannot be told all are in one
	return link
}

// of are the connections of a process.
func (s sockets) of(l *look) (own []evidence.Socket) {
	table := s[l.space()]
	for _, inode := range l.inodes {
		if c, is := table[inode]; is && c.State != "listening" && len(own) < mostSockets {
			own = append(own, c)
		}
	}
	return own
}

// Listening are the addresses at which processes of a tree take connections, each once.
func Listening(tree []proc.Seen) (at []netip.AddrPort) {
	looked := make([]*look, 0, min(len(tree), mostOfRank))
	for _, p := range tree[:min(len(tree), mostOfRank)] {
		l := &look{Seen: p}
		names, _ := filepath.Glob(l.path("fd/*")) // a process that has ended has none
		for _, name := range names[:min(len(names), mostFiles)] {
			link, _ := os.Readlink(name)
			if inode, is := socketInode(link); is {
				l.inodes = append(l.inodes, inode)
			}
		}
		looked = append(looked, l)
	}
	tables := readSockets(looked)
	for _, l := range looked {
		table := tables[l.space()]
		for _, inode := range l.inodes {
			s, is := table[inode]
			addr, err := netip.ParseAddrPort(s.Local)
			if is && err == nil && s.State == "listening" && !slices.Contains(at, addr) {
				at = append(at, addr)
			}
		}
	}
	return at
}

// socketInode is the inode of a socket, by what a link in /proc/PID/fd says.
func socketInode(link string) (uint64, bool) {
	text, is := strings.CutPrefix(link, "socket:[")
	if !is {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
	return n, err == nil
}

// parseSocket reads a line of /proc/net/tcp.
func parseSocket(line string) (inode uint64, s evidence.Socket, is bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return 0, s, false
	}
	local, is1 := address(f[1])
	peer, is2 := address(f[2])
	state, is3 := tcpStates[f[3]]
	send, receive, _ := strings.Cut(f[4], ":")
	inode, err := strconv.ParseUint(f[9], 10, 64)
	if !is1 || !is2 || !is3 || err != nil {
		return 0, s, false
	}
	s = evidence.Socket{
		Local: local, Peer: peer, State: state, Send: number(send), Receive: number(receive),
		Retransmits: int(number(f[6])),
	}
	return inode, s, true
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 16, 63) // what is no number counts as 0
	return n
}

// address reads an address as the kernel prints it: words of this machine's order, in hexadecimal digits.
func address(text string) (string, bool) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	p, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b)%4 != 0 {
		return "", false
	}
	if littleEndian {
		for i := 0; i < len(b); i += 4 {
			b[i], b[i+1], b[i+2], b[i+3] = b[i+3], b[i+2], b[i+1], b[i]
		}
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(p)).String(), ok
}
