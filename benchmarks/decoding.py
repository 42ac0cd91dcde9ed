"""The layers of part two beside their floors: grouped heads, a decoding step, attention in blocks; interleaved in one process.

    python -m benchmarks.decoding

The floor of the grouped layer is its linears and the fused kernel with enable_gqa; that of a step also writes the new
key and value into room that is there already. Prints Markdown tables of medians.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import medians
from mha_lib import GroupedQueryAttention, KeyValueCache, attention, blockwise_attention
from mha_lib.cost import peak_mib
from mha_lib.positions import rotary_angles, turn

D_MODEL, HEADS, KV_HEADS, D_K = 512, 8, 2, 64


def cut(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, D_K).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def forward(layer: GroupedQueryAttention, x: Tensor) -> Tensor:
    q, k, v = cut(layer.w_q(x), HEADS), cut(layer.w_k(x), KV_HEADS), cut(layer.w_v(x), KV_HEADS)
    return layer.w_o(joined(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


class FloorOfAStep:
    """One new token behind those kept, in room that is there already: as long after each call as the cache beside it."""

    def __init__(self, layer: GroupedQueryAttention, length: int):
        self.layer, self.length = layer, length
        self.keys, self.values = torch.randn(2, 1, KV_HEADS, 2 * length, D_K)

    def __call__(self, x: Tensor) -> Tensor:
        q, k = cut(self.layer.w_q(x), HEADS), cut(self.layer.w_k(x), KV_HEADS)
        if self.layer.rotary_base is not None:
            angles = rotary_angles(torch.tensor([self.length]), D_K, self.layer.rotary_base, q.dtype)
            cos, sin = angles.cos(), angles.sin()
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        end = self.length + 1
        self.keys[:, :, self.length : end], self.values[:, :, self.length : end] = k, cut(self.layer.w_v(x), KV_HEADS)
        self.length = end
        return self.layer.w_o(joined(F.scaled_dot_product_attention(q, self.keys[:, :, :end], self.values[:, :, :end], enable_gqa=True)))


def full_cache(length: int) -> KeyValueCache:
    cache = KeyValueCache()
    cache.append(torch.randn(1, KV_HEADS, length, D_K), torch.randn(1, KV_HEADS, length, D_K))
    cache.append(torch.randn(1, KV_HEADS, 1, D_K), torch.randn(1, KV_HEADS, 1, D_K))  # now there is room for as many again
    return cache


def table_of_layers(layer: GroupedQueryAttention) -> str:
    lines = ["| B, T | the floor, ms | grouped layer, to the floor | peak MiB: floor, layer |", "|---|---:|---:|---:|"]
    for length, rounds in ((512, 60), (2048, 15)):
        x = torch.randn(1, length, D_MODEL)
        found = medians({"floor": lambda: forward(layer, x), "layer": lambda: layer(x)}, rounds)
        peaks = [peak_mib(lambda f=f: f(x)) for f in (lambda y: forward(layer, y), layer)]
        lines.append(f"| 1, {length} | {1000 * found['floor']:.1f} | {found['layer'] / found['floor']:.2f} | {peaks[0]:.0f}, {peaks[1]:.0f} |")
    return "\n".join(lines)


def table_of_steps(layers: dict[str, GroupedQueryAttention]) -> str:
    lines = ["| kept tokens | layer | the floor, µs | a step, to the floor |", "|---:|---|---:|---:|"]
    x = torch.randn(1, 1, D_MODEL)
    for length in (256, 1024, 4096):
        for name, layer in layers.items():
            floor, cache = FloorOfAStep(layer, length + 1), full_cache(length)
            found = medians({"floor": lambda: floor(x), "step": lambda: layer(x, cache=cache)}, 60)
            lines.append(f"| {length} | {name} | {1e6 * found['floor']:.0f} | {found['step'] / found['floor']:.2f} |")
    return "\n".join(lines)


def table_of_blocks() -> str:
    lines = ["| T | table, ms | blocks, to the table | fused, to the table | peak MiB: table, blocks, fused |", "|---:|---:|---:|---:|---:|"]
    for length in (1024, 4096):
        x = torch.randn(1, 8, length, D_K)
        calls = {
            "table": lambda: attention(x, x, x),
            "blocks": lambda: blockwise_attention(x, x, x),
            "fused": lambda: F.scaled_dot_product_attention(x, x, x),
        }
        found, peaks = medians(calls, 7), [f"{peak_mib(call):.0f}" for call in calls.values()]
        lines.append(f"| {length} | {1000 * found['table']:.0f} | {found['blocks'] / found['table']:.2f} | {found['fused'] / found['table']:.2f} | {', '.join(peaks)} |")
    return "\n".join(lines)


def tables() -> str:
    torch.manual_seed(0)
    plain = GroupedQueryAttention(D_MODEL, HEADS, KV_HEADS).eval()
    rotary = GroupedQueryAttention(D_MODEL, HEADS, KV_HEADS, rotary_base=10_000.0).eval()
    with torch.inference_mode():
        return "\n\n".join((table_of_layers(plain), table_of_steps({"plain": plain, "rotary": rotary}), table_of_blocks()))


if __name__ == "__main__":
    print(tables())
