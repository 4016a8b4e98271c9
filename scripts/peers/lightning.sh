#!/usr/bin/env bash
# lightning 2.6.6: pytorch-lightning, without the rest of the package of that name.
. "$(dirname "$0")/common.sh"
peer lightning 2.6.6
peer_ready && exit
peer_venv
peer_pip pytorch-lightning==2.6.6
peer_done
