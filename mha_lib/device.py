"""Which device the course runs on."""

import os

import torch


def get_device() -> torch.device:
    """Return CUDA where there is one, else the CPU; the variable MHA_DEVICE overrides.

    Raises:
        ValueError: MHA_DEVICE names no device, or one that this machine lacks.
    """
    wanted = os.environ.get("MHA_DEVICE", "").strip()
    if not wanted:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"MHA_DEVICE={wanted!r} cannot be used here ({reason}). "
            "Unset it, or set it to 'cpu' or 'cuda'."
        ) from None
    return device
