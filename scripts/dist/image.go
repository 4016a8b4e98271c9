package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// object is a JSON object; encoding/json writes its names in order.
type object = map[string]any

// image is the container image of images/Dockerfile as an archive, made without a daemon: muster, its licences, an
// empty /tmp. It is an OCI layout that has manifest.json besides, so that docker load, podman load and skopeo read it.
func image(r *release) (name string, content []byte, err error) {
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return "", nil, err
	}
	const doc = "usr/share/doc/muster/"
	plain, err := tarred([]file{
		{"tmp/", nil, 0o1777},
		{"usr/bin/muster", r.binary, 0o755},
		{doc + "LICENSE", license, 0o644},
		{doc + "THIRD-PARTY-NOTICES.txt", r.notices, 0o644},
	}, "", r.made)
	if err != nil {
		return "", nil, err
	}
	layer, err := r.gzipped(plain)
	if err != nil {
		return "", nil, err
	}
	created, tag := r.made.Format(time.RFC3339), r.version.tag()
	blobs := map[string][]byte{}
	keep := func(content []byte, media string) object {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		blobs["blobs/sha256/"+digest] = content
		return object{"mediaType": media, "digest": "sha256:" + digest, "size": len(content)}
	}
	keepJSON := func(o object, media string) object {
		text, failed := json.Marshal(o)
		if failed != nil {
			err = failed
		}
		return keep(text, media)
	}
	const oci = "application/vnd.oci.image."
	config := keepJSON(object{
		"created": created, "architecture": r.arch, "os": "linux",
		"config": object{
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"WorkingDir": "/tmp", "Entrypoint": []string{"/usr/bin/muster"}, "Cmd": []string{"--help"},
			"Labels": object{
				"org.opencontainers.image.title": "muster", "org.opencontainers.image.version": tag,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
		"rootfs":  object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(plain))}},
		"history": []object{{"created": created, "created_by": "muster scripts/dist"}},
	}, oci+"config.v1+json")
	packedLayer := keep(layer, oci+"layer.v1.tar+gzip")
	manifest := keepJSON(object{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config, "layers": []object{packedLayer},
	}, oci+"manifest.v1+json")
	manifest["platform"] = object{"architecture": r.arch, "os": "linux"}
	manifest["annotations"] = object{"org.opencontainers.image.ref.name": tag}
	at := func(o object) string {
		return "blobs/sha256/" +
			o["digest"].(string)[len("sha256:"):]
	} //nolint:forcetypeassert // keep has set it
	index, failed := json.Marshal(object{"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": []object{manifest}})
	if failed != nil || err != nil {
		return "", nil, fmt.Errorf("cannot write the image: %w, %w", failed, err)
	}
	docker, err := json.Marshal([]object{{
		"Config": at(config), "RepoTags": []string{"muster:" + tag},
		"Layers": []string{at(packedLayer)},
	}})
	if err != nil {
		return "", nil, err
	}
	var files []file
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		files = append(files, file{name, blobs[name], 0o644})
	}
	content, err = tarred(append(files, file{"index.json", index, 0o644}, file{"manifest.json", docker, 0o644},
		file{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644}), "", r.made)
	return "muster-image-linux-" + r.arch + ".tar", content, err
}
