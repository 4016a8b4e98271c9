#!/usr/bin/env bash
# NVIDIA's resiliency extension 0.7.0, whose RankMonitorClient tests speak with. Its wheels are for Python 3.12 and a glibc that
# Debian 12 does not have, but what is used of it is Python alone.
. "$(dirname "$0")/common.sh"
peer nvrx 0.7.0
peer_ready && exit
peer_venv
peer_pip --no-deps --target "$(peer_site)" --platform "manylinux_2_39_$(uname -m)" --python-version 312 --only-binary=:all: nvidia-resiliency-ext==0.7.0
peer_pip --no-deps defusedxml nvidia-ml-py
peer_pip httpx grpcio protobuf
peer_done
