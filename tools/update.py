"""Bring the course up to date and keep everything that you wrote.

    python tools/update.py      or: make update

Each notebook that you changed is first copied to saved/, as it is. Then the course's new version comes, and what
you wrote is put into it cell by cell (tools/carry.py). All of it is prepared before anything is touched, and
the plan is kept until it is carried out: an update that was interrupted is finished by the next one.
"""

import json
import os
import re
import shutil
import sys
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path


_SAVED = "Your notebooks, as they were:"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script, Python looks in tools/ only

from tools import first_edition  # noqa: E402
from tools.carry import carry, read  # noqa: E402
from tools.kept import dumped, folder_for, shown, words, write  # noqa: E402
from tools.repository import CannotUpdate, GitFailed, changed_files, commit_of, course_notebooks, git, path_of, tree  # noqa: E402


@dataclass
class Source:
    """Where the course comes from: the commit to follow, and its place in words."""

    ref: str
    remote: str
    place: str


@dataclass
class Change:
    """One file of the plan: its path, and the names of its contents before and after; None where there is no file."""

    path: str
    before: str | None
    after: str | None
    executable: bool = False


@dataclass
class Plan:
    """What an update will do, kept in git's folder until it is done."""

    folder: Path
    head: str
    commit: str
    changes: list[Change] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def add(self, path: str, before: bytes | None, after: bytes | None, executable: bool) -> None:
        number = len(self.changes)
        self.changes.append(Change(path, self._keep(f"{number}.before", before), self._keep(f"{number}.after", after), executable))

    def content(self, name: str | None) -> bytes | None:
        return None if name is None else (self.folder / name).read_bytes()

    def write(self) -> None:
        """Make the plan count: from here on it is carried out, whatever interrupts it."""
        known = {"head": self.head, "commit": self.commit, "said": self.said, "changes": [asdict(c) for c in self.changes]}
        write(self.folder / "plan.json", json.dumps(known).encode())

    @classmethod
    def found(cls, folder: Path) -> "Plan | None":
        """Return the plan of an interrupted update, or None."""
        if not (folder / "plan.json").exists():
            return None
        known = json.loads((folder / "plan.json").read_bytes())
        return cls(folder, known["head"], known["commit"], [Change(**c) for c in known["changes"]], known["said"])

    def _keep(self, name: str, data: bytes | None) -> str | None:
        if data is None:
            return None
        (self.folder / name).write_bytes(data)
        return name


def update(root: Path, now: datetime) -> str:
    """Update a checkout and return what happened, for the learner.

    Raises:
        CannotUpdate: something is in the way; nothing was changed.
    """
    root = root.resolve()
    check(root)
    folder = _git_file(root, "course-update")
    plan, begun = Plan.found(folder), []
    if plan is not None:
        saved = next((line for line in plan.said if line.startswith(_SAVED)), "")
        if commit_of(root, "HEAD") in (plan.head, plan.commit):
            _keep_later_edits(root, plan, folder_for(root, now))
            carry_out(root, plan)
            return "\n".join(["An earlier update was interrupted. It is finished now.", *plan.said])
        begun = [f"An earlier update was interrupted, and you went on with git since. {saved}".strip()]
    source = find_source(root)
    head, target = commit_of(root, "HEAD"), commit_of(root, source.ref)
    if git(root, "merge-base", "--is-ancestor", target, head, may_fail=True) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        return "\n".join([*begun, *(first_edition.finish(root, now) or [_up_to_date(root, source)])])
    try:
        plan = prepare(root, source, head, target, folder, now)
        carry_out(root, plan)
    except OSError as error:
        raise CannotUpdate(f"{error.filename or 'A file'} cannot be written: {error.strerror or error}. Nothing was changed.") from None
    return "\n".join([*begun, *plan.said])


def check(root: Path) -> None:
    """Raise CannotUpdate unless this folder is a clone in which nothing else is going on."""
    if shutil.which("git") is None:
        raise CannotUpdate("There is no git on this machine, and updates come through git. Install it, then update again.")
    try:
        top = Path(path_of(git(root, "rev-parse", "--show-toplevel")))
    except GitFailed as error:
        if _inside_git(root):
            raise
        raise CannotUpdate(f"This copy of the course came without git, so it cannot be updated. {_CLONE}\n{error}") from None
    if not top.samefile(root):
        raise CannotUpdate(f"This folder is no clone of the course: it lies inside another repository, {top}. {_CLONE}")
    if git(root, "ls-files", "--unmerged") or _git_file(root, "MERGE_HEAD").exists():
        raise CannotUpdate(
            "A merge stands half done here. Take it back with git merge --abort: your commits stay as they are. Then update again."
        )
    lock = _git_file(root, "index.lock")
    if lock.exists():
        raise CannotUpdate(f"Another git is at work here. Wait for it, and if there is none, delete {lock}. Then update again.")


