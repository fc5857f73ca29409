#!/bin/sh
# On a GPU machine, in the repository's root:
#   tests/gpu/run.sh story|headline|cost|knee|ranks|hangs|one_card [FOLDER for results [quick | servers of hangs]]
# Needs .gpu/site.tar.xz (make gpu-bundle, anywhere) and a python3 with PyTorch 2.11 for CUDA.
set -eu
what=$1; shift
export PYTHONPATH="$PWD" PYTHONUNBUFFERED=1
exec python3 -m "tests.gpu.$what" "${@:-.}"
