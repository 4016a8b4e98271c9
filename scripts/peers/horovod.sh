#!/usr/bin/env bash
# horovod 0.28.1, built from its source against our PyTorch, which wants C++20 (2 to 4 minutes on two cores). Without MPI.
. "$(dirname "$0")/common.sh"
peer horovod 0.28.1
peer_ready && exit
peer_venv
peer_pip wheel 'setuptools<70' packaging cffi pyyaml cloudpickle
"$V/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary=:all: --no-build-isolation -d "$V/tmp" horovod==0.28.1 >&2
tar -xzf "$V"/tmp/horovod-0.28.1.tar.gz -C "$V/tmp"
sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' "$V"/tmp/horovod-0.28.1/CMakeLists.txt "$V"/tmp/horovod-0.28.1/horovod/torch/CMakeLists.txt
PATH=$V/bin:$PATH HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
	HOROVOD_CPU_OPERATIONS=GLOO MAKEFLAGS=-j$(nproc) peer_pip --no-deps --no-build-isolation "$V/tmp/horovod-0.28.1"
peer_done
