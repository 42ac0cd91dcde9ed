#!/usr/bin/env bash
# On a machine with a GPU and PyTorch: every stored output and the parity tests, on the GPU. Some minutes.
#   tools/cuda_check.sh [FOLDER-OF-WHEELS] [REPORT]
# Installs what is missing from the folder of wheels, without a network. Fill that folder elsewhere with
#   pip download --dest wheels --constraint constraints.txt nbval pytest matplotlib nbclient nbformat ipykernel
# MHA_DEVICE=cpu tools/cuda_check.sh tries the script itself where there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-wheels} report=${2:-cuda_report.txt}
export PYTHONPATH=$PWD MHA_DEVICE=${MHA_DEVICE:-cuda}

python3 -c 'import torch' 2>/dev/null || { echo "python3 has no PyTorch here: use the Python that has it"; exit 1; }
[ "$MHA_DEVICE" != cuda ] || python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' \
  || { echo "PyTorch sees no GPU here: nothing to check"; exit 1; }
if ! python3 -c 'import nbval, pytest, matplotlib, nbclient, ipykernel' 2>/dev/null; then
  [ -d "$wheels" ] || { echo "nbval, pytest or matplotlib is missing, and there is no folder $wheels with their wheels"; exit 1; }
  python3 -m pip install --quiet --no-index --find-links "$wheels" nbval pytest matplotlib nbclient nbformat ipykernel
fi

status=0
prove() {
  echo "== $1"
  shift
  python3 -m pytest -q -p no:cacheprovider -o addopts= "$@" || status=1
}
{
  date
  python3 -c 'import torch; print("torch", torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")'
  python3 -c 'from mha_lib import environment; environment.report()'
  prove "the layer beside PyTorch's own" tests/test_on_device.py
  prove "every stored output" --nbval --nbval-current-env --nbval-sanitize-with=tests/nbval_sanitize.cfg notebooks solutions exercises
  date
  echo "verdict: $([ $status = 0 ] && echo everything agrees || echo something differs)"
} > >(tee "$report") 2>&1
exit $status
