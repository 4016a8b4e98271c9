# Takes our binary from standard input, behind a line with a nonce, and puts it into the first directory of three that has
# Takes our binary from standard input, behind a line with a nonce, and puts it into the first directory of three that has
# room and lets files be executed. The last two are not those of run directories, which go when they are empty. Arguments:
# the short hash, the whole one, the size, gzip or plain, and how many of the directories were tried before. The file gets
# its name when it is complete and on the disk: a machine that loses its power must not keep half of it under that name.
# For what this must not contain, and for the file that ends in .ok, see find.sh.
IFS= read -r n || exit 97;
say() { echo; echo "muster-bootstrap: $n $*"; };
k=$1; h=$2; s=$3; z=$4; skip=$5; umask 077; why=; i=0;
c=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/muster/bin; u=$(id -u);
good() { [ -f "$1" ] && [ -x "$1" ] && if command -v sha256sum >/dev/null 2>&1; then [ "$(sha256sum <"$1" | cut -c 1-64)" = "$h" ]; else [ "$(($(wc -c <"$1")))" = "$s" ]; fi; };
mine() { set -- $(ls -ldn "$1" 2>/dev/null); case $1:$3 in drwx?-??-?*:$u) ;; *) return 1 ;; esac; };
room() { set -- $(df -Pk "$1" 2>/dev/null | tail -n 1); case $4 in *[0-9]) [ "$4" -gt $((s / 1024)) ] ;; esac; };
runs() { echo : >"$1" && chmod 700 "$1" && "$1"; r=$?; rm -f "$1"; return $r; };
for d in "$c" "/tmp/muster-bin-$u" "/dev/shm/muster-bin-$u"; do
i=$((i + 1)); [ $i -gt "$skip" ] || continue;
if [ "$d" = "$c" ]; then e=$(mkdir -p "$d" 2>&1) || { why="$why $e;"; continue; }; else mkdir "$d" 2>/dev/null; mine "$d" || { why="$why $d is not ours alone;"; continue; }; fi;
good "$d/muster-$k" && { true >"$d/.muster-$k.ok"; say done; exit; };
room "$d" || { why="$why $d has no room for $s bytes;"; continue; };
e=$({ runs "$d/.muster-try.$n"; } 2>&1) || { why="$why $d takes no programs (${e##*: });"; continue; };
t=$d/.muster-$k.$n;
if { if [ "$z" = gzip ]; then gzip -dc; else cat; fi; } >"$t" && chmod 700 "$t" && good "$t" && { dd if=/dev/null of="$t" conv=notrunc,fsync 2>/dev/null; mv -f "$t" "$d/muster-$k"; }; then
true >"$d/.muster-$k.ok";
ls -t "$d" | grep "^muster-" | tail -n +4 | while IFS= read -r o; do rm -f "$d/$o"; done;
find "$d" -name ".muster-*" -mtime +0 -exec rm -f {} + 2>/dev/null;
say done; exit;
fi;
rm -f "$t"; say failed $i "$d"; exit;
done;
say nowhere "$why"
