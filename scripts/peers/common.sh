# Sourced by NAME.sh, which deps.sh runs with the folder of our environments and that of the environment with PyTorch.
# peer NAME VERSION makes the environment NAME-VERSION and sets V (its folder); peer_ready is true where it is complete.
set -euo pipefail
cache=$1 torch=$2

peer() {
	V=$cache/$1-$2
	name="$1 $2"
}

peer_ready() { [ -e "$V/.complete" ]; }

# peer_venv makes it anew; packages of the environment with PyTorch are seen behind its own.
peer_venv() {
	echo "deps: installing $name into $V" >&2
	rm -rf "$V"
	"$torch/bin/python" -m venv "$V"
	peer_site "$torch" >"$(peer_site)/zz_torch.pth"
	mkdir "$V/tmp"
	export TMPDIR=$V/tmp
}

# peer_site [ENVIRONMENT] prints the folder of its packages; default: the one that is being made.
peer_site() { "${1:-$V}/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

peer_pip() { "$V/bin/python" -m pip install -q --disable-pip-version-check --no-input --no-warn-script-location "$@" >&2; }

peer_done() {
	rm -rf "$V/tmp"
	touch "$V/.complete"
}
