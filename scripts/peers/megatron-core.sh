#!/usr/bin/env bash
# megatron-core 0.19.2. It asks for Python 3.12 and runs on 3.11, so that pip is told a Python that it accepts, and the wheel is unpacked by
# hand. On the CPU programs that use it bring stand-ins for torch.cuda.synchronize and current_device.
. "$(dirname "$0")/common.sh"
peer megatron-core 0.19.2
peer_ready && exit
peer_venv
peer_pip packaging
"$V/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
	--platform "manylinux_2_28_$(uname -m)" -d "$V/tmp" megatron-core==0.19.2 >&2
"$V/bin/python" -m zipfile -e "$V"/tmp/megatron_core-*.whl "$(peer_site)"
"$V/bin/python" -m compileall -q "$(peer_site)/megatron" >&2 || true # what pip does; a file or two are for Python 3.12
peer_done
