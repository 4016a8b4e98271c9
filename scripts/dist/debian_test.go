package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"muster/internal/testutil"
)

// dpkg installs the package into a root of its own, finds all files as the package says, and removes it without a
// trace.
func TestDebianPackage(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		testutil.Missing(t, "root, as whom dpkg installs")
	}
	deb, root := the(t, packages(t), "*_"+runtime.GOARCH+".deb"), t.TempDir()
	for _, dir := range []string{"updates", "info", "triggers"} {
		if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"status", "available"} {
		if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"Package": distribution, "Version": testDebian, "Architecture": runtime.GOARCH} {
		if got := strings.TrimSpace(must(t, nil, "dpkg-deb", "-f", deb, name)); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if listed := must(t, nil, "dpkg-deb", "-c", deb); strings.Contains(listed, "somebody") || !strings.Contains(listed, "root/root") {
		t.Errorf("files of others than root:\n%s", listed)
	}
	dpkg := []string{"--root=" + root, "--force-architecture"}
	must(t, nil, "dpkg", append(dpkg, "-i", deb)...)
	if said := must(t, nil, root+"/usr/bin/muster", "--version"); strings.TrimSpace(said) != "muster version "+testVersion {
		t.Errorf("muster --version says %q", said)
	}
	if said, err := did(t, nil, "dpkg", append(dpkg, "--verify", distribution)...); err != nil || said != "" {
		t.Errorf("dpkg --verify: %v, %s", err, said)
	}
	if page := must(t, nil, "zcat", root+"/usr/share/man/man1/muster-run.1.gz"); !strings.Contains(page, ".TH \"MUSTER-RUN\" \"1\"") ||
		!strings.Contains(page, "muster "+testVersion) || !strings.Contains(page, "max-restarts") {
		t.Errorf("the man page says %.400s", page)
	}
	must(t, nil, "bash", "-n", root+"/usr/share/bash-completion/completions/muster")
	for _, name := range []string{
		"zsh/vendor-completions/_muster", "fish/vendor_completions.d/muster.fish",
		"doc/muster-launch/copyright",
	} {
		if st, err := os.Stat(filepath.Join(root, "usr/share", name)); err != nil || st.Size() < 100 || st.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	must(t, nil, "dpkg", append(dpkg, "--purge", distribution)...)
	if left, _ := filepath.Glob(root + "/usr/*"); len(left) > 0 {
		t.Errorf("dpkg --purge left %q", left)
	}
}
