#!/usr/bin/env bash
# dlrover 0.6.1. Its package names neither protobuf nor, outside its k8s extra, grpcio and kubernetes, which a standalone job imports too.
. "$(dirname "$0")/common.sh"
peer dlrover 0.6.1
peer_ready && exit
peer_venv
peer_pip 'dlrover[k8s]==0.6.1' protobuf
# torch 2.15's SubprocessHandler wants numa_options, which dlrover does not pass.
sed -i 's/SubprocessHandler(cmd, args, {}, "", "", 0)/SubprocessHandler(cmd, args, {}, "", "", 0, None)/' "$(peer_site)/dlrover/trainer/torch/elastic_run.py"
peer_done
