#!/usr/bin/env bash
# uv 0.13.9 and pipx 1.18.4, by which people install programs that come as wheels.
. "$(dirname "$0")/common.sh"
peer installers 0.13.9
peer_ready && exit
peer_venv
rm "$(peer_site)/zz_torch.pth"
peer_pip uv==0.13.9 pipx==1.18.4
peer_done
