#!/usr/bin/env bash
# PySpark 4.3.0, which brings all of Spark and needs Java 17 (Debian: default-jre-headless), and what else the example of Spark can read.
. "$(dirname "$0")/common.sh"
peer spark 4.3.0
peer_ready && exit
peer_venv
peer_pip --no-compile pyspark==4.3.0 zstandard==0.25.0 ftfy==6.3.1 tiktoken==0.14.0
peer_done
