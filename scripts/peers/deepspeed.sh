#!/usr/bin/env bash
# deepspeed 0.19.8
. "$(dirname "$0")/common.sh"
peer deepspeed 0.19.8
peer_ready && exit
peer_venv
peer_pip deepspeed==0.19.8
peer_done
