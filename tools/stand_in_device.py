"""A GPU on paper: tensors that say they lie on `cuda:0`, and refuse what tensors there refuse.

With install() in a kernel and MHA_DEVICE=cuda, a notebook on a machine without a GPU shows whether
anything it prints depends on the device, whether it mixes devices, forgets .cpu() before NumPy, or
draws random numbers on the wrong side.
"""

import torch
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda", 0)
# Two devices may meet here: what moves numbers, reads or sets an attribute, or takes an index from the CPU.
MAY_MIX = {"to", "copy_", "__get__", "__set__", "__getitem__", "__setitem__", "as_subclass", "_has_compatible_shallow_copy_type"}


class OnDevice(torch.Tensor):
    """A tensor of the CPU that says it lies on DEVICE."""

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)

    def __deepcopy__(self, memo):
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied


class StandIn(TorchFunctionMode):
    """Answers every call that names DEVICE, and holds tensors there apart from those on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        tensors = list(_tensors([*args, *kwargs.values()]))
        here = any(isinstance(t, OnDevice) for t in tensors)
        if here:
            _refuse(name, tensors)
        target = _target(name, args, kwargs)
        if target is not None:
            args = [_on_cpu(a) for a in args]
            kwargs = {k: _on_cpu(v) for k, v in kwargs.items()}
            if name == "cuda":
                func, args = torch.Tensor.cpu, args[:1]
            if target.type == "cuda" and kwargs.get("generator") is not None:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if here and name == "__format__" and args[0].dim() == 0:
            return format(args[0].item(), *args[1:])  # PyTorch formats no subclass, but any scalar of a GPU
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if here and name == "__repr__":
            return result.replace("OnDevice(", "tensor(")[:-1] + f", device='{DEVICE}')"
        if target is None:
            return _wrapped(result) if here else result
        moved = result.clone() if isinstance(result, torch.Tensor) and tensors and here != (target.type == "cuda") else result
        return _wrapped(moved) if target.type == "cuda" else _plain(moved)


def install() -> None:
    """Put the stand-in in place for the rest of this process."""
    from mha_lib import cost

    torch.__future__.set_overwrite_module_params_on_conversion(True)
    # Who looks for the line of a learner that raised takes this frame for one of PyTorch's, which it stands in for.
    StandIn.__torch_function__.__code__ = StandIn.__torch_function__.__code__.replace(co_filename=torch.__file__)
    # There is no allocator on paper: memory is measured as on the CPU.
    measure = cost.peak_mib
    cost.peak_mib = lambda function, device="cpu": measure(function, "cpu")
    StandIn().__enter__()


def _tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _refuse(name, tensors) -> None:
    if name in ("numpy", "__array__"):
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first.")
    if name not in MAY_MIX and any(t.dim() and not isinstance(t, OnDevice) for t in tensors):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {DEVICE} and cpu in {name}")


def _target(name, args, kwargs):
    """Return the device that a call asks for, or None."""
    if name in ("cuda", "cpu"):
        return DEVICE if name == "cuda" else torch.device("cpu")
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    if name == "to":
        for value in args[1:]:
            if isinstance(value, (torch.device, str)):
                return torch.device(value)
            if isinstance(value, torch.Tensor):
                return value.device
    return None


def _on_cpu(value):
    is_device = (isinstance(value, torch.device) and value.type == "cuda") or (isinstance(value, str) and value.startswith("cuda"))
    return torch.device("cpu") if is_device else value


def _wrapped(result):
    if isinstance(result, torch.Tensor):
        return result if isinstance(result, OnDevice) else result.as_subclass(OnDevice)
    if isinstance(result, (list, tuple)) and not isinstance(result, torch.Size):
        return type(result)(_wrapped(r) for r in result)
    return result


def _plain(result):
    return result.as_subclass(torch.Tensor) if isinstance(result, OnDevice) else result
