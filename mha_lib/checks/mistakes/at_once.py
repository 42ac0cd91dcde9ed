"""Laws of what a function computes at once: its tensors are watched while it works on one marked input."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mha_lib.checks.case import Law

# They move numbers or make room for some, and compute nothing.
_MOVES = ("clone", "copy_", "_to_copy", "constant_pad_nd", "new_", "_like")


class _Table(TorchDispatchMode):
    """Watches whether anything is computed from, or into, a tensor of as many rows and columns as the whole table."""

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.sizes, self.met = {rows, columns}, False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        is_view = any(returned.alias_info is not None for returned in function._schema.returns)
        if not is_view and not any(part in function._schema.name for part in _MOVES):
            results = result if isinstance(result, (tuple, list)) else (result,)
            self.met |= any(isinstance(x, Tensor) and self.sizes <= set(x.shape) for x in (*args, *results))
        return result


def whole_table(inputs: tuple[Tensor, ...], rows: int, columns: int, block: int, seen_on: str) -> Law:
    """Return a law that a function (*inputs, block) breaks when it meets all columns of the table at once.

    The numbers of rows and columns must occur together in no other tensor.
    """

    def test(specimen) -> dict[str, str] | None:
        table = _Table(rows, columns)

        def run() -> None:
            with table:
                specimen.answer(*(x.clone() for x in inputs), block)

        call = specimen.guard.call(run)
        if call.error is not None or not table.met:
            return None
        return {
            "seen on": seen_on,
            "yours": f"{columns} columns at once",
            "expected": f"{block} columns at once, at most",
        }

    return Law(test)
