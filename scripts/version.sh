#!/usr/bin/env bash
# Prints the version of this checkout: the tag vX.Y.Z behind which it lies, and -N-gHASH where N commits came after it, -dirty where
# files were changed. Before the first tag it is v0.0.0-N-gHASH. VERSION from the environment comes before all this: a source
# archive has neither tags nor commits.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${VERSION:-}" ]; then
	version=$VERSION
elif ! git rev-parse --verify -q HEAD >/dev/null 2>&1; then
	version=v0.0.0
elif ! version=$(git describe --tags --abbrev=9 --dirty --match 'v[0-9]*.[0-9]*.[0-9]*' 2>/dev/null); then
	version=v0.0.0-$(git rev-list --count HEAD)-g$(git describe --always --abbrev=9 --exclude '*' --dirty)
fi
number='(0|[1-9][0-9]*)'
[[ $version =~ ^v$number\.$number\.$number(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$ ]] ||
	{ echo "version: $version is no semantic version with a v in front, such as v1.2.3 or v1.2.3-rc.1" >&2; exit 2; }
echo "$version"
