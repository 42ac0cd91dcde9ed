"""Taught before used: what a solution calls stands in its chapter, an earlier one, or the task and its hint."""

import ast
import builtins
import re

import pytest

from tests.conftest import ROOT, load, notebook_paths


def names_used(source: str) -> set[str]:
    """Return the functions, methods, attributes and keywords of a piece of code that are not its own variables."""
    tree = ast.parse(source)
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in (*n.args, *n.kwonlyargs)}
    own |= {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    names |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {k.arg for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords if k.arg}
    return names - own - set(dir(builtins))


def told_before(path, index: int) -> str:
    """Return all that a learner has read before a cell of solutions/: chapters with outputs, earlier cells, the task."""
    chapter = int(path.name[:2])
    read = [c for p in notebook_paths("notebooks") if int(p.name[:2]) <= chapter for c in load(p).cells]
    read += [c for p in notebook_paths("solutions") if int(p.name[:2]) < chapter for c in load(p).cells]
    texts = [c.source for c in read + load(path).cells[:index]]
    texts += [o.get("text", "") for c in read for o in c.get("outputs", [])]
    return "\n".join(texts)


def answers():
    for path in notebook_paths("solutions"):
        for index, cell in enumerate(load(path).cells):
            if cell.metadata.get("nbgrader", {}).get("solution"):
                yield pytest.param(path, index, cell.source, id=f"{path.stem[:2]}-{cell.metadata.nbgrader.grade_id}")


@pytest.mark.parametrize("path, index, source", list(answers()))
def test_every_name_in_a_solution_stands_before_it(path, index, source):
    told = told_before(path, index)
    missing = [name for name in sorted(names_used(source)) if not re.search(rf"\b{re.escape(name)}\b", told)]
    assert not missing, f"{path.relative_to(ROOT)} uses what nothing before it shows: {', '.join(missing)}"


def test_the_names_of_a_piece_of_code():
    code = "def f(x):\n    y = x.split(3, dim=-2)\n    return torch.cat([len(p) for p in y])"
    assert names_used(code) == {"split", "dim", "torch", "cat"}
