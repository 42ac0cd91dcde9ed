"""The exercises in which the answer is an input that shows a planted bug."""

import pytest
import torch

from mha_lib import causal_mask, checks
from mha_lib.checks.hunt import BugHunt


def random(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def three(queries, keys, width):
    return random(1, queries, width), random(1, keys, width, seed=1), random(1, keys, width, seed=2)


OPEN = torch.ones(1, 3, 3, dtype=torch.bool)
EMPTY = causal_mask(3) & torch.tensor([False, True, True])

LUCKY = [
    ("bug_scaling", lambda: three(3, 4, 4), "hidden_by_equal_sizes"),
    ("bug_scaling", lambda: three(3, 1, 4), "hidden_by_one_key"),
    ("bug_scaling", lambda: (torch.zeros(1, 3, 4), *three(3, 7, 4)[1:]), "hidden_by_equal_scores"),
    ("bug_scaling", lambda: (*three(3, 7, 4)[:2], torch.ones(1, 7, 4)), "hidden_by_equal_values"),
    ("bug_scaling", lambda: [x * 1000 for x in three(3, 7, 4)[:2]] + [random(1, 7, 4)], "hidden_by_saturation"),
    ("bug_masking", lambda: (*three(3, 3, 4), OPEN), "hidden_by_open_mask"),
    ("bug_masking", lambda: (*three(3, 3, 4), causal_mask(3)), "hidden_by_high_scores"),
    ("bug_masking", lambda: (*three(3, 3, 4)[:2], torch.ones(1, 3, 4), causal_mask(3)), "hidden_by_high_scores"),
    ("bug_splitting", lambda: (random(1, 3, 4), 1), "hidden_by_one_head"),
    ("bug_splitting", lambda: (random(1, 1, 4), 2), "hidden_by_one_token"),
    ("bug_splitting", lambda: (torch.ones(1, 3, 4), 2), "hidden_by_equal_numbers"),
    ("bug_layer", lambda: (random(1, 3, 4),) * 3, "hidden_by_self_attention"),
    ("bug_layer", lambda: (random(1, 3, 4), *[random(1, 3, 4, seed=1)] * 2), "hidden_by_self_attention"),
    ("bug_dropout", lambda: (random(1, 5, 4), 0.0, False), "hidden_by_no_dropout"),
    ("bug_dropout", lambda: (random(1, 5, 4), 0.5, True), "hidden_by_training"),
    ("bug_dropout", lambda: (random(1, 5, 4), 0.5, 0), "not_a_flag"),
    ("bug_dropout", lambda: (random(1, 5, 4), "0.5", False), "not_a_rate"),
    ("bug_dropout", lambda: (random(1, 5, 4), 1.5, False), "not_a_rate"),
    ("bug_dropout", lambda: (random(1, 5, 3), 0.5, False), "input_does_not_fit"),
    ("bug_averaging", lambda: (random(1, 1, 5, 4), random(1, 1, 5, 4, seed=1)), "hidden_by_one_head"),
    ("bug_averaging", lambda: (random(1, 2, 5, 4), random(1, 2, 1, 4, seed=1)), "hidden_by_one_key"),
    ("bug_averaging", lambda: (random(1, 1, 5, 4).repeat(1, 3, 1, 1), random(1, 1, 5, 4, seed=1).repeat(1, 3, 1, 1)), "hidden_by_equal_heads"),
    ("bug_averaging", lambda: (torch.zeros(1, 2, 5, 4), random(1, 2, 5, 4, seed=1)), "hidden_by_equal_weights"),
    ("bug_averaging", lambda: (random(5, 4), random(5, 4, seed=1)), "input_does_not_fit"),
    ("bug_positions", lambda: [random(2, 1, 6, seed=s) for s in range(3)], "hidden_by_one_token"),
    ("bug_positions", lambda: (*three(4, 4, 6)[:2], torch.zeros(1, 4, 6)), "hidden_by_zeros"),
    ("bug_positions", lambda: (*three(4, 4, 6)[:2], torch.nn.functional.pad(random(1, 1, 6), (0, 0, 0, 3))), "hidden_by_the_first_place"),
    ("bug_positions", lambda: three(3, 4, 6), "input_does_not_fit"),
    ("bug_positions", lambda: three(4, 4, 5), "input_does_not_fit"),
    ("bug_decoding", lambda: three(1, 5, 4), "hidden_by_one_query"),
    ("bug_decoding", lambda: three(4, 4, 6), "hidden_by_an_empty_cache"),
    ("bug_decoding", lambda: (*three(2, 5, 4)[:2], torch.ones(1, 5, 3)), "hidden_by_equal_values"),
    ("bug_decoding", lambda: three(5, 3, 4), "shows_more_queries"),
    ("bug_grouped", lambda: (random(1, 4, 3, 5), *[random(1, 1, 3, 5, seed=s) for s in (1, 2)]), "hidden_by_one_key_head"),
    ("bug_grouped", lambda: [random(1, 4, 3, 5, seed=s) for s in range(3)], "hidden_by_as_many_heads"),
    ("bug_grouped", lambda: (random(1, 4, 3, 5), *[random(1, 3, 3, 5, seed=s) for s in (1, 2)]), "shows_uneven_heads"),
    ("bug_blockwise", lambda: three(3, 4, 5), "hidden_by_one_block"),
    ("bug_blockwise", lambda: (torch.ones(1, 2, 4), torch.linspace(3, -3, 9).reshape(1, 9, 1).expand(1, 9, 4), random(1, 9, 4)), "hidden_by_early_maximum"),
    ("bug_block", lambda: (torch.nn.functional.layer_norm(random(2, 3, 8), (8,)),), "hidden_by_normed_tokens"),
    ("bug_block", lambda: (random(2, 3, 6),), "shows_another_width"),
    ("bug_scaling", lambda: None, "not_an_input"),
    ("bug_scaling", lambda: three(3, 7, 4)[:2], "not_an_input"),
    ("bug_scaling", lambda: (1, 2, 3), "not_a_tensor"),
    ("bug_scaling", lambda: (random(1, 3, 5), *three(3, 7, 4)[1:]), "input_does_not_fit"),
    ("bug_layer", lambda: (random(1, 3, 5),) * 3, "input_does_not_fit"),
    ("bug_splitting", lambda: (random(1, 3, 4), 3), "input_does_not_fit"),
    ("bug_scaling", lambda: 1 / 0, "division_by_zero"),
    ("bug_masking", lambda: (*three(3, 3, 4), None), "not_a_tensor"),
    ("bug_masking", lambda: (*three(3, 3, 4), causal_mask(3).long()), "mask_not_bool"),
    ("bug_masking", lambda: (*three(3, 3, 4), EMPTY), "shows_an_empty_row"),
    ("bug_splitting", lambda: (random(1, 4, 3).transpose(1, 2), 2), "raises_instead"),
    ("bug_splitting", lambda: (random(2, 5, 12), 2.0), "not_a_count"),
    ("bug_scaling", lambda: [x / 0 for x in three(3, 7, 4)], "not_finite_floats"),
]

SHOWING = [
    ("bug_scaling", lambda: three(3, 7, 4)),
    ("bug_scaling", lambda: [x[0] for x in three(2, 9, 3)]),
    ("bug_masking", lambda: (random(1, 3, 4) - 6, random(1, 3, 4) + 6, random(1, 3, 4), causal_mask(3))),
    ("bug_splitting", lambda: (random(2, 5, 12), 4)),
    ("bug_layer", lambda: three(2, 5, 4)),
    ("bug_dropout", lambda: (random(1, 5, 4), 0.5, False)),
    ("bug_dropout", lambda: (torch.zeros(2, 3, 4), 0.1, False)),
    ("bug_averaging", lambda: (random(1, 2, 5, 4), random(1, 2, 5, 4, seed=1))),
    ("bug_averaging", lambda: (random(2, 3, 4, 6), random(2, 3, 7, 6, seed=1))),
    ("bug_positions", lambda: three(4, 4, 6)),
    ("bug_positions", lambda: [random(2, 3, 5, 2, seed=s) for s in range(3)]),
    ("bug_decoding", lambda: three(2, 5, 4)),
    ("bug_block", lambda: (random(1, 4, 8, scale=5.0),)),
    ("bug_blockwise", lambda: three(3, 9, 5)),
    ("bug_grouped", lambda: (random(2, 6, 3, 5), *[random(2, 2, 3, 5, seed=s) for s in (1, 2)])),
    ("bug_decoding", lambda: [x[0] for x in three(3, 4, 6)]),
]


@pytest.mark.parametrize("check, answer, id", LUCKY)
def test_an_input_that_hides_the_bug_is_told_why(check, answer, id):
    result = getattr(checks, check).judge(answer)
    assert (result.status, result.misconception) == ("failed", id), str(result)


@pytest.mark.parametrize("check, answer", SHOWING)
def test_an_input_that_shows_the_bug_passes(check, answer):
    result = getattr(checks, check).judge(answer)
    assert result.status == "passed", str(result)


@pytest.mark.parametrize("check", [e.name for chapter in checks.CHAPTERS.values() for e in chapter if isinstance(e, BugHunt)])
def test_an_unfilled_hunt_is_not_attempted(check):
    def find_input():
        raise NotImplementedError()

    assert getattr(checks, check).judge(find_input).status == "not attempted"