_CLONE = "Clone the course into a new folder with git, copy your notebooks beside it, and go on there."


def _git_file(root: Path, name: str) -> Path:
    return Path(root, path_of(git(root, "rev-parse", "--git-path", name)))


def _inside_git(root: Path) -> bool:
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def find_source(root: Path) -> Source:
    """Fetch, and return where the course comes from: what this branch follows, or the remote named upstream.

    Raises:
        CannotUpdate: this cannot be told, or cannot be reached.
    """
    branch = git(root, "symbolic-ref", "--quiet", "--short", "HEAD", may_fail=True)
    if branch is None:
        raise CannotUpdate(
            "You are on no branch, so there is nothing to bring up to date. git branch lists the branches; "
            "go back to yours, for example with git switch main, and update again."
        )
    remotes = git(root, "remote").split()
    if not remotes:
        raise CannotUpdate(
            "This clone does not know where the course comes from. Say it once, git remote add origin ADDRESS, and update again."
        )
    followed, wanted = _followed(root, branch, remotes)
    remote = "upstream" if "upstream" in remotes else followed or ("origin" if "origin" in remotes else remotes[0])
    git(root, "fetch", "--quiet", remote)
    address = re.sub(r"//[^/@]*@", "//", git(root, "remote", "get-url", remote))
    name = wanted if wanted and _exists(root, f"refs/remotes/{remote}/{wanted}") else _main_branch(root, remote)
    if name is None or not _exists(root, f"refs/remotes/{remote}/{name}"):
        raise CannotUpdate(
            f"There is no branch {name or wanted or 'main'} at {address}. Say which one holds the course: "
            f"git branch --set-upstream-to {remote}/NAME. Then update again."
        )
    ref = f"refs/remotes/{remote}/{name}"
    if not _has_the_course(root, ref):
        raise CannotUpdate(
            f"What lies at {address} ({name}) has nothing in common with this folder, so it is not where this course comes from. "
            "Say where that is: git remote add upstream ADDRESS. Then update again."
        )
    return Source(ref, remote, f"{address} ({name})")


def _has_the_course(root: Path, ref: str) -> bool:
    """Say whether a branch goes on from this folder's history or, where it was begun anew, holds the same exercises."""
    if git(root, "merge-base", "HEAD", ref, may_fail=True) is not None:
        return True
    base = _base(root, "HEAD", ref)
    both = tree(root, base).keys() & tree(root, ref).keys() if base else ()
    return any(path.startswith("exercises/") for path in both)


def _followed(root: Path, branch: str, remotes: list[str]) -> tuple[str | None, str | None]:
    """Return the remote and its branch that a branch follows, be it by way of other branches here."""
    seen = set()
    while branch not in seen:
        seen.add(branch)
        ref = git(root, "rev-parse", "--symbolic-full-name", f"{branch}@{{upstream}}", may_fail=True) or ""
        if ref.startswith("refs/heads/"):
            branch = ref.removeprefix("refs/heads/")
        for remote in remotes:
            if ref.startswith(f"refs/remotes/{remote}/"):
                return remote, ref.removeprefix(f"refs/remotes/{remote}/")
    return None, None


def _main_branch(root: Path, remote: str) -> str | None:
    said = git(root, "ls-remote", "--symref", remote, "HEAD", may_fail=True) or ""
    found = re.match(r"ref: refs/heads/(\S+)", said)
    return found and found[1]


def _exists(root: Path, ref: str) -> bool:
    return git(root, "rev-parse", "--verify", "--quiet", ref, may_fail=True) is not None


