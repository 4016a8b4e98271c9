package main

import (
	"fmt"
	"regexp"
	"strings"
)

// version is what scripts/version.sh prints, in its parts: vX.Y.Z[-PRE][-COMMITS-gHASH][-dirty].
type version struct {
	core, pre, commits, hash string
	dirty                    bool
}

var versionForm = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.-]+?))??(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

func parseVersion(text string) (version, error) {
	m := versionForm.FindStringSubmatch(text)
	if m == nil {
		return version{}, fmt.Errorf("version %q is none, such as v1.2.3, v1.2.3-rc.1 or v1.2.3-4-gabcdef012", text)
	}
	v := version{core: m[1], pre: m[2], commits: m[3], hash: m[4], dirty: m[5] != ""}
	if _, err := v.python(); err != nil {
		return version{}, err
	}
	return v, nil
}

// behind is what stands behind the plus in the versions of packages: how many commits lie behind the tag, and which is
// built.
func (v version) behind() string {
	var parts []string
	if v.commits != "" {
		parts = append(parts, "g"+v.hash)
	}
	if v.dirty {
		parts = append(parts, "dirty")
	}
	if len(parts) == 0 {
		return ""
	}
	return "+" + strings.Join(parts, ".")
}

var pythonPre = regexp.MustCompile(`^(alpha|beta|rc)\.?(\d+)$`)

// python is the version as PEP 440 writes it: commits behind a tag are a post-release, so that they count as newer.
func (v version) python() (string, error) {
	text := v.core
	if v.pre != "" {
		m := pythonPre.FindStringSubmatch(v.pre)
		if m == nil {
			return "", fmt.Errorf("-%s cannot be written as Python's version: behind the hyphen goes alpha.N, beta.N or rc.N", v.pre)
		}
		text += map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[m[1]] + m[2]
	}
	if v.commits != "" {
		text += ".post" + v.commits
	}
	return text + v.behind(), nil
}

// debian is the version as dpkg orders it: ~ comes before everything, even the end.
func (v version) debian() string {
	text := v.core
	if v.pre != "" {
		text += "~" + strings.ReplaceAll(v.pre, "-", ".")
	}
	if v.commits != "" {
		text += "+" + v.commits + ".g" + v.hash
	}
	if v.dirty {
		text += "+dirty"
	}
	return text
}

// tag is the version as scripts/version.sh has printed it. A tag of an image may be so written, too.
func (v version) tag() string {
	text := "v" + v.core
	if v.pre != "" {
		text += "-" + v.pre
	}
	if v.commits != "" {
		text += "-" + v.commits + "-g" + v.hash
	}
	if v.dirty {
		text += "-dirty"
	}
	return text
}
