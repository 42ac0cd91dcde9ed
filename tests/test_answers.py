"""The checks proved by answers: each wrong one is told its own mistake, each right one passes."""

import re

import pytest

from mha_lib import checks
from mha_lib.checks.case import Binding
from mha_lib.checks.classes.exercise import ClassExercise
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.exercises.real import RealExercise
from mha_lib.checks.guard import Guard
from tests.answers import right_answers, wrong_answers
from tests.conftest import missing_model


def name(answer):
    return f"{answer.check}-{answer.mistake}" if answer.mistake else answer.check


def judge(answer):
    if "einops" in answer.source:
        pytest.importorskip("einops", reason="einops is not installed: pip install -e '.[test]'")
    exercise = getattr(checks, answer.check)
    skip_without_its_model(exercise)
    return exercise.judge(answer.load())


def skip_without_its_model(exercise):
    if isinstance(exercise, RealExercise) and (missing := missing_model()):
        pytest.skip(missing)


@pytest.mark.parametrize("answer", wrong_answers(), ids=name)
def test_a_wrong_answer_is_told_its_mistake(answer):
    result = judge(answer)
    assert result.status == "failed", answer.source
    assert result.misconception == answer.mistake, f"{answer.source}\n{result}"
    assert result.message and result.read
    names_nothing_that_its_input_lacks(getattr(checks, answer.check), result)


THINGS = {  # a word of a verdict, and what the input that it shows must have
    "mask": lambda text: any(word in text for word in ("mask", "tokens", "size", "sentence", "length", "queries", "prompt")),
    "dropout": lambda text: "dropout" in text or "d_model" in text,
}


def names_nothing_that_its_input_lacks(exercise, result):
    shown = " ".join([result.facts.get("seen on", ""), " ".join(exercise.signature)])
    for word, has in THINGS.items():
        if re.search(rf"\b{word}\b", result.message) and "seen on" in result.facts:
            assert has(shown), str(result)
    if re.search(r"\bmask\b", result.message) and "mask" in exercise.signature and "query" in result.facts.get("seen on", ""):
        assert "mask" in result.facts["seen on"] or "where no mask" in result.message, str(result)


@pytest.mark.parametrize("answer", right_answers(), ids=name)
def test_a_right_answer_passes(answer):
    result = judge(answer)
    assert result.status == "passed", f"{answer.source}\n{result}"


def exercises():
    return [x for x in vars(checks).values() if isinstance(x, Exercise)]


@pytest.mark.parametrize("exercise", exercises(), ids=lambda e: e.name)
def test_every_check_has_a_wrong_and_a_right_answer(exercise):
    if exercise.name.startswith("bug_"):
        pytest.skip("its answers are inputs: test_bug_hunts.py")
    assert any(a.check == exercise.name for a in wrong_answers())
    assert any(a.check == exercise.name for a in right_answers())


@pytest.mark.parametrize("exercise", exercises(), ids=lambda e: e.name)
def test_no_two_mistakes_have_one_id_and_no_message_says_what_to_type(exercise):
    ids = [m.id for m in exercise.mistakes]
    assert len(ids) == len(set(ids))
    for mistake in exercise.mistakes:
        assert not any(code in mistake.says for code in ("keepdim", "transpose(", "unsqueeze(", ".view(", "reshape(", "dim=", "masked_fill(")), mistake


@pytest.mark.parametrize("exercise", exercises(), ids=lambda e: e.name)
def test_no_mimic_of_a_mistake_is_right(exercise):
    """A mimic that agrees with the reference on every probe would be no mistake."""
    if isinstance(exercise, ClassExercise):
        return
    skip_without_its_model(exercise)
    with Guard() as guard:
        for mistake in exercise.mistakes:
            for mimic in mistake.mimics:
                binding = Binding(mimic)
                seen = ([(probe, exercise.observe(binding.call, probe, guard))] for probe in exercise.probes)
                assert any(exercise._beside(one, binding)[0].is_wrong for one in seen), mistake.id
