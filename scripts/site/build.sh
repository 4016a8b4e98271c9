#!/usr/bin/env bash
# Builds build/site from the pages of this repository. A link that leads nowhere is an error. It needs no network once
# mkdocs is installed:
#
#   build.sh ENVIRONMENT      a virtual environment that is made if it is not there
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1

if ! cmp -s scripts/site/requirements.txt "$venv/.complete"; then
	echo "site: installing mkdocs-material into $venv" >&2
	rm -rf "$venv"
	"${PYTHON:-python3}" -m venv "$venv"
	"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-input -r scripts/site/requirements.txt
	cp scripts/site/requirements.txt "$venv/.complete" # written last
fi

rm -rf build/site-pages build/site
mkdir -p build/site-pages
git ls-files -z -- '*.md' LICENSE docs examples | while IFS= read -r -d '' file; do
	case $file in
	docs/* | examples/* | README.md | ARCHITECTURE.md | CHANGELOG.md | SECURITY.md | LICENSE)
		install -D -m 644 "$file" "build/site-pages/$file"
		;;
	esac
done
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict -f scripts/site/mkdocs.yml # not --quiet, which has it count no warnings
echo "build/site/index.html"
