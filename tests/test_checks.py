"""The engine of the checks: three outcomes, in words, whatever a learner's code does."""

import os
import random
import sys
import time
import warnings

import pytest
import torch
from torch import nn

from mha_lib import attention, checks
from mha_lib.checks import guard
from mha_lib.checks.exercise import Exercise
from mha_lib.checks.result import is_strict


def right(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    weights = scores.softmax(-1)
    return weights @ value, weights


def wrong_axis(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    weights = scores.softmax(-2)
    return weights @ value, weights


def unfilled(query, key, value):
    # YOUR CODE HERE
    raise NotImplementedError()


def test_three_outcomes():
    passed, failed, new = checks.attention(right), checks.attention(wrong_axis), checks.attention(unfilled)
    assert (passed.status, passed.misconception) == ("passed", None)
    assert (failed.status, failed.misconception) == ("failed", "att_softmax_over_queries")
    assert (new.status, new.misconception) == ("not attempted", None)
    assert "output (..., T_q, d_v)" in new.message


def test_a_verdict_names_mistake_input_cell_and_place():
    text = str(checks.attention(wrong_axis))
    for words in ("not yet", "columns", "query (2, 3, 4)", "output[", "yours", "expected", "read again", "notebook 01"):
        assert words in text


def test_html_and_text_say_the_same():
    result = checks.attention(wrong_axis)
    html = result._repr_html_()
    assert result.message in html and "not yet" in html and 'role="status"' in html


def test_learners_text_is_escaped_in_html():
    def bad(query, key, value):
        raise ValueError("<script>alert(1)</script>")

    assert "<script>" not in checks.attention(bad)._repr_html_()


def raising(query, key, value):
    return query @ kee  # noqa: F821


def endless(query, key, value):
    return endless(query, key, value)


def changes_input(query, key, value):
    out = right(query, key, value)
    value.zero_()
    return out


def hangs(query, key, value):
    while True:
        time.sleep(0.01)


def hangs_and_catches(query, key, value):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass


def hangs_and_catches_everything(query, key, value):
    while True:
        try:
            while True:
                query @ key.transpose(-2, -1)
        except:  # noqa: E722
            pass


def exits(query, key, value):
    sys.exit(3)


@pytest.mark.parametrize(
    "answer, id, words",
    [
        (lambda q, k, v: None, "returned_none", "returned None"),
        (lambda q, k, v: "weights", "not_a_pair", "asked for is the pair"),
        (lambda q, k, v: right(q, k, v)[0], "not_a_pair", "one tensor of shape"),
        (lambda q, k, v: (right(q, k, v)[0], None), "returned_none", "weights are None"),
        (lambda q, k, v: [x.tolist() for x in right(q, k, v)], "wrong_type", "list"),
        (lambda q, k, v: tuple(x.unsqueeze(0) for x in right(q, k, v)), "axes_of_size_one", "too many"),
        (lambda q, k, v: tuple(x[..., :1] for x in right(q, k, v)), "part_only", "the first 1 of 6"),
        (lambda q, k, v: (right(q, k, v)[0] * float("nan"), right(q, k, v)[1]), "nan", "NaN"),
        (raising, "name_unknown", "NameError: name 'kee' is not defined"),
        (endless, "recursion", "calls itself"),
        (changes_input, "att_changes_value", "value"),
        (exits, "raised", "SystemExit"),
        (lambda q, k: (q, k), "too_many_arguments", "TypeError"),
        (None, "not_a_function", "Pass the function itself"),
        (right(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2)), "not_a_function", "a tuple"),
        (nn.Linear, "not_a_function", "the class Linear"),
    ],
)
def test_words_for_whatever_comes(answer, id, words):
    result = checks.attention(answer)
    assert (result.status, result.misconception) == ("failed", id)
    assert words in str(result)
    assert "mha_lib/checks" not in str(result) and "Traceback" not in str(result)


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(guard, "TIME_LIMIT", 0.5)
    monkeypatch.setattr(guard, "WAITING", 0.5)


def test_the_limit_is_a_few_seconds():
    assert 2 <= guard.TIME_LIMIT <= 5


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("answer", [hangs, hangs_and_catches, hangs_and_catches_everything])
def test_code_that_hangs_is_cut(answer, short_limit):
    result = checks.attention(answer)
    assert result.misconception == "too_slow" and "loop" in result.message


def test_only_the_learners_own_seconds_count(monkeypatch, short_limit):
    """On a slow machine the comparison may take long: a right answer still passes."""
    observe = Exercise.observe

    def slow(*args, **named):
        time.sleep(0.05)
        return observe(*args, **named)

    monkeypatch.setattr(Exercise, "observe", slow)
    assert checks.attention(right).status == "passed"


def test_a_check_away_from_the_main_thread_is_cut_too(short_limit):
    import threading

    found = []
    thread = threading.Thread(target=lambda: found.append(checks.attention(hangs_and_catches)))
    thread.start()
    thread.join(10)
    assert found and found[0].misconception == "too_slow"


def test_the_line_that_raised_is_shown():
    assert "return query @ kee" in str(checks.attention(raising))


def test_global_state_is_put_back():
    def rude(query, key, value):
        torch.manual_seed(1)
        random.seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        warnings.warn("careful")
        print("hello")
        torch.set_grad_enabled(True)
        return right(query, key, value)

    torch.manual_seed(7)
    random.seed(7)
    want, want_plain = torch.rand(1), random.random()
    torch.manual_seed(7)
    random.seed(7)
    threads = torch.get_num_threads()
    assert checks.attention(rude).status == "passed"
    assert torch.rand(1) == want and random.random() == want_plain
    assert torch.get_default_dtype() == torch.float32
    assert torch.ones(1).device.type == "cpu"
    assert torch.is_grad_enabled() and torch.get_num_threads() == threads


def test_a_notebook_with_other_defaults_is_judged_alike():
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    try:
        assert checks.attention(right).status == "passed"
        assert torch.get_default_dtype() == torch.float64 and not torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


def test_nothing_is_printed(capfd):
    def loud(query, key, value):
        print("hello")
        print("hello", file=sys.stderr)
        warnings.warn("careful")
        return right(query, key, value)

    checks.attention(loud)
    assert capfd.readouterr() == ("", "")


def test_lists_views_and_slow_code_pass():
    def slow(query, key, value):
        time.sleep(0.05)
        out, weights = right(query, key, value)
        return [out.transpose(-2, -1).contiguous().transpose(-2, -1), weights]

    assert checks.attention(slow).status == "passed"


def test_stubs_of_classes_are_not_attempted():
    class SingleHeadAttention(nn.Module):
        def __init__(self, d_model, d_k):
            super().__init__()
            raise NotImplementedError()

    class Half(nn.Module):
        def __init__(self, d_model, d_k):
            super().__init__()
            self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_k) for _ in range(3))

        def forward(self, query, key, value):
            raise NotImplementedError()

    for answer in (SingleHeadAttention, Half):
        assert checks.single_head(answer).status == "not attempted"


