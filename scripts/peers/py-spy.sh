#!/usr/bin/env bash
# py-spy 0.4.3, which muster runs where it lies beside the workers' Python: python here is that of the environment with PyTorch.
. "$(dirname "$0")/common.sh"
peer py-spy 0.4.3
peer_ready && exit
peer_venv
peer_pip py-spy==0.4.3
peer_done
