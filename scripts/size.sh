#!/usr/bin/env bash
# Holds the static binary against its budget and its committed baseline: size.sh BINARY [BASELINE]. Without a baseline it
# is the budget alone.
# BASELINE is one line: bytes, and modules linked. Growth past a tenth, or another number of modules, fails; then say in
# the commit why it grew, and write the new figures into BASELINE.
set -euo pipefail
binary=$1
budget=32000000
bytes=$(stat -c %s "$binary")
if [ $# -eq 1 ]; then
	echo "size: $bytes bytes (budget $budget)"
	[ "$bytes" -le "$budget" ] || { echo "size: over the budget" >&2; exit 1; }
	exit
fi
read -r base_bytes base_modules <"$2"
modules=$(go version -m "$binary" | grep -c $'^\tdep\t' || true)
echo "size: $bytes bytes (baseline $base_bytes, budget $budget), $modules modules (baseline $base_modules)"
[ "$bytes" -le "$budget" ] || { echo "size: over the budget" >&2; exit 1; }
[ "$bytes" -le $((base_bytes * 11 / 10)) ] || { echo "size: grew by more than a tenth" >&2; exit 1; }
[ "$modules" -eq "$base_modules" ] || { echo "size: other modules are linked: go version -m $binary" >&2; exit 1; }
