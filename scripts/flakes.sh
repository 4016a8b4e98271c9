#!/usr/bin/env bash
# flakes.sh PACKAGE... runs the tests of packages again and again on a busy machine, and prints how often each has passed.
#   TESTS  which tests, a regular expression as for go test -run; all
#   N      how often each package's tests run; 20
#   LOAD   how many processes keep the processors busy meanwhile; 8
#   RACE   the packages that are tested with the race detector, as ./DIR (make flakes gives those of make test)
#   PARALLEL  how many tests of a package run beside each other; 4
# What a run in which a test failed has written lies in build/flakes. The status is 1 where a test has failed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

[ $# -gt 0 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
n=${N:-20} load=${LOAD:-8} tests=${TESTS:-.} parallel=${PARALLEL:-4}
export MUSTER_TEST_REQUIRE=1 CGO_ENABLED=1 GORACE=atexit_sleep_ms=0

packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "$@")
[ -n "$packages" ] || { echo "flakes: no test lies in $*" >&2; exit 2; }
out=build/flakes
rm -rf $out
mkdir -p $out

# The binaries are linked once.
for dir in $packages; do
	package=./${dir#"$root"/} race=
	for r in ${RACE:-}; do [ "$r" != "$package" ] || race=-race; done
	go test -c -vet=off -ldflags=-w $race -o "$out/$(tr / _ <<<"${package#./}").test" "$package"
done

busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < load; i++)); do
	(while :; do :; done) &
	busy+=($!)
done

for ((i = 1; i <= n; i++)); do
	for dir in $packages; do
		name=$(tr / _ <<<"${dir#"$root"/}")
		log=$root/$out/$name.$i
		runtime=$(mktemp -d)
		rc=0
		(cd "$dir" && XDG_RUNTIME_DIR=$runtime "$root/$out/$name.test" -test.run "$tests" -test.v=test2json -test.shuffle=on \
			-test.parallel "$parallel" -test.timeout 30m) </dev/null >"$log" 2>&1 || rc=$?
		rm -rf "$runtime"
		go tool test2json -p "$name" <"$log" >$out/run.json
		cat $out/run.json >>$out/all.json
		# What fails a run without failing a test, as a goroutine that is left, is a line of its own: one that has begun and
		# not passed.
		if [ $rc -eq 0 ]; then
			rm "$log"
		elif ! grep -q '"Action":"fail","Package":"[^"]*","Test"' $out/run.json; then
			echo "{\"Action\":\"run\",\"Package\":\"$name\",\"Test\":\"(whole_run)\"}" >>$out/all.json
		fi
	done
	echo "flakes: $i of $n runs" >&2
done

rc=0
# A test that has begun and not ended, as one that took too long has, has failed.
sed -n 's/.*"Action":"\(run\|pass\|fail\|skip\)","Package":"\([^"]*\)","Test":"\([^"/]*\)".*/\1 \2 \3/p' $out/all.json | awk '
	{ test = $2 " " $3; n[test, $1]++; all[test] }
	END {
		for (t in all) {
			failed = n[t, "run"] - n[t, "pass"] - n[t, "skip"]
			total += failed
			print failed, n[t, "pass"] + 0, n[t, "skip"] + 0, t | "sort -k1,1nr -k4"
		}
		close("sort -k1,1nr -k4")
		exit total > 0
	}' >$out/table || rc=1
{ echo "failed passed skipped package test"; cat $out/table; } | column -t
[ $rc -eq 0 ] || { echo "flakes: what failing runs have written lies in $out" >&2; exit 1; }
[ -s $out/table ] || { echo "flakes: no test is called so" >&2; exit 1; }
