"""What an exercise is made of: inputs to try, known mistakes, and the evidence by which a mistake is known."""

from collections.abc import Callable
from dataclasses import dataclass

from mha_lib.checks.read import Heading

TOLERANCE = 1e-5


class Fresh:
    """An argument that is made anew for every call, such as a module that the call may change."""

    def __init__(self, make: Callable[[], object], words: str):
        self.make, self.words = make, words

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Probe:
    """One input to try.

    Attributes:
        label: what is special about it, for the list of a passed check.
        args: the arguments; tensors are cloned before every call.
        gradient: compare the gradients with respect to the float inputs instead of the result.
        judged: False for an input that only tells two mistakes apart.
        tolerance: absolute and relative.
        cells: the values of the first tensor name its cells (it is an arange).
    """

    label: str
    args: tuple
    gradient: bool = False
    judged: bool = True
    tolerance: float = TOLERANCE
    cells: bool = False


@dataclass(frozen=True)
class Sign:
    """Evidence seen from outside: test(trials) says whether what came out on all inputs shows the mistake."""

    test: Callable[[list], bool]


ALWAYS, WRONG, UNREAD, REMARK = "always", "wrong", "unread", "remark"


@dataclass(frozen=True)
class Law:
    """Evidence by a property that the mistake breaks.

    Attributes:
        test: gets the specimen (the answer, and a guard to call it with); returns None where the law
            holds, else facts to show, label to text.
        when: ALWAYS asks it of every answer, also of one with the right numbers; WRONG only of one with
            wrong numbers, before they are compared with the mimics; UNREAD where the answer's weights
            cannot be read, in place of the numbers; REMARK only of one that passes, which it goes on to do:
            the sentence stands beside it.
    """

    test: Callable[[object], dict[str, str] | None]
    when: str = ALWAYS


@dataclass(frozen=True, init=False)
class Mistake:
    """A known mistake.

    Args:
        id: a short name, also the misconception of the result.
        says: the mistake in one or two sentences; it never says what to type.
        evidence: mimics (functions that make this mistake, with the arguments of the reference),
            signs and laws.
        read: where to read again; None for the heading of the exercise.
    """

    id: str
    says: str
    read: Heading | None
    mimics: tuple[Callable, ...]
    signs: tuple[Sign, ...]
    laws: tuple[Law, ...]

    def __init__(self, id: str, says: str, *evidence: "Callable | Sign | Law", read: Heading | None = None):
        fields = {
            "id": id,
            "says": says,
            "read": read,
            "mimics": tuple(e for e in evidence if not isinstance(e, (Sign, Law))),
            "signs": tuple(e for e in evidence if isinstance(e, Sign)),
            "laws": tuple(e for e in evidence if isinstance(e, Law)),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def of(self, *evidence: "Callable | Sign | Law") -> "Mistake":
        """Return the same mistake with other evidence."""
        return Mistake(self.id, self.says, *evidence, read=self.read)

    def at(self, read: Heading | None) -> "Mistake":
        """Return the same mistake with another heading to read again."""
        return Mistake(self.id, self.says, *self.mimics, *self.signs, *self.laws, read=read)


@dataclass
class Binding:
    """An answer made callable on the arguments of the probes, and what the reference needs to follow it."""

    call: Callable
    context: tuple = ()
