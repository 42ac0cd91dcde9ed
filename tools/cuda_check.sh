#!/usr/bin/env bash
# On a machine with a GPU and PyTorch: the stored outputs and the parity tests, on the GPU.
#   tools/cuda_check.sh [FOLDER-OF-WHEELS] [REPORT]
# Installs what is missing from the folder of wheels, without a network. Fill that folder elsewhere with
#   pip download --dest wheels --constraint constraints.txt nbval pytest matplotlib nbclient nbformat ipykernel setuptools
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=${1:-wheels} report=${2:-cuda_report.txt}

python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' \
  || { echo "PyTorch sees no GPU here: nothing to check"; exit 1; }
python3 -c 'import nbval, pytest, matplotlib' 2>/dev/null \
  || python3 -m pip install --quiet --no-index --find-links "$wheels" nbval pytest matplotlib nbclient nbformat ipykernel
export PYTHONPATH=$PWD MHA_DEVICE=cuda
{
  python3 -c 'import torch; print("torch", torch.__version__, torch.cuda.get_device_name())'
  python3 -m pytest -q --nbval --nbval-current-env --nbval-sanitize-with=tests/nbval_sanitize.cfg -o addopts= notebooks solutions exercises
  python3 -m pytest -q -o addopts= tests/test_attention.py tests/test_multi_head.py tests/test_spellings.py
} 2>&1 | tee "$report"
