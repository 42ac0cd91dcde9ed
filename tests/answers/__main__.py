"""Judge all answers, write how many were detected, named and falsely refused into the README, and what teachers plan with.

    python -m tests.answers            prints, and writes between the markers of README.md and docs/teaching.md
"""

import statistics
import time
from pathlib import Path

from mha_lib import checks
from tests.answers import right_answers, wrong_answers
from tools import plan
from tools.pages import write

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("wrong", "detected", "named", "right", "refused")


def judge_all() -> tuple[str, list[float]]:
    """Return the table of all checks, and the seconds that each answer took."""
    rows: dict[str, dict] = {}
    seconds = []
    for answer in wrong_answers() + right_answers():
        row = rows.setdefault(answer.check, dict.fromkeys(NAMES, 0))
        start = time.process_time()
        result = getattr(checks, answer.check).judge(answer.load())
        seconds.append(time.process_time() - start)
        if answer.mistake is None:
            row["right"] += 1
            row["refused"] += result.status != "passed"
            if result.status != "passed":
                print(f"refused: {answer.check}\n{answer.source}\n{result}")
        else:
            row["wrong"] += 1
            row["detected"] += result.status == "failed"
            row["named"] += result.misconception == answer.mistake
            if result.misconception != answer.mistake:
                print(f"not named: {answer.check} {answer.mistake}, but {result.misconception}\n{answer.source}")
    order = [exercise.name for chapter in checks.CHAPTERS.values() for exercise in chapter]
    return table(dict(sorted(rows.items(), key=lambda item: order.index(item[0])))), seconds


def table(rows: dict[str, dict]) -> str:
    lines = [f"| check | {' | '.join(NAMES)} |", "|---|" + "---:|" * len(NAMES)]
    lines += [f"| `{check}` | {' | '.join(str(row[n]) for n in NAMES)} |" for check, row in rows.items()]
    lines.append(f"| all | {' | '.join(str(sum(r[n] for r in rows.values())) for n in NAMES)} |")
    return "\n".join(lines)


def main() -> None:
    text, seconds = judge_all()
    print(text)
    print(f"\nprocessor seconds a check: median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}")
    write(ROOT / "README.md", "checks", text, "make mistakes")
    write(ROOT / "docs" / "teaching.md", "points", plan.points(), "make mistakes")
    write(ROOT / "docs" / "teaching.md", "weeks", plan.weeks(), "make mistakes")


if __name__ == "__main__":
    main()
