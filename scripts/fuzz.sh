#!/usr/bin/env bash
# Runs every fuzz target of the module for a while each: fuzz.sh 20s. Go runs one target at a time.
set -euo pipefail
time=${1:?usage: fuzz.sh TIME}
go list ./... | while read -r package; do
	go test -list '^Fuzz' "$package" </dev/null | { grep '^Fuzz' || true; } | while read -r target; do
		echo "fuzz: $package $target for $time"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" </dev/null
	done
done