def test_a_class_without_forward_is_told():
    class NoForward(nn.Module):
        def __init__(self, d_model, d_k):
            super().__init__()
            self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_k) for _ in range(3))

    result = checks.single_head(NoForward)
    assert result.status == "failed" and "forward" in str(result)


def test_other_names_in_a_class_are_judged_by_what_it_computes():
    class Head(nn.Module):
        def __init__(self, d_model, d_k):
            super().__init__()
            self.value_map, self.ask, self.offer = (nn.LazyLinear(d_k) for _ in range(3))

        def forward(self, query, key, value):
            return attention(self.ask(query), self.offer(key), self.value_map(value))

    assert checks.single_head(Head).status == "passed"


@pytest.mark.parametrize("not_a_class", [nn.Linear(2, 2), lambda: 1, int, None])
def test_an_object_where_a_class_is_asked(not_a_class):
    assert checks.single_head(not_a_class).misconception == "not_a_class"


@pytest.mark.parametrize("name, value", [("MHA_CHECKS", "strict"), ("NBGRADER_EXECUTION", "autograde")])
def test_strict_raises_a_short_message(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert is_strict()
    assert checks.attention(right).status == "passed"
    for answer, words in ((unfilled, "attention: not attempted yet"), (wrong_axis, "att_softmax_over_queries")):
        with pytest.raises(checks.CheckFailed, match=words) as caught:
            checks.attention(answer)
        assert caught.value._render_traceback_() == [f"CheckFailed: {caught.value}"]


def test_not_strict_by_default():
    assert "MHA_CHECKS" not in os.environ and not is_strict()
