"""What chapter 13 says of two layers, over five seeds."""

import pytest
import torch

from mha_lib.experiments import induction

SEEDS = range(5)


@pytest.fixture(scope="module")
def two_layers():
    return [induction.train(2, seed=seed, steps=200, stop_at=0.02) for seed in SEEDS]


def test_two_layers_learn_it_in_fewer_than_200_steps(two_layers):
    for model, losses in two_layers:
        assert len(losses) < 200 and induction.accuracy(model) >= 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_one_layer_does_not_in_a_thousand(seed):
    model, losses = induction.train(1, seed=seed, steps=1000)
    assert len(losses) == 1000 and 1 / 16 < induction.accuracy(model) <= 0.75


def test_the_first_layer_looks_one_back_and_the_second_at_what_followed(two_layers):
    tokens, periods = induction.draw(256, torch.Generator().manual_seed(9))
    for model, _ in two_layers:
        with torch.no_grad():
            model(tokens)
        first, second = (layer.attn for layer in model.layers)
        assert induction.previous_token_score(first).max() > 0.35 > 0.2 > induction.previous_token_score(second).max()
        assert induction.induction_score(second, periods).max() > 0.4 > 0.2 > induction.induction_score(first, periods).max()


def test_without_the_first_layer_the_second_finds_nothing(two_layers):
    tokens, periods = induction.draw(256, torch.Generator().manual_seed(9))
    for model, _ in two_layers:
        kept = model.layers[0].w_o.weight.clone()
        with torch.no_grad():
            model.layers[0].w_o.weight.zero_()
            accuracy = induction.accuracy(model)
            model(tokens)
            model.layers[0].w_o.weight.copy_(kept)
        assert accuracy < 0.5 and induction.induction_score(model.layers[1].attn, periods).max() < 0.25


def test_a_text_repeats_different_tokens():
    tokens, periods = induction.draw(64, torch.Generator().manual_seed(2))
    for text, period in zip(tokens.tolist(), periods.tolist()):
        assert len(set(text[:period])) == period
        assert all(a == b for a, b in zip(text, text[period:]))
    assert periods.min() >= 5 and periods.max() <= 12
