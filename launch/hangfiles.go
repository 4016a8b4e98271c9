package launch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"muster/internal/durable"
	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/launch/evidence"
)

// mostHangs is how many of them have their evidence kept.
const mostHangs = 5

// keepHang writes the evidence of a hang under the log directory, the newest mostHangs of them, and returns the path of
// the files without their ends.
func (a *Agent) keepHang(seen control.Looked, at time.Time, v diagnose.Verdict) (string, error) {
	parent := a.logs.RunDir()
	if parent == "" && a.Plan.Job.Hang.Dir == "" { // no files are written: the evidence alone has a directory of its own
		if a.hangDir == "" {
			dir, err := os.MkdirTemp(a.Plan.TempDir, "muster-hang-")
			if err != nil {
				return "", err
			}
			a.hangDir = dir
		}
		parent = a.hangDir
	}
	dir := filepath.Join(parent, "hangs")
	if own := a.Plan.Job.Hang.Dir; own != "" {
		dir = own
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	groups := evidence.Merge(seen.Nodes, true)
	var text, svg bytes.Buffer
	fmt.Fprintf(&text, "%s\n\n%s\n\n", v.Sentence, strings.Join(v.Evidence, "\n"))
	if err := evidence.WriteText(&text, groups); err != nil {
		return "", err
	}
	if err := evidence.WriteSVG(&svg, v.Sentence, groups); err != nil {
		return "", err
	}
	whole, err := json.Marshal(struct {
		Verdict diagnose.Verdict `json:"verdict"`
		control.Looked
	}{v, seen})
	if err != nil {
		return "", err
	}
	base := filepath.Join(dir, at.UTC().Format("20060102T150405.000Z"))
	for end, content := range map[string][]byte{".txt": text.Bytes(), ".svg": svg.Bytes(), ".json": whole} {
		if err := durable.Replace(base+end, content, 0o600); err != nil {
			return "", err
		}
	}
	return base, forget(dir)
}

// forget removes the evidence of all but the newest hangs.
func forget(dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*Z.json"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	for len(names) > mostHangs {
		base := strings.TrimSuffix(names[0], ".json")
		for _, end := range []string{".txt", ".svg", ".json"} {
			if err := os.Remove(base + end); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		names = names[1:]
	}
	return nil
}
