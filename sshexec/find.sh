# Looks for our binary on a machine, and becomes it. A nonce comes over standard input, for the answers; all that follows
# there is for the binary. Arguments: the short hash of the binary, the whole one, its size, the machine type that it runs on,
# its version, and then its own arguments.
#
# This is run by any login shell as one line between single quotes. So each line ends where a command may end, and there are
# no single quotes, no backslashes and no exclamation marks: csh and fish would read them in their own ways.
IFS= read -r n || { echo; echo "muster-bootstrap: nostdin"; exit 97; };
say() { echo; echo "muster-bootstrap: $n $*"; };
k=$1; h=$2; s=$3; m=$4; v=$5; shift 5;
c=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/muster/bin; u=$(id -u); a=$(uname -m);
good() { [ -f "$1" ] && [ -x "$1" ] && if command -v sha256sum >/dev/null 2>&1; then [ "$(sha256sum <"$1" | cut -c 1-64)" = "$h" ]; else [ "$(($(wc -c <"$1")))" = "$s" ]; fi; };
mine() { set -- $(ls -ldn "$1" 2>/dev/null); case $1:$3 in drwx?-??-?*:$u) ;; *) return 1 ;; esac; };
if [ "$a" = "$m" ]; then
for d in "$c" "/tmp/muster-bin-$u" "/dev/shm/muster-bin-$u"; do
[ "$d" = "$c" ] || mine "$d" || continue;
if good "$d/muster-$k"; then say run; exec "$d/muster-$k" "$@"; fi;
done;
fi;
p=$(command -v muster 2>/dev/null);
case $p in
/*) if [ "$a" = "$m" ]; then good "$p"; else [ -n "$v" ] && [ "$("$p" --version 2>/dev/null </dev/null | head -n 1)" = "$v" ]; fi && { say run; exec "$p" "$@"; } ;;
esac;
if [ "$a" = "$m" ]; then z=plain; command -v gzip >/dev/null 2>&1 && z=gzip; say need $z; else say machine "$a"; fi
