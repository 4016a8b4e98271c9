package checkpointd

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
)

// record is one entry of the file that a copy becomes, and where its bytes lie in the slot. In JSON it is a list of three.
type record struct {
	Name           string
	Offset, Length int64
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

// layout is the list of records that a worker writes behind its data.
type layout struct {
	Records []record `json:"records"`
}

// readLayout reads the list that lies in a slot at [off, off+length), and makes sure that nothing of it lies elsewhere. It
// returns how many bytes behind the header belong to the copy.
func readLayout(slot []byte, off, length int64) (layout, int64, error) {
	size := int64(len(slot))
	inside := func(off, length int64) bool {
		return off >= headerSize && length >= 0 && off <= size && length <= size-off
	}
	if !inside(off, length) {
		return layout{}, 0, fmt.Errorf("the list of records lies at %d+%d, outside of the slot's %d bytes", off, length, size)
	}
	var l layout
	if err := json.Unmarshal(slot[off:off+length], &l); err != nil {
		return layout{}, 0, fmt.Errorf("cannot read the list of records: %w", err)
	}
	end := off + length
	seen := make(map[string]bool, len(l.Records))
	for _, r := range l.Records {
		if !inside(r.Offset, r.Length) {
			return layout{}, 0, fmt.Errorf("record %q lies at %d+%d, outside of the slot's %d bytes", r.Name, r.Offset, r.Length, size)
		}
		if r.Name == "" || seen[r.Name] || path.Clean(r.Name) != r.Name || path.IsAbs(r.Name) || strings.HasPrefix(r.Name, "..") || len(r.Name) > 1024 {
			return layout{}, 0, fmt.Errorf("record %q has a name that is no file's, or another's", r.Name)
		}
		seen[r.Name] = true
		end = max(end, r.Offset+r.Length)
	}
	if !seen["data.pkl"] {
		return layout{}, 0, fmt.Errorf("among %d records is no data.pkl", len(l.Records))
	}
	return l, end - headerSize, nil
}
