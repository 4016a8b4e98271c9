#!/bin/sh
# A worker that says when it began, and then stays until it is killed if its attempt is below BENCH_HOLD.
now=$(date +%s.%N)
echo "$now ${RANK:?} ${TORCHELASTIC_RESTART_COUNT:?} $$" >>"$BENCH_DIR/stamps"
[ "$TORCHELASTIC_RESTART_COUNT" -ge "$BENCH_HOLD" ] || exec sleep 300
