#!/usr/bin/env bash
# Makes the packages of all architectures: dist.sh OUTDIR. make dist calls it, with these variables:
#
#   GO_TAGS     build tags                        VERSION  the version (scripts/version.sh)
#   DIST_ARCHS  architectures (amd64 arm64)      MAINTAINER  of the Debian package: NAME <ADDRESS>
#   NVPROBE     auto: the probe goes into the binaries of which internal/accel/probe/blob has one; require: into all; off
#
# What is made depends on the commit, the version, the compilers and the probes alone: two runs give the same bytes.
set -euo pipefail
umask 022 # what is unpacked as root may be read by all
export LC_ALL=C TZ=UTC
out=$(realpath -m "${1:?usage: dist.sh OUTDIR}")
cd "$(dirname "$0")/.."
archs=${DIST_ARCHS:-amd64 arm64}
say() { echo "dist: $*" >&2; }

version=$(scripts/version.sh)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
linked="-s -w -X main.version=$version"

# Man pages and completions are text, the same for all architectures: a muster for this machine writes them. go run keeps
# what it has linked for the next time.
shared=$work/shared
mkdir -p "$shared/completion"
CGO_ENABLED=0 GOOS=linux GOARCH=$(go env GOHOSTARCH) go run -exec cp -trimpath -buildvcs=false -ldflags "$linked" \
	-tags "${GO_TAGS:-grpcnotrace},man" ./cmd/muster "$work/pages"
"$work/pages" man "$shared/man"
for shell in bash zsh fish; do "$work/pages" completion "$shell" >"$shared/completion/$shell"; done
go list -m -json all >"$work/modules.json"

rm -rf "$out"
mkdir -p "$out"
for arch in $archs; do
	tags=${GO_TAGS:-grpcnotrace} probe=()
	if [ "${NVPROBE:-auto}" != off ] && [ -s "internal/accel/probe/blob/nvprobe-$arch.gz" ]; then
		tags+=,nvprobe_embed
		probe=(-module github.com/NVIDIA/go-nvml)
		say "$arch: with the NVML probe"
	elif [ "${NVPROBE:-auto}" = require ]; then
		say "$arch: internal/accel/probe/blob/nvprobe-$arch.gz is missing: make release makes it, on a machine of this architecture"
		exit 1
	else
		say "$arch: without the NVML probe, nvidia-smi is asked instead"
	fi
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false -ldflags "$linked -buildid=" -tags "$tags" \
		-o "$out/muster-linux-$arch" ./cmd/muster
	go run ./scripts/elfcheck "$out/muster-linux-$arch"
	go run ./scripts/dist -version "$version" -arch "$arch" -epoch "$SOURCE_DATE_EPOCH" -shared "$shared" -modules "$work/modules.json" \
		-goroot "$(go env GOROOT)" -maintainer "${MAINTAINER:-}" "${probe[@]}" "$out"
done
cd "$out"
sha256sum -- * >SHA256SUMS
stat -c '%10s  %n' -- *
