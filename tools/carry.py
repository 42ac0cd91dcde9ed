"""Carry what a learner wrote from one version of the course's notebooks to the next, cell by cell.

Three versions of a folder meet: old (what the learner began with), mine (what they made of it) and new. Cells
of the course are recognised by their nbgrader id, and where there is none, by their cell id. The new version
is the skeleton. An answer goes into the cell of its exercise, in whichever notebook that now stands; a cell
that only the learner changed stays theirs; a cell that both changed stands beside the new one; and a cell of
the learner's own follows the course's cell above it.
"""

import copy
import re
import uuid
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode

_DEFINED = re.compile(r"(?m)^(?:(?:async[ ]+)?def|class)[ ]+(\w+)|^(\w+)[ ]*=(?!=)")
_IMPORTED = re.compile(r"(?m)^(?:from[ ]+[\w.]+[ ]+)?import[ ]+(.+)$")


@dataclass
class Carried:
    """What came of one notebook: how many answers and other cells have a place, and which have none."""

    answers: int = 0
    cells: int = 0
    moved: dict[str, str] = field(default_factory=dict)  # the exercise, and the notebook that it went to
    homeless: list[str] = field(default_factory=list)


@dataclass
class _Page:
    """A notebook of the new version, and what is put beside its cells or in place of them."""

    above: dict[str, list] = field(default_factory=dict)
    below: dict[str | None, list] = field(default_factory=dict)
    instead: dict[str, NotebookNode] = field(default_factory=dict)
    as_run: dict[str, NotebookNode] = field(default_factory=dict)  # the course's own text, with the learner's outputs
    left_out: set[str] = field(default_factory=set)

    def is_touched(self) -> bool:
        return bool(self.above or self.below or self.instead or self.left_out)


def read(data: bytes) -> NotebookNode:
    """Return a notebook as JupyterLab reads it: small offences against the format are mended, not refused.

    Raises:
        ValueError: the text is no notebook.
    """
    try:
        notebook = nbformat.reads(data.decode("utf-8-sig"), as_version=4, capture_validation_error={})
        notebook.cells = [_whole(cell) for cell in notebook.cells]
    except Exception as error:
        raise ValueError(f"no notebook: {error}") from None
    return notebook


def name(cell: NotebookNode) -> str:
    """Return what a cell of the course is known by."""
    return _mark(cell).get("grade_id") or cell.id


def is_answer(cell: NotebookNode | None) -> bool:
    """Say whether this is a cell to fill in."""
    return cell is not None and bool(_mark(cell).get("solution")) and "grade_id" in _mark(cell)


def carry(
    old: dict[str, NotebookNode], mine: dict[str, NotebookNode], new: dict[str, NotebookNode]
) -> tuple[dict[str, NotebookNode], dict[str, Carried]]:
    """Put what stands in a learner's notebooks into the new ones of the same folder.

    Returns:
        the new notebooks that hold something of the learner's, and for each of the learner's what came of it.
    """
    course = _Course(old, new)
    pages = {path: _Page() for path in new}
    told = {path: _Reader(path, notebook, course, pages).place() for path, notebook in mine.items()}
    made = {path: _bind(new[path], page) for path, page in pages.items() if page.is_touched()}
    placed = _texts(*old.values(), *new.values(), *made.values())
    for path, notebook in mine.items():
        told[path].homeless = [
            _mark(cell).get("grade_id") or f"cell {number}"
            for number, cell in enumerate(notebook.cells, 1)
            if cell.source.strip() and cell.source.strip() not in placed
        ]
    return made, told


class _Course:
    """Where each cell of the course stands, before and after."""

    def __init__(self, old: dict[str, NotebookNode], new: dict[str, NotebookNode]):
        self.old = {path: {name(c): c for c in notebook.cells} for path, notebook in old.items()}
        self.new = {path: {name(c): c for c in notebook.cells} for path, notebook in new.items()}

    def known(self, path: str) -> dict[str, NotebookNode]:
        return self.new.get(path, {}) | self.old.get(path, {})

    def heir(self, path: str) -> str | None:
        """Return the notebook of the new version that a notebook became: itself, or the one it was renamed to."""
        if path in self.new:
            return path
        shared = {p: len(cells.keys() & self.old.get(path, {}).keys()) for p, cells in self.new.items() if p not in self.old}
        best = max(shared, key=shared.get, default=None)
        return best if best and 2 * shared[best] > len(self.old.get(path, {})) else None

    def home(self, path: str, cell: str) -> str | None:
        """Return the notebook of the new version in which a cell of an old one stands."""
        heir = self.heir(path)
        if heir and cell in self.new[heir]:
            return heir
        moved = [p for p, cells in self.new.items() if cell in cells and cell not in self.old.get(p, {})]
        return moved[0] if len(moved) == 1 else None


