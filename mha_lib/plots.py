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
WIDEST = 9.4  # inches: in a window of 1280 at 200 % zoom the letters are still no smaller than before
GAP = 0.1  # inches beside each of several tables
# Dark and light, told apart without colour too; safe for the common kinds of colour blindness.
BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#c8590a", "#1b7f5a", "#6b6b6b"
MARKERS = ("o", "s", "^", "D", "v")
DASHES = ("-", "--", "-.", ":")


def attention_map(
    weights: Tensor,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    title: str | None = None,
    axes_names: tuple[str, str] = ("query", "key"),
) -> None:
    """Draw a table of weights: one row a query, one column a key, the number in each cell.

    Shapes: weights (T_q, T_k); T_q names of queries, T_k names of keys (default: the same).

    Raises:
        ValueError: the names do not fit the table.
    """
    attention_maps([weights], queries, keys, None if title is None else [title], axes_names)


def attention_maps(
    tables: Sequence[Tensor],
    queries: Sequence[str] | Sequence[Sequence[str]],
    keys: Sequence[str] | Sequence[Sequence[str]] | None = None,
    titles: Sequence[str] | None = None,
    axes_names: tuple[str, str] = ("query", "key"),
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
    many = max(t.size(1) for t in tables) > 8
    named = [i == 0 or queries[i] != queries[0] for i in range(len(tables))]
    longest = max(len(str(name)) for names in queries for name in names)
    margins = sum(0.9 + 0.1 * longest if name else 0.4 for name in named)
    columns = sum(t.size(1) for t in tables)
    cell = min(0.42 if many else 0.62, (WIDEST - margins) / columns)
    width = columns * cell + margins
    height = max(t.size(0) for t in tables) * cell + 1.3
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(tables), figsize=(max(width, 3.4), height), layout="constrained", squeeze=False)
        figure.get_layout_engine().set(w_pad=GAP)
        for i, (axis, table) in enumerate(zip(axes[0], tables)):
            _cells(axis, table, queries[i] if named[i] else None, keys[i], many)
            axis.set_ylabel(axes_names[0] if i == 0 else "")
            axis.set_xlabel(axes_names[1])
            axis.set_title(titles[i] if titles else "", pad=8)
        plt.show()


