"""Measure all layers, and write benchmarks/README.md, its picture, and the small table of README.md.

    python -m benchmarks        half an hour; leave the machine alone meanwhile
"""

from pathlib import Path

import torch

from benchmarks import decoding, layer
from tools.pages import write

HERE = Path(__file__).parent
ROUNDS = 8
COMMAND = "make bench"


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    alone = layer.measure((*layer.SIZES, layer.LONGEST), ROUNDS, device, torch.float32, cross=False)
    crossed = layer.measure(layer.SIZES, ROUNDS, device, torch.float32, cross=True)
    layer.picture(alone, HERE / "layer.png")
    page = HERE / "README.md"
    for name, text in (
        ("machine", layer.machine()),
        ("self-attention", layer.table(alone)),
        ("cross-attention", layer.table(crossed)),
        ("memory", layer.memory_table((1024, 2048, 4096, 8192))),
        ("part two", decoding.tables()),
    ):
        write(page, name, text, COMMAND)
    write(HERE.parent / "README.md", "speed", f"{layer.machine()}; self-attention.\n\n{layer.small_table(alone)}", COMMAND)


if __name__ == "__main__":
    main()
