"""Judge all answers and print, for each check, how many were detected, named, and falsely refused."""

import statistics
import time

from mha_lib import checks
from tests.answers import right_answers, wrong_answers


def main() -> None:
    rows: dict[str, dict] = {}
    seconds = []
    for answer in wrong_answers() + right_answers():
        row = rows.setdefault(answer.check, dict.fromkeys(("wrong", "detected", "named", "right", "refused"), 0))
        start = time.perf_counter()
        result = getattr(checks, answer.check).judge(answer.load())
        seconds.append(time.perf_counter() - start)
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
    names = ("wrong", "detected", "named", "right", "refused")
    print("| check |", " | ".join(names), "|")
    print("|---|" + "---:|" * len(names))
    for check, row in rows.items():
        print(f"| `{check}` |", " | ".join(str(row[n]) for n in names), "|")
    print("| all |", " | ".join(str(sum(r[n] for r in rows.values())) for n in names), "|")
    print(f"\nseconds a check: median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}")


if __name__ == "__main__":
    main()
