"""The stub of an exercise: is it the whole answer still, or a line that was left behind?"""

import ast
import inspect
import textwrap

from mha_lib.checks.guard import own_frames


def leftover(error: BaseException) -> bool:
    """Say whether the code that reached the stub holds an answer as well."""
    frame, _ = own_frames(error)[-1]
    try:
        lines, _ = inspect.getsourcelines(frame.f_code)
        body = ast.parse(textwrap.dedent("".join(lines))).body[0].body
    except (OSError, SyntaxError, IndexError, AttributeError, TypeError):
        return False
    return any(not _is_given(statement) for statement in body)


def _is_given(statement: ast.stmt) -> bool:
    """Say whether a statement stands in an untouched stub: the docstring, the raise, super().__init__()."""
    text = ast.unparse(statement)
    return text.startswith("raise NotImplementedError") or text == "super().__init__()" or text == "pass" or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
