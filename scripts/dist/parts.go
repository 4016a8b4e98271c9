package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// part is a module inside the binary, with its licence.
type part struct {
	path, version, purl string
	sum                 string // as go.sum has it
	license             string // an SPDX expression
	texts               []file
}

// readParts reads in the binary which modules are inside; more are those that are there as data. A module without a
// licence file, or with a licence that is not known here, is an error: somebody has to read it first.
func readParts(binary, modules, goroot string, more []string) ([]part, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("cannot read what is inside %s: %w", binary, err)
	}
	listed, err := readModules(modules)
	if err != nil {
		return nil, err
	}
	golang := part{path: "Go standard library", version: info.GoVersion, purl: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	if err := golang.readLicense(goroot); err != nil {
		return nil, err
	}
	parts := []part{golang}
	for _, d := range info.Deps {
		if !slices.Contains(more, d.Path) {
			more = append(more, d.Path)
		}
	}
	slices.Sort(more)
	for _, path := range more {
		m, found := listed[path]
		if !found || m.Dir == "" {
			return nil, fmt.Errorf("module %s, which is inside, is not on this machine: go mod download fetches it", path)
		}
		if m.Replace != nil {
			return nil, fmt.Errorf("module %s is replaced by %s: the list of parts cannot name that", path, m.Replace.Path)
		}
		p := part{path: path, version: m.Version, sum: m.Sum, purl: "pkg:golang/" + path + "@" + m.Version}
		if err := p.readLicense(m.Dir); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// module is what go list -m -json says of one.
type module struct {
	Path, Version, Dir, Sum string
	Replace                 *struct{ Path string }
}

func readModules(path string) (map[string]module, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	found := map[string]module{}
	for from := json.NewDecoder(f); ; {
		var m module
		if err := from.Decode(&m); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", path, err)
		}
		found[m.Path] = m
	}
}

var (
	licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice|patents|unlicense)([.-].*)?$`)
	blank       = regexp.MustCompile(`[\s*>#]+`)
)

// licenses are words that stand in a licence's text, with white space made single. The first of a family that fits
// names it.
var licenses = []struct{ name, words string }{
	{"Apache-2.0", "Apache License Version 2.0, January 2004"},
	{"Apache-2.0", "Licensed under the Apache License, Version 2.0"},
	{"MPL-2.0", "Mozilla Public License, version 2.0"},
	{"MPL-2.0", "Mozilla Public License Version 2.0"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"},
	{"ISC", "Permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation"},
	{"BSD-3-Clause", "may be used to endorse or promote products derived from"},
	{"BSD-2-Clause", "Redistributions of source code must retain the above copyright notice"},
}

// identify returns the licences whose words are in a text.
func identify(text string) []string {
	text = blank.ReplaceAllString(text, " ")
	var found []string
	for _, l := range licenses {
		if strings.Contains(text, l.words) && !slices.Contains(found, l.name) &&
			(l.name != "BSD-2-Clause" || !slices.Contains(found, "BSD-3-Clause")) {
			found = append(found, l.name)
		}
	}
	return found
}

func (p *part) readLicense(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() || !licenseFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		p.texts = append(p.texts, file{e.Name(), text, 0o644})
		names = append(names, identify(string(text))...)
	}
	if len(p.texts) == 0 {
		return fmt.Errorf("%s has no licence file in %s", p.path, dir)
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return fmt.Errorf("the licence of %s is none that is known here: read it in %s", p.path, dir)
	}
	p.license = strings.Join(names, " AND ")
	return nil
}

// notices are the licences of all parts, which have to go with every copy.
func notices(version string, parts []part) []byte {
	var out strings.Builder
	fmt.Fprintf(&out, "muster %s is licensed under the Apache License 2.0. It contains software of others, whose licences follow.\n\n",
		version)
	for _, p := range parts {
		fmt.Fprintf(&out, "  %s %s: %s\n", p.path, p.version, p.license)
	}
	rule := strings.Repeat("=", 100)
	for _, p := range parts {
		for _, t := range p.texts {
			fmt.Fprintf(&out, "\n%s\n%s %s: %s\n%s\n\n%s\n", rule, p.path, p.version, t.name, rule, strings.TrimSpace(string(t.content)))
		}
	}
	return []byte(out.String())
}

// The list of parts in the form of SPDX 2.3.
type (
	spdxDocument struct {
		SPDXVersion       string         `json:"spdxVersion"`
		DataLicense       string         `json:"dataLicense"`
		SPDXID            string         `json:"SPDXID"`
		Name              string         `json:"name"`
		DocumentNamespace string         `json:"documentNamespace"`
		CreationInfo      spdxCreation   `json:"creationInfo"`
		Packages          []spdxPackage  `json:"packages"`
		Relationships     []spdxRelation `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string         `json:"SPDXID"`
		Name             string         `json:"name"`
		VersionInfo      string         `json:"versionInfo"`
		PackageFileName  string         `json:"packageFileName,omitempty"`
		DownloadLocation string         `json:"downloadLocation"`
		FilesAnalyzed    bool           `json:"filesAnalyzed"`
		LicenseConcluded string         `json:"licenseConcluded"`
		LicenseDeclared  string         `json:"licenseDeclared"`
		CopyrightText    string         `json:"copyrightText"`
		Comment          string         `json:"comment,omitempty"`
		Checksums        []spdxChecksum `json:"checksums,omitempty"`
		ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRef struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelation struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

func sbom(r *release, name string, parts []part) ([]byte, error) {
	const none = "NOASSERTION"
	digest := fmt.Sprintf("%x", sha256.Sum256(r.binary))
	doc := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name + "-" + r.version.tag(),
		DocumentNamespace: "urn:sha256:" + digest, // a name that no other document has: the binary's checksum makes it so
		CreationInfo:      spdxCreation{r.made.Format(time.RFC3339), []string{"Tool: muster-scripts-dist"}},
		Packages: []spdxPackage{{
			SPDXID: "SPDXRef-muster", Name: "muster", VersionInfo: r.version.tag(), PackageFileName: name, DownloadLocation: none,
			LicenseConcluded: "Apache-2.0", LicenseDeclared: "Apache-2.0", CopyrightText: none,
			Checksums: []spdxChecksum{{"SHA256", digest}},
		}},
		Relationships: []spdxRelation{{"SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-muster"}},
	}
	for i, p := range parts {
		id := fmt.Sprintf("SPDXRef-part-%d", i)
		pack := spdxPackage{
			SPDXID: id, Name: p.path, VersionInfo: p.version, DownloadLocation: none, LicenseConcluded: p.license,
			LicenseDeclared: p.license, CopyrightText: none, ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", p.purl}},
		}
		if p.sum != "" {
			pack.Comment = "Go's checksum of the module: " + p.sum
		}
		doc.Packages = append(doc.Packages, pack)
		doc.Relationships = append(doc.Relationships, spdxRelation{"SPDXRef-muster", "CONTAINS", id})
	}
	text, err := json.MarshalIndent(doc, "", " ")
	return append(text, '\n'), err
}
