#!/usr/bin/env bash
# The demonstration behind `make demo`: trains the classifier in train.py on two workers under muster, kills one of them
# half-way with SIGKILL, and shows that the job recovers from its checkpoint and still ends well.
#
#   demo.sh [MUSTER]      PYTHON=... chooses the interpreter; one without PyTorch or scikit-learn is not used
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
muster=${1:-muster}
python=${PYTHON:-python3}
kill_at=230 # of 400 steps; the newest checkpoint is then that of step 200

if ! "$python" -c 'import torch.distributed, sklearn.datasets' 2>/dev/null; then
	echo "demo: $python has no PyTorch with scikit-learn; using the project's own environment"
	"$here/../../scripts/deps.sh" venv
	python=$(ls -d "${XDG_CACHE_HOME:-$HOME/.cache}"/muster-dev/torch-"$(sed -n 's/^torch==//p' "$here/../../scripts/requirements.txt")"/bin/python)
fi

out=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill "$job" 2>/dev/null || true; rm -rf "$out"' EXIT
touch "$out/progress"

# Two workers on one machine need neither a network card nor more than one thread each.
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo CUDA_VISIBLE_DEVICES=

echo "demo: training on 2 workers; worker 1 will be killed at step $kill_at"
"$muster" run -n 2 --warm auto,torch._dynamo --max-restarts 3 -- "$python" "$here/train.py" --dir "$out" &
job=$!

# step: the newest step that the workers have finished, 0 before the first.
step() { tail -n 1 "$out/progress" | awk '{s = $3} END {print s + 0}'; }

killed=
while [ -z "$killed" ] && kill -0 "$job" 2>/dev/null; do
	if [ "$(step)" -ge "$kill_at" ]; then
		killed=$(date +%s.%N)
		kill -KILL "$(cat "$out/worker-1.pid")"
		echo "demo: SIGKILL sent to worker 1 (process $(cat "$out/worker-1.pid")); that worker 0 loses its connection is expected"
	fi
	sleep 0.02
done
status=0
wait "$job" || status=$?
job=

[ -n "$killed" ] || { echo "demo: the job ended before a worker could be killed (status $status)"; exit 1; }
[ -s "$out/result" ] || { echo "demo: the job wrote no result (status $status)"; exit 1; }
read -r accuracy restarts <"$out/result"

# The crash cost the time until a step was reached that the first attempt had not done yet.
awk -v killed="$killed" -v accuracy="$accuracy" -v restarts="$restarts" -v status="$status" '
	$2 == 0 { last = $3 }
	$2 > 0 && !back { back = $1; from = $3 }
	$2 > 0 && $3 > last && !ahead { ahead = $1 }
	END {
		printf "\naccuracy     %.4f (wanted: 0.95 or more)\n", accuracy
		printf "restarts     %d\n", restarts
		printf "time lost    %.1f s: %.1f s until the workers trained again, %.1f s for %d repeated steps\n",
			ahead - killed, back - killed, ahead - back, last - from + 1
		printf "exit status  %d\n", status
		exit !(accuracy >= 0.95 && restarts >= 1 && status == 0 && ahead)
	}' "$out/progress" || { echo "demo: FAILED"; exit 1; }
