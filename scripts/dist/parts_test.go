package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The list of parts has the fields that SPDX 2.3 requires, and names what Go has recorded in the binary.
func TestListOfParts(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(packages(t), "muster-linux-"+runtime.GOARCH)
	text, err := os.ReadFile(binary + ".spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	var plain map[string]any
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	requires(t, "document", plain, "spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo", "packages",
		"relationships")
	for _, p := range plain["packages"].([]any) {
		requires(t, "package", p.(map[string]any), "SPDXID", "name", "downloadLocation", "versionInfo", "licenseConcluded",
			"licenseDeclared", "copyrightText")
	}
	for _, r := range plain["relationships"].([]any) {
		requires(t, "relationship", r.(map[string]any), "spdxElementId", "relationshipType", "relatedSpdxElement")
	}
	var doc spdxDocument
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse("2006-01-02T15:04:05Z", doc.CreationInfo.Created); err != nil || len(doc.CreationInfo.Creators) == 0 {
		t.Errorf("%+v, %v", doc.CreationInfo, err)
	}
	if !strings.HasPrefix(doc.DocumentNamespace, "urn:") || strings.Contains(doc.DocumentNamespace, "#") || doc.DataLicense != "CC0-1.0" {
		t.Errorf("namespace %s, licence %s", doc.DocumentNamespace, doc.DataLicense)
	}
	ids, versions := map[string]bool{"SPDXRef-DOCUMENT": true}, map[string]string{}
	license := regexp.MustCompile(`^(Apache-2\.0|MPL-2\.0|ISC|MIT|BSD-[23]-Clause)( AND (Apache-2\.0|MPL-2\.0|ISC|MIT|BSD-[23]-Clause))*$`)
	for _, p := range doc.Packages {
		if !regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`).MatchString(p.SPDXID) || ids[p.SPDXID] {
			t.Errorf("the id %q is none, or there twice", p.SPDXID)
		}
		if !license.MatchString(p.LicenseConcluded) {
			t.Errorf("%s has the licence %q", p.Name, p.LicenseConcluded)
		}
		ids[p.SPDXID], versions[p.Name] = true, p.VersionInfo
	}
	for _, r := range doc.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("a relationship of what is not there: %+v", r)
		}
	}
	if sum := sums(t, filepath.Dir(binary))[filepath.Base(binary)]; doc.Packages[0].Checksums[0].Value != sum {
		t.Errorf("the checksum of the binary is %s, not %s", sum, doc.Packages[0].Checksums[0].Value)
	}
	notices, err := os.ReadFile(binary + ".THIRD-PARTY-NOTICES.txt")
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) < 10 || len(doc.Packages) != len(info.Deps)+2 {
		t.Errorf("%d modules inside, %d packages listed", len(info.Deps), len(doc.Packages))
	}
	for _, d := range info.Deps {
		if versions[d.Path] != d.Version {
			t.Errorf("%s is inside as %s and listed as %q", d.Path, d.Version, versions[d.Path])
		}
		if !strings.Contains(string(notices), "\n"+d.Path+" "+d.Version+": ") {
			t.Errorf("the notices lack the licence of %s", d.Path)
		}
	}
}

func requires(t *testing.T, what string, of map[string]any, names ...string) {
	t.Helper()
	for _, name := range names {
		if v, there := of[name]; !there || v == "" || v == nil {
			t.Errorf("a %s lacks %s: %v", what, name, of["name"])
		}
	}
}

func TestUnknownLicenceEndsTheBuild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := part{path: "example.org/mine"}
	if err := p.readLicense(dir); err == nil || !strings.Contains(err.Error(), "example.org/mine has no licence file") {
		t.Errorf("without a licence: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE.md"), []byte("Do with it what I tell you."), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.readLicense(dir); err == nil || !strings.Contains(err.Error(), "none that is known here") {
		t.Errorf("with an unknown licence: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "COPYING"), []byte("Mozilla Public\n * License, version 2.0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.readLicense(dir); err != nil || p.license != "MPL-2.0" {
		t.Errorf("the licence is %q, %v", p.license, err)
	}
}
