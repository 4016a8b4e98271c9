#!/usr/bin/env bash
# jax 0.10.2 for CPUs
. "$(dirname "$0")/common.sh"
peer jax 0.10.2
peer_ready && exit
peer_venv
peer_pip jax==0.10.2
peer_done
