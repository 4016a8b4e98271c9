package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"muster/test/drive"
)

const (
	picture     = "../../docs/terminal.svg"
	pictureLine = "muster run -n 4 --max-restarts 2 -- python train.py"
	// pictureScript trains for three epochs. Its first attempt loses rank 2 behind the second one, and the next goes on
	// from there.
	pictureScript = `import os, time

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if rank == 0:
    first = int(open("done").read()) + 1 if attempt else 1
    for epoch in range(first, 4):
        print(f"epoch {epoch} of 3, attempt {attempt}", flush=True)
        with open("half", "w") as f:
            f.write(str(epoch))
        os.rename("half", "done")
        while epoch == 2 and attempt == 0:
            time.sleep(1)
elif rank == 2 and attempt == 0:
    while not (os.path.exists("done") and open("done").read() == "2"):
        time.sleep(0.01)
    samples = 0
    mean = 1 / samples
`
)

// What differs between two runs stands in the picture as one of them had it, and is compared by its form.
var pictureVaries = []struct{ form, as string }{
	{`\d\d:\d\d:\d\d`, "17:32:59"},
	{`after [0-9.]+ (?:ms|s|min)(?: \d+ s)?`, "after 212 ms"},
	{`File "[^"]*/train\.py"`, `File "train.py"`},
	{`(?m)^\[2\] +[~^]+\n`, ""}, // which Python underlines depends on its version
}

// The picture in README is what muster shows: a real run, drawn. MUSTER_PICTURE=write (make picture) draws it anew.
func TestReadmePicture(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"muster": self, "python": python} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(pictureScript), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "exec "+pictureLine)
	cmd.Dir = dir
	cmd.Env = append(drive.CleanEnviron(), "PATH="+dir+":/usr/bin:/bin", "MUSTER_LOG_FORMAT=text", "MUSTER_WARM=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shown := string(out)
	for _, v := range pictureVaries {
		shown = regexp.MustCompile(v.form).ReplaceAllString(shown, v.as)
	}
	drawn := drawTerminal(pictureLine, strings.TrimSpace(shown))
	if os.Getenv("MUSTER_PICTURE") == "write" {
		if err := os.WriteFile(picture, []byte(drawn), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	// Two streams flow into one: which line comes first differs, no more.
	if got, want := pictureWords(t, drawn), pictureWords(t, string(kept)); !slices.Equal(got, want) {
		t.Errorf("docs/terminal.svg shows\n%s\nand muster\n%s\nmake picture draws it anew", strings.Join(want, "\n"),
			strings.Join(got, "\n"))
	}
}

// pictureWords are the lines of text in a picture, sorted.
func pictureWords(t *testing.T, svg string) []string {
	t.Helper()
	var doc struct {
		Lines []struct {
			Parts []string `xml:"tspan"`
		} `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(svg), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Lines) < 8 {
		t.Fatalf("the picture has %d lines", len(doc.Lines))
	}
	var lines []string
	for _, l := range doc.Lines {
		lines = append(lines, strings.Join(l.Parts, ""))
	}
	slices.Sort(lines)
	return lines
}

var pictureParts = regexp.MustCompile(`^(\[\d\] |\d\d:\d\d:\d\d )?(error |warn  )?(.*)$`)

// drawTerminal draws a command and what it showed, readable on a light page and on a dark one.
func drawTerminal(command, shown string) string {
	lines := strings.Split(shown, "\n")
	width := len(command) + 2
	for _, l := range lines {
		width = max(width, len(l))
	}
	const lineHeight, em = 20, 8.4
	w, h := int(float64(width)*em)+40, (len(lines)+1)*lineHeight+36
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">
<title>A worker fails, muster names it and starts the workers again</title>
<style>
rect { fill: #f6f8fa; stroke: #d0d7de } text { font: 14px ui-monospace, Menlo, Consolas, monospace; white-space: pre; fill: #1f2328 }
.dim { fill: #656d76 } .rank { fill: #0550ae } .error { fill: #cf222e; font-weight: bold } .warn { fill: #7d4e00 } `+
		`.bold { font-weight: bold }
@media (prefers-color-scheme: dark) {
rect { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 }
.dim { fill: #8d96a0 } .rank { fill: #79c0ff } .error { fill: #ff7b72 } .warn { fill: #e3b341 }
}
</style>
<rect x="0.5" y="0.5" width="%d" height="%d" rx="8"/>
`, w, h, w, h, escaped("Terminal: "+command), w-1, h-1)
	at := func(i int) int { return 30 + i*lineHeight }
	fmt.Fprintf(&b, `<text x="20" y="%d"><tspan class="dim">$ </tspan><tspan class="bold">%s</tspan></text>`+"\n", at(0), escaped(command))
	for i, l := range lines {
		m := pictureParts.FindStringSubmatch(l)
		front := "dim"
		if strings.HasPrefix(m[1], "[") {
			front = "rank"
		}
		fmt.Fprintf(&b, `<text x="20" y="%d" xml:space="preserve">`, at(i+1))
		for _, p := range []struct{ class, text string }{{front, m[1]}, {strings.TrimSpace(m[2]), m[2]}, {"plain", m[3]}} {
			if p.text != "" {
				fmt.Fprintf(&b, `<tspan class="%s">%s</tspan>`, p.class, escaped(p.text))
			}
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a builder takes everything
	return b.String()
}