class _Reader:
    """Goes through one of the learner's notebooks and gives each cell its place."""

    def __init__(self, path: str, notebook: NotebookNode, course: _Course, pages: dict[str, _Page]):
        self.path, self.course, self.pages = path, course, pages
        self.old, self.known = course.old.get(path, {}), course.known(path)
        self.cells = [cell for cell in notebook.cells if cell.source.strip()]
        self.names = self._recognise()
        self.first = self._choose()
        self.told = Carried()
        self.own: list[tuple[NotebookNode, str]] = []  # cells that the learner wrote beside the answers, and where they went

    def place(self) -> Carried:
        heir = self.course.heir(self.path)
        at: tuple[str, str | None] | None = (heir, None) if heir else None
        waiting: list[NotebookNode] = []  # own cells above the first one that has a place
        for i, cell in enumerate(self.cells):
            known = self.names[i]
            if known is not None and self.first[known] == i:
                home = self.course.home(self.path, known)
                if home is not None:
                    at = (home, known)
                    for early in waiting:
                        self._beside(home, "above", known, early)
                    waiting = []
                    self._place_known(cell, known, home)
                    continue
                if _same(cell, self.old.get(known)) or is_answer(self.old.get(known)):
                    continue  # the course has dropped it; an answer without an exercise is told as lost
            elif known is not None and is_answer(self.known[known]) and _same(cell, self.known[known]):
                continue  # a stub that was pasted again holds nothing, and would undo the answer above it
            if at is None:
                waiting.append(cell)
            else:
                self._beside(at[0], "below", at[1], cell)
        self._leave_out_stubs()
        self._take_helpers_along()
        return self.told

    def _recognise(self) -> list[str | None]:
        """Return for each cell the name of the course's cell that it is, or is a copy or a part of."""
        ids = {cell.id: known for known, cell in self.known.items()} | {c.id: known for known, c in self.old.items()}
        texts = {cell.source.strip(): known for known, cell in self.known.items()}
        names = []
        for cell in self.cells:
            marked = _mark(cell).get("grade_id")
            known = marked if marked in self.known else ids.get(cell.id)
            names.append(known or texts.get(cell.source.strip()))
        for known, course in (self.old or self.known).items():
            # An answer in a cell of its own, where the cell to fill in is gone.
            if is_answer(course) and known not in names:
                for i in reversed(range(len(names))):
                    if names[i] is None and self.cells[i].cell_type == "code" and _answers(self.cells[i], course):
                        names[i] = known
                        break
        return names

    def _choose(self) -> dict[str, int]:
        """Return, for each name, which of the cells that bear it takes the place of the course's cell."""
        first = {}
        for known in dict.fromkeys(n for n in self.names if n is not None):
            course, bearers = self.known[known], [i for i, n in enumerate(self.names) if n == known]
            changed = [i for i in bearers if not _same(self.cells[i], self.old.get(known, course))]
            if is_answer(course):
                complete = [i for i in changed if _answers(self.cells[i], course)]
                first[known] = (complete or changed or bearers)[-1]
            else:
                first[known] = next((i for i in bearers if i not in changed), bearers[0])
        return first

    def _place_known(self, cell: NotebookNode, known: str, home: str) -> None:
        page, was, course = self.pages[home], self.old.get(known), self.course.new[home][known]
        if _same(cell, was) or _same(cell, course):
            if cell.cell_type == "code" and _same(cell, course) and _same_outputs(was, course):
                page.as_run[known] = _kept(cell, course)
        elif is_answer(course) and (cell.cell_type == "code" or _answers(cell, course)):
            self._place_answer(cell, known, home)
        elif _same(was, course) and cell.cell_type == course.cell_type:
            page.instead[known] = _kept(cell, course)
            self.own.append((cell, home))
            self.told.cells += 1
        else:
            self._beside(home, "above" if cell.cell_type == "code" else "below", known, cell)

    def _place_answer(self, cell: NotebookNode, known: str, home: str) -> None:
        page, course = self.pages[home], self.course.new[home][known]
        other = page.instead.get(known)
        if _same(other, cell):
            return
        if other is not None and home != self.path:
            return self._beside(home, "above", known, cell)
        page.instead[known] = _answered(cell, course)
        self.told.answers += 1
        if home != self.path:
            self.told.moved[known] = home
        if other is not None:
            self._beside(home, "above", known, other)

    def _beside(self, home: str, side: str, known: str | None, cell: NotebookNode) -> None:
        getattr(self.pages[home], side).setdefault(known, []).append(_own(cell))
        self.own.append((cell, home))
        self.told.cells += 1

    def _leave_out_stubs(self) -> None:
        """Leave out a stub that the learner deleted because the answer stands elsewhere, or it would undo it."""
        written = set().union(*(_defined(c) for c in self.cells if c.cell_type == "code")) if self.cells else set()
        for known, course in self.old.items():
            if is_answer(course) and known not in self.names and _defined(course) and _defined(course) <= written:
                home = self.course.home(self.path, known)
                if home is not None:
                    self.pages[home].left_out.add(known)

    def _take_helpers_along(self) -> None:
        """Copy a helper from a cell of the learner's own to the answer that moved away and calls it."""
        for known, home in self.told.moved.items():
            page, called = self.pages[home], _words(self.pages[home].instead[known])
            copied: list[NotebookNode] = []
            for cell, stays in reversed(self.own):
                if stays != home and cell.cell_type == "code" and (_defined(cell) | _imported(cell)) & called:
                    called |= _words(cell)
                    copied.insert(0, _own(cell))
            if copied:
                page.above[known] = [*copied, *page.above.get(known, [])]


