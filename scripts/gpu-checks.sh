#!/usr/bin/env bash
# Checks on a machine with an NVIDIA GPU what no machine without one can show: gpu-checks.sh [MUSTER]. MUSTER is a binary of
# `make release`, with the NVML probe inside (default: build/release's, else bin/muster). Needs python3 with PyTorch for
# CUDA; no network, no Go. Each check prints ok or FAILED with what was seen; the status is 1 where one has failed.
#
# GPU_CHECKS_FAKE=SPEC rehearses it on the CPU with made-up GPUs (docs/fake-accelerator.md); what only a real GPU shows is
# passed over and said to be. GPU_CHECKS_PYTHON names another Python.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
python=${GPU_CHECKS_PYTHON:-python3}
muster=${1:-}
for path in "build/release/muster-linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')" bin/muster; do
	[ -n "$muster" ] || { [ -x "$path" ] && muster=$path; }
done
[ -x "$muster" ] || { echo "gpu-checks: there is no muster: give its path" >&2; exit 2; }
muster=$(realpath "$muster")
dir=$(mktemp -d)
export XDG_RUNTIME_DIR=$dir/run XDG_CACHE_HOME=$dir/cache
mkdir -m 700 "$dir/run" "$dir/cache"
fake=${GPU_CHECKS_FAKE:-}
if [ -n "$fake" ]; then MUSTER_FAKE=$(realpath "$fake"); export MUSTER_FAKE; fi
job=
began=$SECONDS failures=0 passed=0
trap '[ -z "$job" ] || kill -KILL "$job" 2>/dev/null; rm -rf "$dir"' EXIT

show() { sed 's/^/      | /' | head -n "${1:-12}" | cut -c 1-220; }
ok() { passed=$((passed + 1)); printf '%-8s%s\n' ok "$1"; }
failed() { failures=$((failures + 1)); printf '%-8s%s\n' FAILED "$1"; }
passed_over() { printf '%-8s%s\n' - "$1: only a real GPU shows it"; }
# check NAME EVIDENCE-FILE [LINES]: by the status of the command before it.
check() {
	local status=$?
	if [ $status -eq 0 ]; then ok "$1"; else failed "$1 (status $status)"; fi
	[ ! -s "$2" ] || show "${3:-12}" <"$2"
	return $status
}
py() { "$python" "$@"; }
now() { printf '== %s (at %ds)\n' "$1" $((SECONDS - began)); }

cat >"$dir/train.py" <<'PY'
"""One program for all checks: train, hang, or checkpoint with a crash."""
import os, sys, time
import torch
import torch.distributed as dist

mode, cuda, local = sys.argv[1], torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if cuda else "gloo")
one = torch.ones(1, device=device)
dist.all_reduce(one)
assert one.item() == dist.get_world_size(), one
print(f"all_reduce of {dist.get_world_size()} by {dist.get_backend()} on {device}: {one.item()}", flush=True)