def attention_arcs(weights: Tensor, tokens: Sequence[str], query: int) -> None:
    """Draw one query's weights as arcs over the sentence, its own as a loop: the thicker, the larger.

    Shapes: weights (T,), T tokens; query is the index of the token that asks.
    """
    weights = _numbers(weights)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(7.2, 2.9), layout="constrained")
        for i, (weight, token) in enumerate(zip(weights.tolist(), tokens)):
            start, end, bend = (query, i, -0.55 if i > query else 0.55)
            if i == query:  # a loop above the token itself
                start, end, bend = query - 0.2, query + 0.2, -1.5
            axis.add_patch(
                FancyArrowPatch(
                    (start, 0.12), (end, 0.12), connectionstyle=f"arc3,rad={bend}", arrowstyle="-",
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


def curves(
    x: Sequence[float],
    series: dict[str, Sequence[float]],
    xlabel: str,
    ylabel: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    level: tuple[str, float] | None = None,
) -> None:
    """Draw one line for each named series, told apart by colour, dash and marker; level is a named height."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 3.7), layout="constrained")
        for i, (name, values) in enumerate(series.items()):
            axis.plot(
                x, values, label=name, linewidth=2, markersize=6, markevery=max(1, len(x) // 12),
                color=(BLUE, ORANGE, GREEN, GREY)[i % 4], linestyle=DASHES[i % 4], marker=MARKERS[i % 5],
            )
        if level is not None:
            axis.axhline(level[1], color=GREY, linewidth=1, linestyle=":")
            axis.text(x[0], level[1], level[0], color=GREY, va="bottom")
        axis.set(xlabel=xlabel, ylabel=ylabel)
        if log_x:
            axis.set_xscale("log", base=2)
            axis.set_xticks(list(x), labels=[f"{v:g}" for v in x])
        if log_y:
            axis.set_yscale("log")
        elif min(min(v) for v in series.values()) >= 0:
            axis.set_ylim(bottom=0)
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(x) > 24 else {}
        axis.legend(frameon=False, **beside)
        plt.show()


def histograms(samples: dict[str, Tensor], xlabel: str) -> None:
    """Draw the spread of several named samples in one frame, as outlines with different dashes."""
    samples = {name: _numbers(values) for name, values in samples.items()}
    reach = max(float(v.abs().quantile(0.999)) for v in samples.values())
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
        for i, (name, values) in enumerate(samples.items()):
            axis.hist(
                values.numpy(), bins=90, range=(-reach, reach), density=True, histtype="step", linewidth=2,
                color=(BLUE, ORANGE, GREEN)[i % 3], linestyle=DASHES[i % 4], label=name,
            )
        axis.set(xlabel=xlabel, ylabel="how often", yticks=[])
        axis.legend(frameon=False)
        plt.show()


def loss_curves(runs: dict[str, Sequence[Sequence[float]]], floor: tuple[str, float] | None = None) -> None:
    """Draw the loss of several training runs, one frame for each named group, on one scale."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(runs), figsize=(3.7 * len(runs), 3.3), sharey=True, layout="constrained", squeeze=False
        )
        for i, (axis, (name, losses)) in enumerate(zip(axes[0], runs.items())):
            for j, values in enumerate(losses):
                axis.plot(values, color=(BLUE, ORANGE, GREEN)[i % 3], linestyle=DASHES[j % 4], linewidth=1.4)
                axis.plot(len(values) - 1, values[-1], marker=MARKERS[j % 5], color=(BLUE, ORANGE, GREEN)[i % 3])
            if floor is not None:
                axis.axhline(floor[1], color=GREY, linewidth=1, linestyle=":")
                axis.text(0.98, floor[1] * 1.03, floor[0], color=GREY, va="bottom", ha="right", transform=axis.get_yaxis_transform())
            axis.set(title=name, xlabel="step", xlim=(0, max(len(v) for group in runs.values() for v in group) * 1.03))
        axes[0][0].set(ylabel="loss", ylim=(0, 1.15 * max(max(v) for group in runs.values() for v in group)))
        plt.show()


def strips(groups: dict[str, dict[str, Sequence[float]]], xlabel: str) -> None:
    """Draw one dot for each run: a row for each group, a marker for each kind of number between 0 and 1."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 0.8 * len(groups) + 1.2), layout="constrained")
        for row, kinds in enumerate(groups.values()):
            for i, (kind, values) in enumerate(kinds.items()):
                height = [row + 0.16 * (1 if i else -1) + 0.05 * (j - len(values) / 2) * (1 if i else -1) for j in range(len(values))]
                axis.scatter(
                    values, height, s=60, marker=MARKERS[i], color=(BLUE, ORANGE)[i % 2], alpha=0.85, edgecolor="white",
                    label=kind if row == 0 else None, clip_on=False, zorder=3,
                )
        axis.set(yticks=range(len(groups)), yticklabels=list(groups), xlim=(0, 1.02), ylim=(len(groups) - 0.4, -0.6), xlabel=xlabel)
        axis.grid(axis="x", color="#e3e3e3")
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(0.3, 1.06), ncols=2)
        plt.show()


def masks(
    tables: Sequence[Tensor],
    queries: Sequence[str],
    keys: Sequence[str],
    titles: Sequence[str],
    axes_names: tuple[str, str] = ("query", "key"),
) -> None:
    """Draw masks side by side: a dot where the query may attend, a hatched cell where it is blocked.

    Shapes: each table (T_q, T_k) of True/False.
    """
    with plt.rc_context(STYLE):
        width = min(len(tables) * (len(keys) * 0.46 + 1.2), WIDEST)
        figure, axes = plt.subplots(1, len(tables), figsize=(width, len(queries) * 0.46 + 1.2), layout="constrained", squeeze=False)
        figure.get_layout_engine().set(w_pad=GAP)
        for i, (axis, table) in enumerate(zip(axes[0], tables)):
            table = _on_cpu(table).bool().expand(len(queries), len(keys))
            for row in range(len(queries)):
                for column in range(len(keys)):
                    if table[row, column]:
                        axis.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="#dbe8f7", edgecolor="white"))
                        axis.plot(column, row, "o", color=BLUE, markersize=7)
                    else:
                        axis.add_patch(
                            plt.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="#f4f4f4", edgecolor="#bdbdbd", hatch="///", linewidth=0)
                        )
            axis.set(xlim=(-0.5, len(keys) - 0.5), ylim=(len(queries) - 0.5, -0.5), aspect="equal", xlabel=axes_names[1], title=titles[i])
            _name_ticks(axis, queries if i == 0 else None, keys)
            axis.set_ylabel(axes_names[0] if i == 0 else "")
        plt.show()


def head_groups(tables: Sequence[Tensor], titles: Sequence[str]) -> None:
    """Draw which query head reads which key head: one table for each layer, a dot where they belong together.

    Shapes: each table (query heads, key heads) of True/False; the number of query heads is the same in all.
    """
    shades = ("#dbe8f7", "#fbe3cf")
    with plt.rc_context(STYLE):
        ratios = [t.size(1) + 1.6 for t in tables]
        figure, axes = plt.subplots(
            1, len(tables), figsize=(min(0.36 * sum(ratios) + 0.6, WIDEST), 0.36 * tables[0].size(0) + 1.3),
            layout="constrained", squeeze=False, width_ratios=ratios,
        )
        for i, (axis, table) in enumerate(zip(axes[0], tables)):
            table = _on_cpu(table).bool()
            for row in range(table.size(0)):
                for column in range(table.size(1)):
                    face = shades[column % 2] if table[row, column] else "#f4f4f4"
                    axis.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=face, edgecolor="white"))
                    if table[row, column]:
                        axis.plot(column, row, MARKERS[column % 2], color=(BLUE, ORANGE)[column % 2], markersize=7)
            axis.set(xlim=(-0.5, table.size(1) - 0.5), ylim=(table.size(0) - 0.5, -0.5), aspect="equal", title=titles[i], xlabel="key head")
            _name_ticks(axis, [str(n) for n in range(table.size(0))], [str(n) for n in range(table.size(1))])
            axis.set_ylabel("query head" if i == 0 else "")
        plt.show()


def heat(tables: Sequence[Tensor], xlabel: str, ylabel: str, titles: Sequence[str], lines: int | None = None) -> None:
    """Draw tables of sizes, light for 0 and dark for the largest of all; lines every so many columns.

    Shapes: each table (rows, columns), not negative.
    """
    tables = [_numbers(t) for t in tables]
    top = max(float(t.max()) for t in tables)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(tables), figsize=(4.3 * len(tables), 3.6), layout="constrained", squeeze=False)
        for i, (axis, table) in enumerate(zip(axes[0], tables)):
            image = axis.imshow(table.numpy(), cmap="Blues", vmin=0, vmax=top, aspect="auto")
            axis.set(title=titles[i], xlabel=xlabel, ylabel=ylabel if i == 0 else "")
            if table.size(0) <= 16:
                axis.set_yticks(range(table.size(0)))
            if table.size(1) <= 16:
                axis.set_xticks(range(0, table.size(1), 1 if table.size(1) <= 10 else 2))
            for edge in range(lines, table.size(1), lines) if lines else ():
                axis.axvline(edge - 0.5, color=ORANGE, linewidth=1, linestyle="--")
        figure.colorbar(image, ax=axes[0].tolist(), shrink=0.8)
        plt.show()


def numbered_cells(tables: dict[str, Tensor], groups: dict[str, Tensor], names: Sequence[str], axes_names: tuple[str, str]) -> None:
    """Draw small tables of numbers, each cell shaded and marked by the group it belongs to.

    Shapes: each table and its groups (rows, columns); groups count from 0 and have a name each.
    """
    shades = ("#dbe8f7", "#fbe3cf", "#d9efe5", "#ececec")
    hatches = ("", "///", "...", "xx")
    with plt.rc_context(STYLE):
        width = sum(t.size(1) * 0.5 + 1.3 for t in tables.values())
        height = max(t.size(0) for t in tables.values()) * 0.5 + 1.5
        figure, axes = plt.subplots(1, len(tables), figsize=(width, height), layout="constrained", squeeze=False)
        for i, (axis, (title, table)) in enumerate(zip(axes[0], tables.items())):
            for row in range(table.size(0)):
                for column in range(table.size(1)):
                    group = int(groups[title][row, column])
                    axis.add_patch(
                        plt.Rectangle(
                            (column - 0.5, row - 0.5), 1, 1, facecolor=shades[group % 4], edgecolor="#8a8a8a",
                            hatch=hatches[group % 4], linewidth=0.8,
                        )
                    )
                    axis.text(
                        column, row, str(int(table[row, column])), ha="center", va="center", fontsize=12,
                        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
                    )
            axis.set(
                xlim=(-0.5, table.size(1) - 0.5), ylim=(table.size(0) - 0.5, -0.5), aspect="equal", title=title,
                xticks=range(table.size(1)), yticks=range(table.size(0)), xlabel=axes_names[1], ylabel=axes_names[0] if i == 0 else "",
            )
            axis.tick_params(length=0)
        handles = [
            plt.Rectangle((0, 0), 1, 1, facecolor=shades[g % 4], edgecolor="#8a8a8a", hatch=hatches[g % 4], label=name)
            for g, name in enumerate(names)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False)
        plt.show()


def _cells(axis: Axes, table: Tensor, rows: Sequence[str] | None, columns: Sequence[str], many: bool) -> None:
    top = max(float(table.abs().max()), 1e-9) if table.numel() else 1.0
    axis.imshow(table.numpy(), cmap="Blues", vmin=0, vmax=max(top, 1.0) if top <= 1.0 else top, aspect="equal")
    size = 8 if many else 10
    for i in range(table.size(0)):
        for j in range(table.size(1)):
            value = float(table[i, j])
            if many and 0 < value < 0.005:
                continue  # among many cells .00 in every cell hides the rest
            text = "0" if value == 0 else f"{value:.2f}".replace("0.", ".", 1)
            axis.text(j, i, text, ha="center", va="center", fontsize=size, color="white" if value > 0.55 else "black")
    _name_ticks(axis, rows, columns)


def _name_ticks(axis: Axes, rows: Sequence[str] | None, columns: Sequence[str]) -> None:
    turn = {"rotation": 40, "ha": "right"} if max(len(str(c)) for c in columns) > 5 else {}
    axis.set_xticks(range(len(columns)), labels=[str(c) for c in columns], **turn)
    axis.set_yticks([] if rows is None else range(len(rows)), labels=[str(r) for r in rows or ()])
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)


def _numbers(x: Tensor) -> Tensor:
    return _on_cpu(x).detach().float()


def _on_cpu(x: Tensor) -> Tensor:
    return torch.as_tensor(x, device="cpu")  # wherever new tensors go by default


def _for_each(names: Sequence, count: int) -> list[Sequence[str]]:
    return [names] * count if isinstance(names[0], str) else list(names)


def bands(
    x: Sequence[float],
    series: dict[str, Sequence[Sequence[float]]],
    xlabel: str,
    ylabel: str,
    level: tuple[str, float] | None = None,
) -> None:
    """Draw several runs of each named series: a line through the means, a band from the lowest to the highest.

    Shapes: each series (runs, len(x)), numbers between 0 and 1; level is a named height.
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 3.9), layout="constrained")
        for i, (name, runs) in enumerate(series.items()):
            columns, color = list(zip(*runs)), (BLUE, ORANGE, GREEN, GREY)[i % 4]
            axis.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.2, linewidth=0)
            axis.plot(
                x, [sum(c) / len(c) for c in columns], label=name, linewidth=2, markersize=6,
                color=color, linestyle=DASHES[i % 4], marker=MARKERS[i % 5],
            )
        if level is not None:
            axis.axhline(level[1], color=GREY, linewidth=1, linestyle=":")
            axis.text(x[0], level[1], level[0], color=GREY, va="bottom")
        axis.set(xlabel=xlabel, ylabel=ylabel, xticks=list(x), ylim=(0, 1.03))
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        plt.show()