def _bind(new: NotebookNode, page: _Page) -> NotebookNode:
    cells = list(page.below.get(None, []))
    for cell in new.cells:
        known = name(cell)
        cells += page.above.get(known, [])
        if known not in page.left_out or known in page.instead:
            cells.append(page.instead.get(known) or page.as_run.get(known) or cell)
        cells += page.below.get(known, [])
    bound = copy.deepcopy(new)
    bound.cells, used = [], set()
    for cell in cells:
        cell = copy.deepcopy(cell)
        if cell.id in used:
            cell.id = uuid.uuid4().hex[:8]
        used.add(cell.id)
        bound.cells.append(cell)
    bound.nbformat_minor = max(5, bound.nbformat_minor)
    return bound


def _mark(cell: NotebookNode) -> dict:
    mark = cell.metadata.get("nbgrader")
    return mark if isinstance(mark, dict) else {}


def _texts(*notebooks: NotebookNode) -> set[str]:
    return {cell.source.strip() for notebook in notebooks for cell in notebook.cells}


def _same(a: NotebookNode | None, b: NotebookNode | None) -> bool:
    return a is not None and b is not None and a.source.strip() == b.source.strip()


def _same_outputs(a: NotebookNode | None, b: NotebookNode | None) -> bool:
    return a is not None and b is not None and a.get("outputs") == b.get("outputs")


def _defined(cell: NotebookNode) -> set[str]:
    """Return the names that a cell defines; found by pattern, for the cell need not be right Python."""
    return {function or variable for function, variable in _DEFINED.findall(cell.source)}


def _answers(cell: NotebookNode, course: NotebookNode) -> bool:
    """Say whether a cell defines what the cell to fill in is there to define."""
    return bool(_defined(course)) and _defined(course) <= _defined(cell)


def _imported(cell: NotebookNode) -> set[str]:
    return {part.split()[-1].strip("()") for line in _IMPORTED.findall(cell.source) for part in line.split(",") if part.split()}


def _words(cell: NotebookNode) -> set[str]:
    return set(re.findall(r"\w+", cell.source))


def _whole(cell: NotebookNode) -> NotebookNode:
    cell.setdefault("metadata", NotebookNode())
    cell.setdefault("id", uuid.uuid4().hex[:8])
    if not isinstance(cell.source, str):
        raise ValueError("a cell without text")
    if cell.cell_type == "code":
        cell.setdefault("outputs", [])
        cell.setdefault("execution_count", None)
    return cell


def _kept(cell: NotebookNode, course: NotebookNode) -> NotebookNode:
    """Return the learner's cell with the marks of the course's."""
    kept = copy.deepcopy(cell)
    kept.id, kept.metadata = course.id, copy.deepcopy(course.metadata)
    return kept


def _answered(cell: NotebookNode, course: NotebookNode) -> NotebookNode:
    answered = copy.deepcopy(course)
    answered.source, answered.outputs, answered.execution_count = cell.source, [], None
    return answered


def _own(cell: NotebookNode) -> NotebookNode:
    """Return a cell without nbgrader's mark, which may stand only once in a notebook."""
    own = copy.deepcopy(cell)
    own.metadata.pop("nbgrader", None)
    return own