def _up_to_date(root: Path, source: Source) -> str:
    main = _main_branch(root, source.remote)
    other = f"refs/remotes/{source.remote}/{main}"
    if other != source.ref and main and _exists(root, other) and git(root, "rev-list", f"HEAD..{other}"):
        return (
            f"Nothing newer lies at {source.place}, which this branch follows. Nothing was changed. But {source.remote}/{main} "
            f"is newer: to follow it, git branch --set-upstream-to {source.remote}/{main}, and update again."
        )
    said = f"The course is up to date: nothing newer lies at {source.place}. Nothing was changed."
    if source.remote != "upstream":
        said += "\nIf that is a copy of your own, say where the course itself lies: git remote add upstream ADDRESS"
    return said


@dataclass
class Course:
    """The version of the course that the learner began with, and the new one; each file's mode and object."""

    root: Path
    base: str
    target: str
    old: dict[str, tuple[str, str]]
    new: dict[str, tuple[str, str]]

    def changed(self, path: str) -> bool:
        return self.old.get(path) != self.new.get(path)

    def now(self, path: str) -> bytes | None:
        """Return the new file as git would write it here, or None if the course has it no more."""
        return git(self.root, "cat-file", "--filters", f"{self.target}:{path}", raw=True) if path in self.new else None


def prepare(root: Path, source: Source, head: str, target: str, folder: Path, now: datetime) -> Plan:
    """Work out what an update does, save the learner's notebooks, and write the plan; no file of the course changes.

    Raises:
        CannotUpdate: the learner and the course changed the same file, and it is no notebook.
    """
    base = _base(root, head, source.ref)
    course = Course(root, base, target, tree(root, base), tree(root, target))
    mine, simple = _sort(course)
    saved = folder_for(root, now)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plan = Plan(folder, head, target)
    plan.said.append(f"The course is up to date: {git(root, 'log', '-1', '--format=%h, %s', target)}")
    if mine:
        plan.said.append(f"{_SAVED} {shown(saved, root)}")
    carried = _carry(course, [path for path in mine if course.changed(path)], shown(saved, root), plan.said)
    for path in mine:
        write(saved / path, (root / path).read_bytes())
    for path in sorted({*simple, *carried}):
        before = (root / path).read_bytes() if (root / path).is_file() else None
        after = carried[path] if path in carried else course.now(path)
        if before != after:
            plan.add(path, before, after, executable=course.new.get(path, ("",))[0] == "100755")
    if git(root, "rev-list", f"{base}..{head}"):
        plan.commit = _join(course, head, plan)
        plan.said.append("Your own commits and the course's are joined in one commit.")
    plan.write()
    return plan


def _sort(course: Course) -> tuple[list[str], list[str]]:
    """Return the notebooks that the learner changed, and the other files that the course changed."""
    touched = set(changed_files(course.root, course.base))
    mine, simple, both = [], [], []
    for path in sorted(course.old.keys() | course.new.keys()):
        here, is_mine = course.root / path, path in touched or path not in course.old
        if is_mine and path.endswith(".ipynb") and here.is_file():
            mine.append(path)
        elif not course.changed(path):
            continue
        elif not is_mine or not os.path.lexists(here) or (here.is_file() and here.read_bytes() == course.now(path)):
            simple.append(path)
        elif path in course.new:
            both.append(path)
    known = [path for path in both if path in course.old]
    if known:
        raise CannotUpdate(
            f"You and the course both changed {', '.join(known)}. Keep a copy of yours elsewhere, take the course's back with "
            f"git checkout {course.base[:10]} -- {' '.join(known)}, and update again."
        )
    if both:
        raise CannotUpdate(f"The course's new version brings {', '.join(both)}, and you have that too. Rename yours, then update again.")
    return mine, simple


def _base(root: Path, head: str, ref: str) -> str | None:
    """Return the commit of the course that the learner's work began with, also where the course's history was rewritten."""
    common = git(root, "merge-base", head, ref, may_fail=True)
    forked = git(root, "merge-base", "--fork-point", ref, head, may_fail=True)
    if forked and (common is None or git(root, "merge-base", "--is-ancestor", common, forked, may_fail=True) is not None):
        return forked
    return common


