"""The course's repository: what git says of it, as text, as trees, and as notebooks."""

import os
import subprocess
from pathlib import Path

from nbformat import NotebookNode

from tools.carry import read


class CannotUpdate(Exception):
    """Something is in the way; nothing was changed. The message says what to do."""


class GitFailed(CannotUpdate):
    """Git refused; the message is git's own."""


def git(root: Path, *arguments: str, may_fail: bool = False, raw: bool = False, extra: dict[str, str] | None = None):
    """Run git and return what it prints: text, or bytes if raw, or None if it may fail and does.

    Raises:
        GitFailed: git refused, in its own words.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")} | (extra or {})
    command = ["git", "-c", "core.quotepath=off", "-c", "i18n.logOutputEncoding=UTF-8", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        if may_fail:
            return None
        reason = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise GitFailed(f"git {next(a for a in arguments if a[0] != '-' and '=' not in a)} said: {reason}")
    return done.stdout if raw else done.stdout.decode("utf-8", "surrogateescape").strip()


def commit_of(root: Path, name: str) -> str:
    return git(root, "rev-parse", "--verify", f"{name}^{{commit}}")


def tree(root: Path, commit: str) -> dict[str, tuple[str, str]]:
    """Return the mode and the object of each file of a commit."""
    entries = git(root, "ls-tree", "-r", "-z", commit, raw=True).split(b"\0")
    split = (entry.split(b"\t", 1) for entry in entries if entry)
    return {os.fsdecode(path): (about.split()[0].decode(), about.split()[2].decode()) for about, path in split}


def changed_files(root: Path, *commits: str) -> list[str]:
    """Return the tracked files that differ between two commits, or between one and what lies here."""
    said = git(root, "-c", "core.fileMode=false", "diff", "--name-only", "-z", "--no-renames", *commits, raw=True)
    return [os.fsdecode(path) for path in said.split(b"\0") if path]


def path_of(output: str) -> str:
    return os.fsdecode(output.encode("utf-8", "surrogateescape"))


def course_notebooks(root: Path, commit: str, folder: str) -> dict[str, NotebookNode]:
    """Return the notebooks of a folder as a commit has them."""
    inside = [path for path in tree(root, commit) if path.endswith(".ipynb") and path.rpartition("/")[0] == folder]
    return {path: read(git(root, "cat-file", "blob", f"{commit}:{path}", raw=True)) for path in inside}
