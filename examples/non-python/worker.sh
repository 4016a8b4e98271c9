#!/bin/sh
# Compresses the parts of a data set, each rank its share. What is there already is not done again.
set -eu
number=0
for part in parts/*.txt; do
	if [ $((number % WORLD_SIZE)) -eq "$RANK" ] && [ ! -e "$part.gz" ]; then
		if [ "$part" = "${FAIL_ON:-}" ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
			echo "cannot read $part" >&2
			exit 5
		fi
		gzip -c "$part" >"$part.new"
		mv "$part.new" "$part.gz"
		echo "$part"
	fi
	number=$((number + 1))
done
