// Package topology knows which nodes share a switch, from the file of --topology-file, and ranks them so that
// neighbours in rank are neighbours in the network.
//
// The file has a line per node, "ASW PSW IP", as DLRover's config map node-topology-config: the access switch that the
// node is connected to, the switch above that, and the node's address. Further columns are the switches above those,
// going up. "#" begins a comment. Names are compared as they are written, each column by itself; addresses as numbers,
// so that any spelling of an IPv6 address will do, and ::ffff:10.0.0.1 is 10.0.0.1.
//
// Order is a pure function: whoever fixes a round calls it once and tells the others, or all call it with the same file
// and the same nodes.
package topology

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"

	"muster/internal/errhint"
)

// What a file may hold, far beyond what there is.
const (
	maxFile     = 16 << 20  // bytes
	maxNodes    = 128 << 10 // lines that name a node
	maxLine     = 4 << 10   // bytes, comment and all
	maxName     = 253       // bytes of a switch's name, as of a host's
	maxLevels   = 4         // switches above a node
	maxProblems = 20        // lines told about: a file with more is something else
)

// Topology says under which switches nodes are. A nil one names no node. It does not change once it is made.
type Topology struct {
	nodes map[netip.Addr]place
}

// place is where a line puts a node.
type place struct {
	access *netSwitch
	line   int
}

// netSwitch is a switch, up the one above it, nil for the highest that the file names.
type netSwitch struct {
	name string
	up   *netSwitch
	line int // that names it first
}

// Load reads the topology file at path. All bad lines are reported together; the error carries status 2.
func Load(path string) (*Topology, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errhint.Usagef("cannot read topology file: %w", err)
	}
	defer func() { _ = f.Close() }()
	return Parse(path, f)
}

// Parse is Load for what r holds; name is for errors.
func Parse(name string, r io.Reader) (*Topology, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, errhint.Usagef("cannot read topology file %q: %w", name, err)
	}
	if len(text) > maxFile {
		return nil, errhint.Usagef("cannot use topology file %q: it is longer than %d bytes", name, maxFile)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // editors of Windows put it there
	p := parser{nodes: make(map[netip.Addr]place)}
	var bad *multierror.Error
	line := 0
	for raw := range bytes.Lines(text) {
		line++
		err := p.add(line, bytes.TrimRight(raw, "\r\n"))
		if err == nil {
			continue
		}
		err = fmt.Errorf("cannot use line %d of topology file %q: %w", line, name, err)
		if bad != nil && len(bad.Errors) == maxProblems {
			bad = multierror.Append(bad, fmt.Errorf("cannot use topology file %q: read no further after %d bad lines", name, maxProblems))
			break
		}
		if bad == nil {
			err = errhint.With(err, "name one node per line: ASW PSW IP, separated by blanks, as in: asw-0 psw-0 192.168.0.1")
		}
		bad = multierror.Append(bad, err)
	}
	if bad != nil {
		bad.ErrorFormat = func(all []error) string {
			var b strings.Builder
			for i, err := range all {
				if i > 0 {
					b.WriteString("\n")
				}
				b.WriteString(err.Error())
			}
			return b.String()
		}
		return nil, errhint.Code(bad, errhint.Usage)
	}
	return &Topology{nodes: p.nodes}, nil
}

// parser is what the lines read so far say.
type parser struct {
	nodes    map[netip.Addr]place
	switches []map[string]*netSwitch // by column, then by name: column 0 is the ASW
	columns  int                     // of the first line, 0 before it
	line     int                     // the first line
}

const addressColumn = 2 // counted from 0; columns behind it go on where the ones before it end

// add reads one line.
func (p *parser) add(line int, raw []byte) error {
	if len(raw) > maxLine {
		return fmt.Errorf("it is longer than %d bytes", maxLine)
	}
	fields := strings.Fields(string(raw))
	for i, f := range fields {
		if strings.HasPrefix(f, "#") {
			fields = fields[:i]
			break
		}
	}
	switch n := len(fields); {
	case n == 0:
		return nil
	case n <= addressColumn:
		return fmt.Errorf("it has %s, want at least %d", count(n), addressColumn+1)
	case n > maxLevels+1:
		return fmt.Errorf("it has %s, limit %d", count(n), maxLevels+1)
	case p.columns == 0:
		p.columns, p.line = n, line
		p.switches = make([]map[string]*netSwitch, n-1)
		for i := range p.switches {
			p.switches[i] = make(map[string]*netSwitch)
		}
	case n != p.columns:
		return fmt.Errorf("it has %s, line %d has %d", count(n), p.line, p.columns)
	}
	addr, err := parseAddr(fields[addressColumn])
	if err != nil {
		return err
	}
	access, err := p.connect(line, slices.Delete(fields, addressColumn, addressColumn+1))
	if err != nil {
		return err
	}
	if old, ok := p.nodes[addr]; ok && old.access != access {
		return fmt.Errorf("%v is under %q here, and under %q in line %d", addr, access.name, old.access.name, old.line)
	} else if !ok {
		if len(p.nodes) == maxNodes {
			return fmt.Errorf("it names one node more than the limit of %d", maxNodes)
		}
		p.nodes[addr] = place{access: access, line: line}
	}
	return nil
}

func count(columns int) string {
	if columns == 1 {
		return "1 column"
	}
	return fmt.Sprintf("%d columns", columns)
}

func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return addr, fmt.Errorf("%.100q is not an IP address", text)
	case addr.Zone() != "":
		return addr, fmt.Errorf("%.100q has a zone, which means something else on every node", text)
	case addr.IsUnspecified() || addr.IsMulticast():
		return addr, fmt.Errorf("%q is not the address of a node", text)
	}
	return canonical(addr), nil
}

// canonical is equal for addresses that mean the same node.
func canonical(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// connect returns the access switch of a line that names its switches from there up, and checks that it fits what the
// lines before say: were a switch under two others, the nodes under one of these could not all be neighbours.
func (p *parser) connect(line int, names []string) (*netSwitch, error) {
	var up *netSwitch
	for level, name := range slices.Backward(names) {
		if len(name) > maxName {
			return nil, fmt.Errorf("the name of a switch has %d bytes, limit %d", len(name), maxName)
		}
		s := p.switches[level][name]
		if s == nil {
			name = strings.Clone(name) // else it keeps the whole line
			s = &netSwitch{name: name, up: up, line: line}
			p.switches[level][name] = s
		}
		if s.up != up {
			return nil, fmt.Errorf("switch %q is under %q here, and under %q in line %d", name, up.name, s.up.name, s.line)
		}
		up = s
	}
	return up, nil
}

// access returns the access switch of the node that has these addresses, nil if the file does not name it. Of several
// addresses the first one that the file names counts.
func (t *Topology) access(addrs []netip.Addr) *netSwitch {
	if t == nil {
		return nil
	}
	for _, a := range addrs {
		if at, ok := t.nodes[canonical(a)]; ok {
			return at.access
		}
	}
	return nil
}
