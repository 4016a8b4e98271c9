# What find.sh and bring.sh have in common; it stands before each of them. They set u, our uid, c, the directory in the cache,
# which may be reached through links, k and h, the short hash and the whole one, s, the size, and n, the nonce.
#
# Our binary is given the token of the job, so what lies on a machine under its name must be ours. ours DIR sets d to the
# directory without links, and says whether nobody else can put anything into it or in its place: it is ours, every directory
# above it belongs to us, to root or to the owner of /, and others may write to none of them, save where the sticky bit keeps
# them from what is not theirs. It goes down from /: what was found in order cannot be changed any more by anybody else. To
# look before and to run afterwards is no race then.
#
# own FILE says whether a file is one of ours that only we can write: a directory that is in order now may not have been so
# when a file was put there. same FILE says whether a file that is whole was read here before, by its inode, size and times:
# to read 25 MB takes 70 ms, which eight agents on one machine would add up. The record of that lies in the directory that is
# ours alone, and is of no use to who could not write the binary itself. Without stat(1) the binary is read every time.
# good FILE reads it. A machine without sha256sum(1) compares the size only: that tells half a file from a whole one.
#
# What the tools say is believed, and they come from PATH: who could write there would need none of this.
#
# All this is run by any login shell as one line between single quotes. So each line ends where a command may end, and there
# are no single quotes, no backslashes and no exclamation marks: csh and fish would read them in their own ways.
ours() { case $1 in "$c") ;; *) [ -h "$1" ] && return 1 ;; esac; d=$(CDPATH= cd -P "$1" 2>/dev/null && pwd -P) || return 1;
r=; q=; set -f; IFS=/; set -- $d; unset IFS; set +f;
for e do shift; [ -z "$e" ] || { r=$r/$e; set -- "$@" "$r"; }; done;
q=$(ls -ldn / 2>/dev/null | { read -r m l o x; echo "$o"; });
ls -ldn / "$@" 2>/dev/null | ( i=0; while read -r m l o x; do i=$((i + 1));
case $m in d????-??-?*|d????????[tT]*) ;; *) exit 1 ;; esac;
case $o in 0|"$u"|"$q") ;; *) exit 1 ;; esac;
case $x in *" $d") case $m:$o in drwx?-??-?*:$u) ;; *) exit 1 ;; esac ;; esac;
done; [ $i -gt $# ] ); };
own() { set -- $(ls -ldn "$1" 2>/dev/null); case $1:$3 in -r???-??-?*:$u) ;; *) return 1 ;; esac; };
good() { [ -f "$1" ] && [ -x "$1" ] && if command -v sha256sum >/dev/null 2>&1; then [ "$(sha256sum <"$1" | cut -c 1-64)" = "$h" ]; else [ "$(($(wc -c <"$1")))" = "$s" ]; fi; };
is() { e=$(stat -c "%i %s %Y %Z" "$1" 2>/dev/null) && [ -n "$e" ] && e="$h $e"; };
same() { is "$1/muster-$k" && own "$1/.muster-$k.ok" && read -r o <"$1/.muster-$k.ok" && [ "$o" = "$e" ]; };
note() ( umask 077; is "$1/muster-$k" && echo "$e" >"$1/.muster-ok.$n" && mv -f "$1/.muster-ok.$n" "$1/.muster-$k.ok"; );
