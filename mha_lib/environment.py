"""Is this the right kernel, and is all there that the course needs?"""

import importlib.metadata
import os
import sys
from pathlib import Path

import torch

import mha_lib
from mha_lib.requirements import OLDEST_PYTHON, OLDEST_TORCH, dotted, is_old


def report() -> bool:
    """Print one line for each thing the course needs, `[ok]` or `[!!]` with a way out.

    Returns:
        True if every line says `[ok]`.
    """
    lines = [_python(), _torch(), _device(), _package(), _interpreter(), _folder()]
    for fine, text in lines:
        print("[ok]" if fine else "[!!]", text)
    return all(fine for fine, _ in lines)


def _python() -> tuple[bool, str]:
    fine = sys.version_info >= OLDEST_PYTHON
    hint = "" if fine else f"; the course needs {dotted(OLDEST_PYTHON)} or newer"
    return fine, f"Python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}{hint}"


def _torch() -> tuple[bool, str]:
    fine = not is_old(torch.__version__)
    hint = "" if fine else f"; the course needs {dotted(OLDEST_TORCH)} or newer: run make env"
    return fine, f"torch {torch.__version__}{hint}"


def _device() -> tuple[bool, str]:
    try:
        device = mha_lib.get_device()
        ones = torch.ones(2, 2, device=device)
        fine = float((ones @ ones).sum()) == 8.0
        return fine, f"device {device}" if fine else f"device {device} computes wrong numbers"
    except (ValueError, RuntimeError) as error:
        return False, f"device: {error}"


def _package() -> tuple[bool, str]:
    try:
        return True, f"mha_lib {importlib.metadata.version('mha_lib')}"
    except importlib.metadata.PackageNotFoundError:
        return False, "mha_lib is found but not installed: run make env in the course's folder"


def _interpreter() -> tuple[bool, str]:
    venv = Path(mha_lib.__file__).parent.parent / ".venv"
    prefix = Path(sys.prefix)
    if prefix.resolve() == venv.resolve():  # the course may lie behind a symbolic link
        return True, "interpreter: the course's own .venv"
    if venv.exists():
        return False, f"interpreter: {prefix}, not the course's .venv; stop JupyterLab and start it with make lab"
    return True, "interpreter: an environment of your own"


def _folder() -> tuple[bool, str]:
    if os.access(Path.cwd(), os.W_OK):
        return True, "folder: your answers can be saved here"
    return False, f"folder: {Path.cwd()} cannot be written, answers would be lost; copy the course to a folder of your own"
