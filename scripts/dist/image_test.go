package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"muster/internal/testutil"
)

// untar returns the regular files of an archive, and the modes of all that is in it.
func untar(t *testing.T, content []byte) (files map[string][]byte, modes map[string]int64) {
	t.Helper()
	files, modes = map[string][]byte{}, map[string]int64{}
	for r := tar.NewReader(bytes.NewReader(content)); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, modes
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[head.Name] = head.Mode
		if head.Typeflag == tar.TypeReg {
			if files[head.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The image is a whole OCI layout, every digest fits, and its root file system is all that muster needs.
func TestImageRuns(t *testing.T) {
	t.Parallel()
	archive, err := os.ReadFile(the(t, packages(t), "*-image-linux-"+runtime.GOARCH+".tar"))
	if err != nil {
		t.Fatal(err)
	}
	files, _ := untar(t, archive)
	for name, content := range files {
		if digest, blob := strings.CutPrefix(name, "blobs/sha256/"); blob && fmt.Sprintf("%x", sha256.Sum256(content)) != digest {
			t.Errorf("%s has other bytes", name)
		}
	}
	type descriptor struct {
		Digest string
		Size   int
	}
	blob := func(d descriptor, into any) []byte {
		content, there := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if !there || len(content) != d.Size {
			t.Fatalf("blob %s of %d bytes: there: %v, %d bytes", d.Digest, d.Size, there, len(content))
		}
		if into != nil {
			if err := json.Unmarshal(content, into); err != nil {
				t.Fatal(err)
			}
		}
		return content
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("%v, %s", err, files["index.json"])
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	blob(index.Manifests[0], &manifest)
	var config struct {
		Architecture string
		Config       struct {
			Entrypoint, Cmd []string
			WorkingDir      string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	blob(manifest.Config, &config)
	if config.Config.WorkingDir != "/tmp" { // as images/Dockerfile has it
		t.Errorf("the working directory is %q", config.Config.WorkingDir)
	}
	unzip, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0], nil)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(unzip)
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(layer)); !slices.Equal(config.RootFS.DiffIDs, []string{sum}) ||
		config.Architecture != runtime.GOARCH {
		t.Errorf("the layer is %s; %+v", sum, config)
	}
	inside, modes := untar(t, layer)
	if modes["tmp/"] != 0o1777 || modes["usr/bin/muster"] != 0o755 || len(inside) != 3 {
		t.Errorf("modes %v", modes)
	}
	if os.Getuid() != 0 {
		testutil.Missing(t, "root, who can change the root directory")
	}
	root := t.TempDir()
	for name, content := range inside {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"tmp", "proc", "dev"} { // a container's runtime brings the last two
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	within := func(script string) (string, error) {
		cmd := exec.Command("/bin/sh", "-c", script, "sh", root)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	if said, err := within(`chroot "$1" ` + config.Config.Entrypoint[0] + ` --version`); err != nil ||
		strings.TrimSpace(said) != "muster version "+testVersion {
		t.Errorf("--version in an empty root: %v, %s", err, said)
	}
	said, err := within(
		`mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && ` +
			`exec chroot "$1" /usr/bin/muster run -n 2 -- /usr/bin/muster --version`)
	if err != nil || strings.Count(said, "muster version "+testVersion) != 2 {
		t.Errorf("a job in an empty root: %v, %s", err, said)
	}
}

// No daemon is at hand to build them: the Dockerfiles have known instructions only, copy what a release has, and start
// what muster takes.
func TestDockerfiles(t *testing.T) {
	t.Parallel()
	dir := packages(t)
	pages, err := filepath.Glob("images/Dockerfile*")
	if err != nil || len(pages) != 2 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		joined := strings.ReplaceAll(regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(text), ""), "\\\n", " ")
		args := map[string]string{}
		var command []string
		for line := range strings.Lines(joined) {
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			for name, value := range args {
				rest = strings.ReplaceAll(rest, "${"+name+"}", value)
			}
			switch word {
			case "":
			case "ARG":
				name, value, given := strings.Cut(rest, "=")
				if !given {
					t.Errorf("%s: %s has no default", page, name)
				}
				args[name] = value
				if name == "TARGETARCH" {
					args[name] = runtime.GOARCH
				}
			case "FROM":
				if rest != "scratch" && !strings.Contains(rest, ":") {
					t.Errorf("%s: base %q", page, rest)
				}
			case "COPY":
				words := slices.DeleteFunc(strings.Fields(rest), func(w string) bool { return strings.HasPrefix(w, "--") })
				for _, from := range words[:len(words)-1] {
					if found, _ := filepath.Glob(filepath.Join(dir, from)); len(found) == 0 && from != "train.py" {
						t.Errorf("%s copies %s, which no release has", page, from)
					}
				}
			case "RUN":
				must(t, nil, "sh", "-n", "-c", rest)
			case "ENTRYPOINT", "CMD":
				var words []string
				if err := json.Unmarshal([]byte(rest), &words); err != nil {
					t.Errorf("%s: %s is no list, so a shell stands between: %v", page, word, err)
				}
				command = append(command, words...)
			case "ENV", "WORKDIR":
			default:
				t.Errorf("%s: instruction %q", page, word)
			}
		}
		if len(command) < 2 || filepath.Base(command[0]) != "muster" {
			t.Fatalf("%s starts %q", page, command)
		}
		if command[1] == "run" {
			command = slices.Insert(command, 1, "--dry-run")
		}
		start := exec.Command(filepath.Join(dir, "muster-linux-"+runtime.GOARCH), command[1:]...)
		start.Dir = t.TempDir()
		if err := os.WriteFile(filepath.Join(start.Dir, "train.py"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := start.CombinedOutput(); err != nil {
			t.Errorf("%s starts %q: %v\n%s", page, command, err, said)
		}
	}
}
