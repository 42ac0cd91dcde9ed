"""What must be there before anything else of the course can be imported."""

import importlib.util
import warnings

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 6)


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def is_old(torch_version: str) -> bool:
    return tuple(int(n) for n in torch_version.split("+")[0].split(".")[:2]) < OLDEST_TORCH


def hidden_by(package: str) -> None:
    """Refuse a file such as torch.py in the folder of a notebook, which Python takes for the package.

    Raises:
        ImportError: there is one; the message names it.
    """
    found = importlib.util.find_spec(package)
    if found is not None and found.origin and found.submodule_search_locations is None:
        raise ImportError(f"{found.origin} hides the package {package}. Give the file another name, then restart the kernel")


def check() -> None:
    """Say in one line that PyTorch is missing, hidden by a file of its name, or too old.

    Raises:
        ImportError: there is no PyTorch, or it is hidden. A too old one only warns: much of the course still runs.
    """
    for name in ("torch", "numpy", "matplotlib"):
        hidden_by(name)
    if importlib.util.find_spec("torch") is None:
        raise ImportError(
            "this Python has no PyTorch. In the course's folder run make env; in JupyterLab, stop it and "
            "start it with make lab"
        )
    import torch

    if is_old(torch.__version__):
        warnings.warn(
            f"torch {torch.__version__} is too old: the course needs {dotted(OLDEST_TORCH)} or newer. Run make env",
            stacklevel=2,
        )
