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
	"muster/internal/errhint"
	"muster/launch/control"
	"muster/launch/diagnose"
	"muster/launch/evidence"
)

const (
	// mostHangs is how many of them have their evidence kept.
	mostHangs = 5
	// hangsDir is where it lies below a log directory.
	hangsDir = "hangs"
	// hangFiles are those of them that NewestHang reads.
	hangFiles = "*Z.json"
)

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
	dir := filepath.Join(parent, hangsDir)
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
	names, err := filepath.Glob(filepath.Join(dir, hangFiles))
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

// NewestHang reads the evidence of the newest hang in a directory of them, or in one below a log directory. Errors are
// errhint.Usage.
func NewestHang(dir string) (path string, seen control.Looked, err error) {
	if _, err := os.Stat(dir); err != nil {
		return "", seen, errhint.Usagef("cannot use --path: %w", err)
	}
	var found []string
	for _, below := range []string{"", hangsDir, filepath.Join("*", hangsDir)} {
		more, err := filepath.Glob(filepath.Join(dir, below, hangFiles))
		if err != nil {
			return "", seen, errhint.Usagef("cannot use --path %q: %w", dir, err)
		}
		found = append(found, more...)
	}
	if len(found) == 0 {
		hint := "give the directory that --hang-dir named, or a log directory of a job with --hang-timeout"
		if theirs, err := filepath.Glob(filepath.Join(dir, "*.stacktrace")); err == nil && len(theirs) > 0 {
			hint = "the *.stacktrace there are of xpu_timer's own library, whose viewer reads them"
		}
		return "", seen, errhint.With(errhint.Usagef("there is no evidence of a hang in %s", dir), hint)
	}
	path = slices.MaxFunc(found, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	text, err := os.ReadFile(path)
	if err != nil {
		return "", seen, errhint.Usagef("cannot read the evidence of a hang: %w", err)
	}
	if err := json.Unmarshal(text, &seen); err != nil {
		return "", seen, errhint.Usagef("cannot read %s as the evidence of a hang: %w", path, err)
	}
	return path, seen, nil
}
