#!/usr/bin/env bash
# accelerate 1.15.0
. "$(dirname "$0")/common.sh"
peer accelerate 1.15.0
peer_ready && exit
peer_venv
peer_pip accelerate==1.15.0
peer_done
