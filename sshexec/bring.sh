# Takes our binary from standard input, behind a line with a nonce, and puts it into the first directory of three that is ours
# alone, has room and lets files be executed. The last two are not those of run directories, which go when they are empty.
# Arguments: the short hash, the whole one, the size, gzip or plain, and how many of the directories were tried before. The
# file gets its name when it is complete and on the disk: a machine that loses its power must not keep half of it under that
# name. ours.sh stands before this, and says what must not be in it, and when a directory is ours alone.
IFS= read -r n || exit 97;
say() { echo; echo "muster-bootstrap: $n $*"; };
k=$1; h=$2; s=$3; z=$4; skip=$5; umask 077; why=; i=0; u=$(id -u);
c=${XDG_CACHE_HOME:-}; case $c in /*) ;; *) c=${HOME:-/nonexistent}/.cache ;; esac; c=$c/muster/bin;
room() { set -- $(df -Pk "$1" 2>/dev/null | tail -n 1); case $4 in *[0-9]) [ "$4" -gt $((s / 1024)) ] ;; esac; };
runs() { echo : >"$1" && chmod 700 "$1" && "$1"; r=$?; rm -f "$1"; return $r; };
for p in "$c" "/tmp/muster-bin-$u" "/dev/shm/muster-bin-$u"; do
i=$((i + 1)); [ $i -gt "$skip" ] || continue;
if [ "$p" = "$c" ]; then w=$(mkdir -p "$p" 2>&1) || { why="$why $w;"; continue; }; else mkdir "$p" 2>/dev/null; fi;
ours "$p" || { why="$why $p is not ours alone;"; continue; };
f=$d/muster-$k;
own "$f" && good "$f" && { note "$d"; say done; exit; };
room "$d" || { why="$why $d has no room for $s bytes;"; continue; };
w=$({ runs "$d/.muster-try.$n"; } 2>&1) || { why="$why $d takes no programs (${w##*: });"; continue; };
t=$d/.muster-$k.$n;
if { if [ "$z" = gzip ]; then gzip -dc; else cat; fi; } >"$t" && chmod 700 "$t" && good "$t" && { dd if=/dev/null of="$t" conv=notrunc,fsync 2>/dev/null; [ -h "$f" ] && rm -f "$f"; mv -f "$t" "$f"; } && own "$f"; then
note "$d";
ls -t "$d" | grep "^muster-" | tail -n +4 | while IFS= read -r o; do rm -f "$d/$o"; done;
find "$d" -name ".muster-*" -mtime +0 -exec rm -f {} + 2>/dev/null;
say done; exit;
fi;
rm -f "$t"; say failed $i "$d"; exit;
done;
say nowhere "$why"
