#!/usr/bin/env bash
# Installs what the demo and the tests run against, once per machine:
#
#   deps.sh venv   PyTorch from PyPI in a virtual environment under the cache folder (5.6 GB)
#   deps.sh all    the same, and as root on Debian: the old PyTorch and the network tools of some tests; promtool
#
# Everything that is there already is left alone; a second run takes well under a second.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
requirements=$here/requirements.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/muster-dev
version=$(sed -n 's/^torch==//p' "$requirements")
venv=$cache/torch-$version
stamp=$venv/.complete # holds the requirements it was made from; written last

say() { echo "deps: $*" >&2; }

venv_ready() { [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$stamp"; }

megabytes() { du -sm "$1" 2>/dev/null | cut -f1; } # files vanish while it looks

make_venv() {
	local python=${PYTHON:-python3} log=$cache/pip.log
	if [ -x "$venv/bin/python" ]; then
		local lacks
		if lacks=$("$venv/bin/python" "$here/venv_check.py" "$requirements" 2>&1); then
			say "adopting the complete environment $venv"
			cp "$requirements" "$stamp"
			return
		fi
		say "making $venv anew: $lacks"
	fi
	"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
		{ say "$python is missing or older than 3.10; set PYTHON"; return 1; }
	say "installing PyTorch $version into $venv (5.6 GB, some minutes)"
	rm -rf "$venv"
	"$python" -m venv "$venv" || { say "$python cannot make virtual environments (Debian: apt-get install python3-venv)"; return 1; }
	mkdir "$venv/tmp" # inside, so that nothing is left elsewhere by an install that was killed
	TMPDIR=$venv/tmp "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -r "$requirements" >"$log" 2>&1 &
	local pip=$! began=$SECONDS rc=0
	trap 'kill $pip 2>/dev/null || true' EXIT # a background job ignores the terminal's ^C
	while kill -0 "$pip" 2>/dev/null; do
		sleep 1
		[ $(((SECONDS - began) % 10)) -ne 9 ] || say "$((SECONDS - began)) s, $(megabytes "$venv/tmp") MB downloaded, $(megabytes "$venv/lib") of about 5600 MB installed"
	done
	wait "$pip" || rc=$?
	trap - EXIT
	rm -rf "$venv/tmp"
	if [ "$rc" -ne 0 ]; then
		tail -n 20 "$log" >&2
		say "pip failed with status $rc; its output is in $log"
		return 1
	fi
	"$venv/bin/python" "$here/venv_check.py" "$requirements" || return 1
	cp "$requirements" "$stamp"
	say "done after $SECONDS s"
}

# fewer_collections: see muster_tests_gc.py. Environments that were made before it have it, too.
fewer_collections() {
	local site
	for site in "$cache"/*/lib/python3*/site-packages; do
		[ -e "$site/muster_tests_gc.pth" ] && cmp -s "$here/muster_tests_gc.py" "$site/muster_tests_gc.py" && continue
		cp "$here/muster_tests_gc.py" "$site/muster_tests_gc.py"
		echo 'import muster_tests_gc' >"$site/muster_tests_gc.pth"
	done
}

# missing PACKAGE...: those that dpkg does not know as installed.
missing() {
	local package
	for package; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
	done
}

# The race detector links with gcc, torch.compile with g++; the rest are the real programs that tests talk to.
debian=(python3-torch iproute2 nftables procps gcc g++ libc6-dev cmake make etcd-server etcd-client faketime openssh-server openssh-client dropbear-bin pdsh tcsh slurmctld slurmd slurm-client munge busybox chromium fonts-dejavu-core default-jre-headless mmdebstrap musl-tools qemu-user-static)

install_debian() {
	local need=()
	mapfile -t need < <(missing "${debian[@]}")
	[ ${#need[@]} -eq 0 ] && return
	say "apt-get install ${need[*]}"
	apt-get -qq -o DPkg::Lock::Timeout=600 update >"$cache/apt.log" 2>&1 &&
		DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=600 --no-install-recommends install "${need[@]}" \
			>>"$cache/apt.log" 2>&1 </dev/null || { tail -n 20 "$cache/apt.log" >&2; say "apt-get failed; its output is in $cache/apt.log"; return 1; }
}

# install_promtool: Prometheus' own tool, out of Debian's package: nothing is installed, and no service starts.
install_promtool() {
	[ -x "$cache/promtool" ] && return
	local dir
	dir=$(mktemp -d "$cache/promtool.XXXXXX")
	say "unpacking promtool of Debian's package prometheus (19 MB)"
	(
		cd "$dir"
		chmod 755 . # apt reads as another user
		apt-get -qq -o DPkg::Lock::Timeout=600 download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }
		dpkg -x prometheus_*.deb files
		mv files/usr/bin/promtool "$cache/promtool"
	) >>"$cache/apt.log" 2>&1 </dev/null || { tail -n 20 "$cache/apt.log" >&2; rm -rf "$dir"; say "promtool is not there; its output is in $cache/apt.log"; return 1; }
	rm -rf "$dir"
}

# install_peers: the launchers that muster replaces, each in an environment of its own.
install_peers() {
	local script
	for script in "$here"/peers/*.sh; do
		[ "${script##*/}" = common.sh ] || "$script" "$cache" "$venv" >"$cache/peer.log" 2> >(tee -a "$cache/peer.log" >&2) ||
			{ tail -n 20 "$cache/peer.log" >&2; say "$script failed; its output is in $cache/peer.log"; return 1; }
	done
}

mkdir -p "$cache"
exec 9>"$cache/lock" # two checkouts or two makes at once: the second waits, then finds everything there
case ${1:-all} in
venv | all) ;;
*) say "usage: deps.sh [venv|all]"; exit 2 ;;
esac
if ! venv_ready; then
	flock -n 9 || { say "another run is installing; waiting for it"; flock 9; }
	venv_ready || make_venv 9>&-
	flock -u 9
fi
if [ "${1:-all}" = all ]; then
	if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
		say "no apt-get here: ${debian[*]} are not installed by me; tests that need one skip, or fail under make test"
	elif [ "$(id -u)" -ne 0 ]; then
		mapfile -t need < <(missing "${debian[@]}")
		[ ${#need[@]} -eq 0 ] || say "not root: missing ${need[*]}; tests that need one skip, or fail under make test"
	else
		flock 9
		install_debian 9>&-
		flock -u 9
	fi
	flock 9
	install_peers 9>&-
	if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
		install_promtool 9>&- || say "the test that needs promtool skips, or fails under make test"
	fi
fi
fewer_collections