if mode == "train":
    import muster
    hold = torch.zeros((2 << 30) // 4 if cuda else 1024, device=device)  # 2 GiB that must be seen
    a = torch.randn(4096 if cuda else 64, 4096 if cuda else 64, device=device)
    began, step = time.time(), 0
    while time.time() - began < float(sys.argv[2]):
        for _ in range(20):
            a = torch.nn.functional.normalize(a @ a)
        dist.all_reduce(a)
        if cuda:
            torch.cuda.synchronize()
        else:
            time.sleep(0.05)
        step += 1
        muster.progress.step(step, loss=float(a[0, 0]))
    print("trained", step, hold.numel(), flush=True)
elif mode in ("hang", "hang-late"):
    if mode == "hang-late":  # after steps of which nobody is told
        for _ in range(24):
            a = torch.ones(1 << 20, device=device)
            dist.all_reduce(a)
            print(end="", flush=True) if a[0].item() == 1 else sys.exit(5)
            time.sleep(0.25)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
            print("trained to the end", flush=True)
            dist.destroy_process_group()
            sys.exit()
    print("hangs", flush=True)
    if cuda:
        torch.cuda._sleep(1 << 40)  # a kernel of some ten minutes
        print(a[0].item() if mode == "hang-late" else torch.cuda.synchronize())
    else:
        time.sleep(600)
elif mode == "graph":  # steps, and then a graph that is replayed: nothing is told, and hardly anything is done in Python
    for _ in range(24):
        a = torch.ones(1 << 20, device=device)
        dist.all_reduce(a)
        a.sum().item()
        time.sleep(0.25)
    b = torch.randn(8192 if cuda else 64, 8192 if cuda else 64, device=device)
    out, began, n = torch.empty_like(b), time.time(), 0
    if cuda:
        graph = torch.cuda.CUDAGraph()
        torch.matmul(b, b, out=out)
        with torch.cuda.graph(graph):
            for _ in range(20):
                torch.matmul(b, b, out=out)
    while time.time() - began < 45:
        if cuda:
            graph.replay()
            torch.cuda.synchronize()
        else:
            torch.matmul(b, b, out=out)
        n += 1
    print("replayed", n, flush=True)
elif mode == "ckpt":
    from muster.checkpoint import Checkpointer, StorageType
    model = torch.nn.Linear(1024, 1024, bias=False, device=device)
    sums = [0.0] * 8
    ckpt = Checkpointer()
    state = ckpt.load_checkpoint()
    if state:
        assert state["w"].device.type in ("cpu", device.type), state["w"].device
        model.load_state_dict({"weight": state["w"]})
        same = torch.equal(model.weight, torch.full_like(model.weight, float(ckpt.step)))
        print(f"restored step {ckpt.step} from {ckpt.source}, equal on {model.weight.device}: {same}", flush=True)
        assert same
    for step in range(ckpt.step + 1, 9):
        with torch.no_grad():
            model.weight.fill_(float(step))
        saved = ckpt.save_checkpoint(step, {"w": model.weight.detach()}, storage_type=StorageType.DISK if step == 8 else StorageType.MEMORY)
        assert saved, step
        if step == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            print("crashes at step 5", flush=True)
            os._exit(7)
    print("on disk:", ckpt.wait_latest_checkpoint(), flush=True)
dist.destroy_process_group()
PY

# start ARGUMENTS: a job in the background; its output in $dir/out.
start() {
	: >"$dir/out"
	timeout 150 "$muster" run "$@" >"$dir/out" 2>&1 &
	job=$!
}
# ended SECONDS: waits for the job; its status is in $status.
ended() {
	local late=$((SECONDS + $1))
	while kill -0 "$job" 2>/dev/null && [ $SECONDS -lt $late ]; do sleep 0.2; done
	if kill -0 "$job" 2>/dev/null; then kill -KILL "$job"; wait "$job" 2>/dev/null; status=still; job=; return 1; fi
	wait "$job"; status=$?; job=
}
# until_true SECONDS COMMAND...: as long as the job runs.
until_true() {
	local late=$((SECONDS + $1)); shift
	until "$@"; do
		[ $SECONDS -lt $late ] && kill -0 "$job" 2>/dev/null || { show 20 <"$dir/out"; return 1; }
		sleep 0.5
	done
}

now "the machine"
if [ -z "$fake" ]; then
	py - >"$dir/torch" 2>&1 <<'PY'
import torch
assert torch.cuda.is_available(), "torch.cuda.is_available() is False"
p = torch.cuda.get_device_properties(0)
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {torch.cuda.nccl.version()}, {torch.cuda.device_count()} x {p.name}, {p.total_memory >> 20} MiB")
PY
	check "python3 has PyTorch with CUDA and a GPU" "$dir/torch" || { echo "gpu-checks: nothing more can be checked without it" >&2; exit 1; }
	count=$(sed -n 's/.*, \([0-9]*\) x .*/\1/p' "$dir/torch")
else
	count=$("$muster" devices --json | py -c 'import json,sys; print(json.load(sys.stdin)["auto"])')
fi
"$muster" --version >"$dir/version" 2>&1 && { [ -n "$fake" ] || grep -q 'NVML probe: [0-9]* bytes inside' "$dir/version"; }
check "muster has the NVML probe inside" "$dir/version" 4

now "muster devices, check, auto"
"$muster" devices >"$dir/devices" 2>&1; check "muster devices" "$dir/devices" 16
"$muster" devices --json >"$dir/devices.json" 2>"$dir/err"
py - "$dir/devices.json" "$count" "$([ -n "$fake" ] && echo fake)" >"$dir/seen" 2>&1 <<'PY'
import json, subprocess, sys
d = json.load(open(sys.argv[1])); n = int(sys.argv[2])
nv = next(v for v in d["vendors"] if v["vendor"] == "nvidia")["devices"]
for x in nv:
    m = x.get("nvml") or {}
    print("device", x["index"], x.get("uuid"), x.get("bdf"), x.get("node"), "memory", m.get("mem_used"), "of", m.get("mem_total"))
assert len(nv) == n, f"{len(nv)} devices, and PyTorch sees {n}"
assert all((x.get("nvml") or {}).get("mem_total") for x in nv), "NVML tells no memory"
if len(sys.argv[3]) == 0:
    import torch
    for i in range(n):
        u = "GPU-" + str(torch.cuda.get_device_properties(i).uuid)
        assert u in [x["nvml"].get("uuid") for x in nv], f"PyTorch's device {i} is {u}"
    print("the UUIDs are those that PyTorch sees")
PY
check "muster devices agrees with PyTorch" "$dir/seen"
"$muster" check >"$dir/check" 2>&1; check "muster check passes this node" "$dir/check" 40
for word in gpu auto nvidia; do
	"$muster" run --dry-run --nproc-per-node $word -- true 2>&1 | awk '$1 == "workers" { print $2; exit }' >"$dir/workers"
	[ "$(cat "$dir/workers")" = "$count" ]; check "--nproc-per-node $word starts $count" "$dir/workers"
done

now "a training with $([ -n "$fake" ] && echo Gloo || echo NCCL), and what is seen of it"
start --nproc-per-node gpu --ckpt on --run-id gpu-train --http 127.0.0.1:0 -- "$python" "$dir/train.py" train 600
least=$([ -n "$fake" ] && echo 1 || echo $((2 << 30)))
# seen: whether the status tells device memory and use of rank 0.
seen() {
	"$muster" status -o json gpu-train >"$dir/status.json" 2>"$dir/err" || return 1
	py - "$dir/status.json" "$least" "$([ -n "$fake" ] && echo -1 || echo 0)" >"$dir/seen" 2>&1 <<'PY'
import json, sys
s = json.load(open(sys.argv[1])); r = s["ranks"][0]; d = (r.get("devices") or [{}])[0]
print("rank 0:", {k: r.get(k) for k in ("pid", "phase", "cpuSeconds", "residentBytes", "devicesTime")}, (r.get("progress") or {}).get("step"))
print("devices:", r.get("devices"))
assert (r.get("progress") or {}).get("step", 0) > 0, "no step yet"
assert d.get("memoryBytes", 0) >= int(sys.argv[2]), "the memory of the training is not seen"
assert d.get("memoryTotalBytes", 0) >= d["memoryBytes"]
assert d.get("utilization", -1) > float(sys.argv[3]), "the GPU is not seen to be busy"
PY
}
until_true 60 seen; check "status -o json: device memory and use of rank 0" "$dir/seen"
[ -n "$fake" ] || { grep -q ownMemoryBytes "$dir/seen" && echo "      | NVML tells the memory of the rank's own processes" || echo "      | NVML does not tell whose the memory is (as in many containers)"; }
grep -h all_reduce "$dir/out" >"$dir/seen"; check "all_reduce" "$dir/seen" 2
"$muster" status -o wide gpu-train >"$dir/seen" 2>&1 && grep -q 'DEVICE MEM' "$dir/seen"; check "status -o wide" "$dir/seen"
"$muster" top gpu-train >"$dir/seen" 2>&1 && grep -q 'DEVICE MEM' "$dir/seen"; check "top" "$dir/seen"
"$muster" metrics gpu-train 2>&1 | grep '^muster_worker_device' >"$dir/seen"
py - "$dir/seen" "$least" >"$dir/err" 2>&1 <<'PY'
import re, sys
v = {m[1]: float(m[2]) for m in re.finditer(r'^(\w+)\{rank="0".*?\} (\S+)$', open(sys.argv[1]).read(), re.M)}
assert v["muster_worker_device_memory_bytes"] >= float(sys.argv[2]), v
assert v["muster_worker_device_memory_total_bytes"] > 0 and "muster_worker_device_utilization_ratio" in v, v
PY
check "metrics say the same" "$dir/err"; show 8 <"$dir/seen"
url=$(sed -n 's/.*url \(http[^ ]*\).*/\1/p' "$dir/out" | head -n 1)
py - "$url" >"$dir/seen" 2>&1 <<'PY'
import sys, urllib.request
text = urllib.request.urlopen(sys.argv[1] + "metrics", timeout=10).read().decode()
print(next(l for l in text.splitlines() if l.startswith("muster_worker_device_utilization")))
PY
check "the page serves them to Prometheus" "$dir/seen"
if [ -z "$fake" ]; then
	# What asks NVML goes on as long as somebody looks: what does that cost?
	py - "$job" >"$dir/seen" 2>&1 <<'PY'
import os, sys, time
def processes():
    for p in filter(str.isdigit, os.listdir("/proc")):
        try:
            s = open(f"/proc/{p}/stat").read()
        except OSError:
            continue
        name, f = s[s.index("(") + 1:s.rindex(")")], s[s.rindex(")") + 2:].split()
        yield int(p), name, int(f[1]), (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK"), int(f[21]) * os.sysconf("SC_PAGE_SIZE") >> 20
def pick():
    return {p: (name, cpu, mib) for p, name, parent, cpu, mib in processes() if name in ("nvprobe", "muster", "nvidia-smi")}
a = pick(); time.sleep(15); b = pick()
for p in b:
    if p in a:
        print(f"{b[p][0]} {p}: {(b[p][1] - a[p][1]) / 15 * 100:.2f} % of a core, {b[p][2]} MiB")
assert any(v[0] == "nvprobe" for v in b.values()), "no probe is running"
assert all((b[p][1] - a[p][1]) / 15 < 0.02 for p in b if p in a and b[p][0] == "nvprobe"), "the probe takes more than 2 % of a core"
PY
	check "the probe costs little" "$dir/seen"
else
	passed_over "what the probe costs"
fi
"$muster" stop gpu-train >"$dir/seen" 2>&1; ended 45; [ "$status" = 143 ]; check "stop ends it with status 143 (it was $status)" "$dir/seen"
if [ -z "$fake" ]; then
	sleep 0.5; ps -eo pid,comm | grep -w nvprobe >"$dir/seen"; [ ! -s "$dir/seen" ]; check "no probe is left behind" "$dir/seen"
fi

now "a rank that is stuck in a kernel"
start --nproc-per-node 1 --stacks on --run-id gpu-hang -- "$python" "$dir/train.py" hang
until_true 60 grep -q '^.*hangs' "$dir/out"; check "it hangs" "$dir/out" 3
sleep 2
timeout 20 "$muster" stacks --native gpu-hang >"$dir/seen" 2>&1 && grep -q 'train.py' "$dir/seen" && { [ -n "$fake" ] || grep -q synchronize "$dir/seen"; }
check "stacks --native shows where" "$dir/seen" 30
timeout 20 "$muster" diagnose gpu-hang >"$dir/seen" 2>&1 && grep -q 'rank 0' "$dir/seen"; check "diagnose names the rank" "$dir/seen"
at=$SECONDS
"$muster" stop --now gpu-hang >"$dir/seen" 2>&1; ended 30; [ "$status" = 143 ]; check "stop --now ends it with status 143 after $((SECONDS - at)) s (it was $status)" "$dir/seen"

now "a hang that keeps a processor busy, and no hang"
start --nproc-per-node 1 --hang-timeout 5s --on-hang dump,restart --max-restarts 1 --grace 1s --run-id gpu-spins -- "$python" "$dir/train.py" hang-late
ended 120; job_status=$status
grep -hE 'workers hang|no worker has|trained' "$dir/out" >"$dir/seen"; [ "$job_status" = 0 ] && grep -q 'trained to the end' "$dir/out"
check "a rank that waits for a kernel hangs, and its next attempt comes to the end (status $job_status)" "$dir/seen" 8
[ -n "$fake" ] || { grep -q 'waits for its device' "$dir/out"; check "the verdict is its device" /dev/null; }
start --nproc-per-node 1 --hang-timeout 5s --on-hang fail --run-id gpu-graph -- "$python" "$dir/train.py" graph
ended 120; job_status=$status
grep -hE 'hang|replayed' "$dir/out" >"$dir/seen"; [ "$job_status" = 0 ]; check "one that only replays a graph does not (status $job_status)" "$dir/seen" 8

now "flash checkpoint of tensors on the device, a crash and a restart"
start --nproc-per-node 1 --max-restarts 1 --restart-delay 0s --ckpt-dir "$dir/ckpt" --run-id gpu-ckpt -- "$python" "$dir/train.py" ckpt
ended 90; job_status=$status
grep -hE 'crash|restor|on disk' "$dir/out" >"$dir/seen"; [ "$job_status" = 0 ]; check "the job ends well (status $job_status)" "$dir/seen" 8
grep -q 'crashes at step 5' "$dir/out" && grep -q 'restored step 5 from memory, equal on .*: True' "$dir/out" || { show 40 <"$dir/out"; false; }
check "step 5 was restored from memory" /dev/null
grep -q 'on disk: .*8' "$dir/out"; check "step 8 is on disk" /dev/null
ls "$dir/ckpt" 2>&1 | show 6

now "summary"
echo "$passed ok, $failures FAILED, $((SECONDS - began)) s"
[ $failures -eq 0 ]