def _carry(course: Course, mine: list[str], saved: str, said: list[str]) -> dict[str, bytes | None]:
    """Return the new contents of the learner's notebooks, and of those that an answer moved to."""
    contents: dict[str, bytes | None] = {}
    written, unreadable = {}, []
    for path in mine:
        contents[path] = course.now(path)
        try:
            written[path] = read((course.root / path).read_bytes())
        except ValueError:
            unreadable.append(path)
    for folder in sorted({path.rpartition("/")[0] for path in written}):
        inside = {path: notebook for path, notebook in written.items() if path.rpartition("/")[0] == folder}
        before, after = (course_notebooks(course.root, commit, folder) for commit in (course.base, course.target))
        made, told = carry(before, inside, after)
        contents |= {path: dumped(notebook) for path, notebook in made.items()}
        said += [line for path in inside for line in words(path, told[path], path in after, saved)]
    said += [f"{path}: yours could not be read; it lies in {saved}, and the course's stands in its place." for path in unreadable]
    return contents


def _join(course: Course, head: str, plan: Plan) -> str:
    """Return a commit that follows both the learner's commits and the course's; the branch does not move yet."""
    root, committed = course.root, tree(course.root, head)
    after = {change.path: change.after for change in plan.changes}
    index = {"GIT_INDEX_FILE": str(plan.folder / "index")}
    git(root, "read-tree", course.target, extra=index)
    for path in changed_files(root, course.base, head):
        if after.get(path) is not None:
            entry = course.new[path][0], git(root, "hash-object", "-w", "--path", path, str(plan.folder / after[path]))
        elif path in committed and path not in after:
            entry = committed[path]
        else:
            continue
        git(root, "update-index", "--add", "--cacheinfo", ",".join((*entry, path)), extra=index)
    made = git(root, "write-tree", extra=index)
    nobody = {f"GIT_{who}_{what}": "learner" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    is_known = git(root, "var", "GIT_COMMITTER_IDENT", may_fail=True) is not None
    arguments = ("-p", head, "-p", course.target, "-m", "The course's newer version, with my work")
    return git(root, "commit-tree", made, *arguments, extra={} if is_known else nobody)


def carry_out(root: Path, plan: Plan) -> None:
    """Write the files of a plan and move the branch; what cannot be finished is taken back.

    Raises:
        CannotUpdate: a file could not be written, or git refused; everything is as it was.
    """
    try:
        for change in plan.changes:
            _put(root / change.path, plan.content(change.after), change.executable)
        git(root, "reset", "--quiet", plan.commit)
    except (OSError, GitFailed) as error:
        try:
            for change in plan.changes:
                _put(root / change.path, plan.content(change.before), change.executable)
            git(root, "reset", "--quiet", plan.head, may_fail=True)
        except OSError:
            raise CannotUpdate(f"The update stopped in its middle: {error}. Mend that and update again: it goes on where it stopped.") from None
        shutil.rmtree(plan.folder, ignore_errors=True)
        raise CannotUpdate(f"The update was taken back, everything is as it was: {error}") from None
    (plan.folder / "plan.json").unlink()
    shutil.rmtree(plan.folder, ignore_errors=True)


def _keep_later_edits(root: Path, plan: Plan, saved: Path) -> None:
    """Where a file was changed after the interruption, save it and put that change into the plan too."""
    for change in plan.changes:
        here = root / change.path
        now = here.read_bytes() if here.is_file() else None
        before, after = plan.content(change.before), plan.content(change.after)
        if now is None or now in (before, after):
            continue
        write(saved / change.path, now)
        plan.said.append(f"{change.path}: changed since then; that version lies in {shown(saved, root)}.")
        try:
            edited, versions = read(now), [read(v) for v in (before, after) if v is not None]
        except ValueError:
            continue
        if after is None or not change.path.endswith(".ipynb"):
            continue
        texts = {cell.source for cell in edited.cells}
        began = max(versions, key=lambda v: len(texts & {cell.source for cell in v.cells}))
        made, _ = carry({change.path: began}, {change.path: edited}, {change.path: read(after)})
        if change.path in made:
            write(plan.folder / change.after, dumped(made[change.path]))


def _put(path: Path, data: bytes | None, executable: bool) -> None:
    if data is not None:
        write(path, data, executable)
    elif os.path.lexists(path):
        path.unlink()
        for folder in path.parents:
            try:
                folder.rmdir()
            except OSError:
                break


def main() -> int:
    sys.stdout.reconfigure(errors="replace")
    try:
        print(update(ROOT, datetime.now()))
    except CannotUpdate as reason:
        print(reason)
        return 1
    except KeyboardInterrupt:
        print("Stopped. Update again: what was begun is finished then.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
