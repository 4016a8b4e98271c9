#!/usr/bin/env bash
# Builds the NVML probe for release, so that it starts on every glibc since 2.17, whatever this machine has:
# nvprobe.sh OUT. Needs gcc, binutils and the C library's headers.
#
# glibc gave some functions new versions in 2.32 and 2.34, when libpthread and libdl moved into libc. The probe is
# therefore linked against empty libraries that have each function in the newest version that 2.17 knew, and are called
# what the libraries were called then. The loader goes by name and version, not by the file.
set -euo pipefail
out=${1:?usage: nvprobe.sh OUT}
newest=2.17
cd "$(dirname "$0")/.."
export CGO_ENABLED=1 CGO_CFLAGS="${CGO_CFLAGS:--O2 -g0 -Wno-deprecated-declarations}"
cc=${CC:-gcc}
command -v "$cc" >/dev/null || { echo "nvprobe: $cc is missing; the probe cannot be built here (make build does not need it)" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# -z lazy: hundreds of symbols come with NVML's library only; compilers of some distributions bind all at the start.
build() { go build -trimpath -ldflags "-s -w -linkmode external -extldflags \"-Wl,-z,lazy $2\"" -o "$1" ./cmd/nvprobe; }

build "$tmp/plain" ""
libc=$("$cc" -print-file-name=libc.so.6)
objdump -T "$tmp/plain" | awk '/\*UND\*/ && /GLIBC_/ { print $NF }' | sort -u >"$tmp/need"
# Symbol, version and type of all that libc exports, oldest first; the last one not above $newest wins.
objdump -T "$libc" | awk '$0 !~ /\*UND\*/ && match($0, /GLIBC_[0-9.]+/) { print $NF, substr($0, RSTART + 6, RLENGTH - 6), / DO / }' |
	sort -k2,2V >"$tmp/have"
awk -v newest="$newest" '
	function above(v,   a, b, i, n) { n = split(v, a, "."); split(newest, b, "."); for (i = 1; i <= n; i++) { if (a[i]+0 > b[i]+0) return 1; if (a[i]+0 < b[i]+0) return 0 } return 0 }
	NR == FNR { need[$1] = 1; next }
	($1 in need) && !above($2) { version[$1] = $2; data[$1] = $3 }
	END { for (s in need) { if (!(s in version)) { print "nvprobe: no " s " as old as glibc " newest > "/dev/stderr"; bad = 1 } else print version[s], s, data[s] } exit bad }
' "$tmp/need" "$tmp/have" | sort -k1,1V -k2,2 >"$tmp/chosen"
awk '{ print $3 ? "void *" $2 ";" : "void " $2 "(void) {}" }' "$tmp/chosen" >"$tmp/stub.c"
awk '$1 != last { if (last) print "};"; print "GLIBC_" $1 " {"; last = $1 } { print "  " $2 ";" } END { if (last) print "};" }' "$tmp/chosen" >"$tmp/stub.map"
: >"$tmp/empty.c"
stub() { "$cc" -w -fno-builtin -shared -nostdlib -fPIC "-Wl,-soname,$1" "${@:3}" -o "$tmp/$2"; }
stub libc.so.6 libc_stub.so "-Wl,--version-script=$tmp/stub.map" "$tmp/stub.c"
stub libpthread.so.0 libpthread_stub.so "$tmp/empty.c"
stub libdl.so.2 libdl_stub.so "$tmp/empty.c"
mkdir -p "$(dirname "$out")"
build "$tmp/probe" "-nodefaultlibs -Wl,--no-as-needed $tmp/libc_stub.so $tmp/libpthread_stub.so $tmp/libdl_stub.so -Wl,--as-needed -lgcc"

go run ./scripts/elfcheck -probe "$tmp/probe"
# On a library without GPUs it must run to its end.
"$cc" -w -shared -fPIC -o "$tmp/fake.so" internal/accel/probe/testdata/fakenvml.c
last=$(env -u LD_BIND_NOW MUSTER_NVML_PATH="$tmp/fake.so" "$tmp/probe" | tail -n 1)
[ "$last" = '{"t":"done"}' ] || { echo "nvprobe: it does not run: $last" >&2; exit 1; }
mv "$tmp/probe" "$out"
echo "nvprobe: $out, $(stat -c %s "$out") bytes" >&2
