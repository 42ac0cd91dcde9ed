"""The parts of the project's pages that commands write."""

import re
from pathlib import Path


def write(page: Path, name: str, text: str, command: str) -> None:
    """Replace what stands on a page between the markers of a name.

    Raises:
        ValueError: the page has not exactly one pair of these markers; the message prints them.
    """
    begin, end = f"<!-- {name}: written by {command} -->", f"<!-- end of {name} -->"
    old = page.read_text(encoding="utf-8")
    new, count = re.subn(f"(?s){re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{text}\n{end}", old)
    if count != 1:
        raise ValueError(f"{page.name} has {count} pairs of the markers {begin} and {end}; it needs one")
    if new != old:
        page.write_text(new, encoding="utf-8")
