#!/usr/bin/env bash
# colossalai 0.5.0. It pins an older PyTorch and 25 packages, of which its launcher needs seven; it runs whatever torchrun PATH finds.
. "$(dirname "$0")/common.sh"
peer colossalai 0.5.0
peer_ready && exit
peer_venv
peer_pip --no-deps colossalai==0.5.0
peer_pip click fabric packaging rich einops tqdm contexttimer
printf '#!/bin/sh\nexec %s/bin/python -m torch.distributed.run "$@"\n' "$V" >"$V/bin/torchrun"
chmod +x "$V/bin/torchrun"
peer_done
