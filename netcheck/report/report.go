// Package report shows the record of a network check to people: as text, as a picture of the links, and as JSON for
// what they build on it. All three say the same for the same record. A record may have come through the network: names
// and reasons are made fit for a terminal and for XML, and what cannot be, such as a link to a node that is not there,
// is left out of text and picture. Nobody is judged here; that is done in netcheck/blame.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"muster/internal/durable"
	"muster/internal/errhint"
	"muster/netcheck"
)

// Version is that of JSON. It grows when what is there changes its meaning, not when something is added.
const Version = 1

// JSON returns the record with its version, indented. An error means that a figure is none (NaN, Inf).
func JSON(r *netcheck.Record) ([]byte, error) {
	text, err := json.MarshalIndent(struct {
		Version int `json:"version"`
		*netcheck.Record
	}{Version, r}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode the network check: %w", err)
	}
	return append(text, '\n'), nil
}

// Write writes the check of a round to network-check-<round>.txt, .svg and .json in dir, which is made if missing. Each
// file is replaced as a whole, so that nobody reads a part. paths are those that were written, also beside an error,
// which names the first file that could not be and carries a hint.
func Write(dir string, round int, r *netcheck.Record) (paths []string, err error) {
	return write(dir, fmt.Sprintf("network-check-%d", round), r)
}

// WriteDoor is Write for a check of nodes that wait to join a round, in files with the name of the first of them.
func WriteDoor(dir string, round int, r *netcheck.Record) (paths []string, err error) {
	name := strings.Map(func(c rune) rune {
		if c < 128 && (unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune("._-", c)) {
			return c
		}
		return '_'
	}, r.Nodes[0].Node)
	return write(dir, fmt.Sprintf("network-check-%d-door-%s", round, name[:min(len(name), 64)]), r)
}

func write(dir, name string, r *netcheck.Record) (paths []string, err error) {
	record, err := JSON(r)
	if err != nil {
		return nil, err
	}
	base := filepath.Join(dir, name)
	for _, file := range []struct {
		path string
		data []byte
	}{{base + ".txt", []byte(Text(r))}, {base + ".svg", SVG(r)}, {base + ".json", record}} {
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = durable.Replace(file.path, file.data, 0o644)
		}
		if err != nil {
			return paths, errhint.With(fmt.Errorf("cannot write %q: %w", file.path, err),
				"choose a directory that this user may write to, on a disk with some space left")
		}
		paths = append(paths, file.path)
	}
	return paths, nil
}
