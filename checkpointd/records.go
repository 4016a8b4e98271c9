package checkpointd

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// span is a run of bytes in a slot, from the beginning of its file. In JSON it is a list of two.
type span struct{ Offset, Length int64 }

// UnmarshalJSON reads [4096, 512].
func (s *span) UnmarshalJSON(text []byte) error {
	fields := []any{&s.Offset, &s.Length}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if len(fields) != 2 {
		return fmt.Errorf("a span has %d fields instead of 2", len(fields))
	}
	return nil
}

// record is one entry of an archive, and where its bytes lie in the slot. In JSON it is a list of three.
type record struct {
	Name string
	span
}

// UnmarshalJSON reads ["data/0", 4096, 512].
func (r *record) UnmarshalJSON(text []byte) error {
	fields := []any{&r.Name, &r.Offset, &r.Length}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if len(fields) != 3 {
		return fmt.Errorf("a record has %d fields instead of 3", len(fields))
	}
	return nil
}

// layout is what a worker writes behind its data: the files that a copy becomes, and where their bytes lie.
type layout struct {
	Files []fileLayout `json:"files"`
	// Aside are files that workers restore from memory, and that are not written: what other nodes have the files of.
	Aside []fileLayout `json:"aside,omitempty"`
	// Dir is the name of the step's directory, the step's number where it is empty.
	Dir string `json:"dir,omitempty"`
	// Trackers are files beside the step's directory that name it, for the framework's own tools: a name and a text
	// each.
	Trackers [][2]string `json:"trackers,omitempty"`
	// Spare are older steps that are not removed while this one is the newest.
	Spare []int64 `json:"spare,omitempty"`
}

// fileLayout is one file: its parts follow each other without a gap.
type fileLayout struct {
	// Path is relative to the step's directory; absolute where a worker wants it elsewhere; empty for the shard's usual
	// name.
	Path  string `json:"path"`
	Parts []part `json:"parts"`
}

// part is either an archive as torch.save writes it, or bytes as they are.
type part struct {
	Archive []record `json:"archive,omitempty"`
	Bytes   *span    `json:"bytes,omitempty"`
}

// readLayout reads the layout that lies in a slot at [off, off+length), and makes sure that nothing of it lies
// elsewhere. It returns how many bytes behind the header belong to the copy.
func readLayout(slot []byte, off, length int64) (layout, int64, error) {
	size := int64(len(slot))
	end := int64(headerSize)
	inside := func(s span) bool {
		ok := s.Offset >= headerSize && s.Length >= 0 && s.Offset <= size && s.Length <= size-s.Offset
		if ok {
			end = max(end, s.Offset+s.Length)
		}
		return ok
	}
	if !inside(span{off, length}) {
		return layout{}, 0, fmt.Errorf("the list of files lies at %d+%d, outside of the slot's %d bytes", off, length, size)
	}
	var l layout
	if err := json.Unmarshal(slot[off:off+length], &l); err != nil {
		return layout{}, 0, fmt.Errorf("cannot read the list of files: %w", err)
	}
	if err := l.checkNames(); err != nil {
		return layout{}, 0, err
	}
	for _, f := range slices.Concat(l.Files, l.Aside) {
		for _, p := range f.Parts {
			if (p.Bytes == nil) == (p.Archive == nil) {
				return layout{}, 0, fmt.Errorf("a part of file %q is neither an archive nor bytes", f.Path)
			}
			if p.Bytes != nil && !inside(*p.Bytes) {
				return layout{}, 0, fmt.Errorf("a part of file %q lies at %d+%d, outside of the slot's %d bytes", f.Path, p.Bytes.Offset,
					p.Bytes.Length, size)
			}
			if err := checkArchive(p.Archive, inside); err != nil {
				return layout{}, 0, fmt.Errorf("file %q: %w", f.Path, err)
			}
		}
	}
	return l, end - headerSize, nil
}

// checkArchive makes sure that the records of an archive, nil for none, can be one.
func checkArchive(records []record, inside func(span) bool) error {
	if records == nil {
		return nil
	}
	seen := make(map[string]bool, len(records))
	for _, r := range records {
		if !inside(r.span) {
			return fmt.Errorf("record %q lies at %d+%d, outside of the slot", r.Name, r.Offset, r.Length)
		}
		if !isLocalName(r.Name) || seen[r.Name] {
			return fmt.Errorf("record %q has a name that is no file's, or another's", r.Name)
		}
		seen[r.Name] = true
	}
	if !seen[pickleName] {
		return fmt.Errorf("among %d records is no %s", len(records), pickleName)
	}
	return nil
}

// pickleName is the record of an archive that torch.load begins with.
const pickleName = "data.pkl"

// isLocalName reports whether a path leads to something below where it begins, in its shortest form.
func isLocalName(path string) bool {
	return path != "" && path != "." && len(path) <= 1024 && filepath.IsLocal(path) && filepath.Clean(path) == path &&
		!strings.ContainsFunc(path, unprintable)
}

// isOwnName reports whether a name in a directory of checkpoints is one that muster gives.
func isOwnName(name string) bool {
	return slices.Contains([]string{ownDir, trackerName, dlroverTracker, manifestName}, name) || strings.Contains(name, tempMark)
}

// checkNames makes sure that a step's files can have the names that a worker gives them.
func (l *layout) checkNames() error {
	if l.Dir != "" && (!isLocalName(l.Dir) || filepath.Base(l.Dir) != l.Dir || isOwnName(l.Dir)) {
		return fmt.Errorf("%q is no name for a step's directory: it has to lie right in the directory of checkpoints", l.Dir)
	}
	for _, t := range l.Trackers {
		if !isLocalName(t[0]) || filepath.Base(t[0]) != t[0] || isOwnName(t[0]) || t[0] == l.Dir {
			return fmt.Errorf("%q is no name for a file that names the newest step", t[0])
		}
	}
	seen := make(map[string]bool, len(l.Files))
	for _, f := range slices.Concat(l.Files, l.Aside) {
		absolute := filepath.IsAbs(f.Path) && (&File{Path: f.Path}).named()
		if f.Path != "" && !absolute && !isLocalName(f.Path) || f.Path == manifestName || seen[f.Path] {
			return fmt.Errorf("%q is no path for a file of a checkpoint, or another's: give a clean one", f.Path)
		}
		if len(f.Parts) == 0 {
			return fmt.Errorf("file %q has no parts", f.Path)
		}
		seen[f.Path] = true
	}
	return nil
}

// has reports whether there is a file with a path, as it stands in the layout.
func (l *layout) has(path string) bool {
	return slices.ContainsFunc(slices.Concat(l.Files, l.Aside), func(f fileLayout) bool { return f.Path == path })
}