def heads(tables: dict[str, Tensor], lowest: float = 0.1) -> None:
    """Draw a number for every head of a model, one table for each title: a row a layer, a column a head.

    Shapes: each table (layers, heads), between 0 and 1; numbers below the lowest are shown by their shade alone.
    """
    with plt.rc_context(STYLE):
        columns = min(2, len(tables))
        rows = -(-len(tables) // columns)
        some = next(iter(tables.values()))
        width, height = some.size(1) * 0.35 + 0.4, some.size(0) * 0.33 + 0.7
        figure, axes = plt.subplots(rows, columns, figsize=(columns * width, rows * height), layout="constrained", squeeze=False)
        for place, axis in enumerate(axes.flat):
            axis.set_visible(place < len(tables))
        for i, (axis, (title, table)) in enumerate(zip(axes.flat, tables.items())):
            table = _numbers(table)
            axis.imshow(table.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            for layer in range(table.size(0)):
                for head in range(table.size(1)):
                    value = float(table[layer, head])
                    if value >= lowest:
                        text = f"{value:.2f}".removeprefix("0")
                        axis.text(head, layer, text, ha="center", va="center", fontsize=8, color="white" if value > 0.55 else "black")
            axis.set(title=title, xticks=range(table.size(1)), yticks=range(table.size(0)))
            axis.set_xlabel("head" if i + columns >= len(tables) else "")
            axis.set_ylabel("layer" if i % columns == 0 else "")
            axis.tick_params(length=0)
            for side in axis.spines.values():
                side.set_visible(False)
        plt.show()
