#!/bin/sh
# Starts the job as on a machine with eight GPUs, and lets it survive a crash. No GPU is needed.
set -eu
export MUSTER_FAKE=8gpus.yaml

muster run -n gpu --dry-run -- python train.py >dry-run.txt
muster run -n gpu --max-restarts 1 --status-file status.json -- python train.py
grep '"restartCount": 1' status.json >restarts.txt

# A machine with a bad GPU is refused before the start, with status 80.
status=0
MUSTER_FAKE_NODE=sick muster check >check.txt || status=$?
[ "$status" -eq 80 ]
echo "the smoke test has passed"
