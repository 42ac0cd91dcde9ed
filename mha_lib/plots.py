"""The pictures of the course, in one style. Every function draws, shows, and returns None."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

STYLE = {
    "figure.dpi": 110,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
# Dark and light, told apart without colour too; safe for the common kinds of colour blindness.
BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#c8590a", "#1b7f5a", "#6b6b6b"
MARKERS = ("o", "s", "^", "D", "v")
DASHES = ("-", "--", "-.", ":")


def attention_map(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Draw a table of weights: one row a query, one column a key, the number in each cell.

    Shapes: weights (T_q, T_k); T_q names of queries, T_k names of keys (default: the same).

    Raises:
        ValueError: the names do not fit the table.
    """
    attention_maps([weights], queries, keys, None if title is None else [title])


def attention_maps(
    tables: Sequence[Tensor],
    queries: Sequence[str] | Sequence[Sequence[str]],
    keys: Sequence[str] | Sequence[Sequence[str]] | None = None,
    titles: Sequence[str] | None = None,
) -> None:
    """Draw several tables of weights side by side; names are shared, or one list for each table.

    Shapes: each table (T_q, T_k).

    Raises:
        ValueError: the names do not fit a table.
    """
    tables = [_numbers(t) for t in tables]
    queries = _for_each(queries, len(tables))
    keys = queries if keys is None else _for_each(keys, len(tables))
    for table, rows, columns in zip(tables, queries, keys):
        if table.dim() != 2 or tuple(table.shape) != (len(rows), len(columns)):
            raise ValueError(
                f"a table of shape {tuple(table.shape)} needs as many names: got {len(rows)} for the "
                f"queries and {len(columns)} for the keys"
            )
    cell = 0.62 if max(t.size(1) for t in tables) <= 8 else 0.42
    longest = max(len(str(name)) for names in queries for name in names)
    width = sum(t.size(1) * cell + 0.1 * longest + 0.9 for t in tables)
    height = max(t.size(0) for t in tables) * cell + 1.3
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(tables), figsize=(max(width, 3.4), height), layout="constrained", squeeze=False)
        for i, (axis, table) in enumerate(zip(axes[0], tables)):
            _cells(axis, table, queries[i], keys[i], cell)
            axis.set_ylabel("query" if i == 0 else "")
            axis.set_title(titles[i] if titles else "", pad=8)
        plt.show()


def attention_arcs(weights: Tensor, tokens: Sequence[str], query: int) -> None:
    """Draw one query's weights as arcs over the sentence: the thicker, the larger.

    Shapes: weights (T,), T tokens; query is the index of the token that asks.
    """
    weights = _numbers(weights)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.2, 2.9), layout="constrained")
        for i, (weight, token) in enumerate(zip(weights.tolist(), tokens)):
            reach = abs(i - query)
            if reach:
                bend = -0.55 if i > query else 0.55
                axis.add_patch(
                    FancyArrowPatch(
                        (query, 0.12), (i, 0.12), connectionstyle=f"arc3,rad={bend}", arrowstyle="-",
                        linewidth=0.6 + 14 * weight, color=BLUE, alpha=0.75, capstyle="round",
                    )
                )
            box = {"boxstyle": "round,pad=0.35", "facecolor": "#dbe8f7" if i == query else "white", "edgecolor": BLUE if i == query else GREY}
            axis.text(i, 0, token, ha="center", va="center", bbox=box, fontsize=12)
            axis.text(i, -0.32, f"{weight:.2f}", ha="center", va="center", fontsize=12)
        axis.text(-0.62, -0.32, "weight", ha="right", va="center", color=GREY)
        axis.text(-0.62, 0, "token", ha="right", va="center", color=GREY)
        axis.set(xlim=(-1.2, len(tokens) - 0.4), ylim=(-0.5, 0.35 + 0.3 * max(query, len(tokens) - 1 - query)))
        axis.axis("off")
        plt.show()


def mixture(values: Tensor, weights: Tensor, names: Sequence[str], axes_names: Sequence[str]) -> None:
    """Draw values as points in the plane, sized by their weights, and the average they make.

    Shapes: values (T, 2), weights (T,), T names, two names of the axes.
    """
    values, weights = _numbers(values), _numbers(weights)
    mixed = weights @ values
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(5.6, 4.2), layout="constrained")
        for (x, y), weight, name in zip(values.tolist(), weights.tolist(), names):
            axis.plot([x, float(mixed[0])], [y, float(mixed[1])], color=GREY, linewidth=0.8, linestyle=":", zorder=1)
            axis.scatter(x, y, s=30 + 900 * weight, color=BLUE, alpha=0.8, zorder=2)
            axis.annotate(
                f"{name}  {weight:.2f}", (x, y), textcoords="offset points", xytext=(6 + 16 * weight**0.5, 8), zorder=4
            )
        axis.scatter(*mixed.tolist(), s=160, marker="X", color=ORANGE, edgecolor="white", zorder=3)
        axis.annotate(
            "output", tuple(mixed.tolist()), textcoords="offset points", xytext=(8, 9), color=ORANGE, weight="bold", zorder=4
        )
        axis.set(xlabel=axes_names[0], ylabel=axes_names[1])
        axis.margins(0.22)
        plt.show()


def _cells(axis: Axes, table: Tensor, rows: Sequence[str], columns: Sequence[str], cell: float) -> None:
    top = max(float(table.abs().max()), 1e-9) if table.numel() else 1.0
    axis.imshow(table, cmap="Blues", vmin=0, vmax=max(top, 1.0) if top <= 1.0 else top, aspect="equal")
    size = 10 if cell > 0.5 else 8
    for i in range(table.size(0)):
        for j in range(table.size(1)):
            value = float(table[i, j])
            text = "0" if value == 0 else f"{value:.2f}".replace("0.", ".", 1)
            axis.text(j, i, text, ha="center", va="center", fontsize=size, color="white" if value > 0.55 else "black")
    turn = {"rotation": 40, "ha": "right"} if max(len(str(c)) for c in columns) > 5 else {}
    axis.set_xticks(range(table.size(1)), labels=[str(c) for c in columns], **turn)
    axis.set_yticks(range(table.size(0)), labels=[str(r) for r in rows])
    axis.set_xlabel("key")
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)


def _numbers(x: Tensor) -> Tensor:
    return torch.as_tensor(x).detach().float().cpu()


def _for_each(names: Sequence, count: int) -> list[Sequence[str]]:
    return [names] * count if isinstance(names[0], str) else list(names)
