"""The numbers that chapter 9 shows. Positions themselves are tested in test_positions.py."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from mha_lib import MultiHeadAttention, attention, causal_mask, split_heads
from mha_lib.experiments import recall
from mha_lib.positions import rotate, sinusoidal

PLACES = torch.arange(48)


def unevenness(scores):
    size = scores.size(-1)
    return max((d.max() - d.min()).item() for d in (scores.diagonal(o) for o in range(1 - size, size)))


def pair(width=64):
    return (v.expand(48, width) for v in torch.randn(2, 1, width, generator=torch.Generator().manual_seed(3)))


def neighbours(x, positions):
    angle = positions.unsqueeze(-1) * 10_000.0 ** (-torch.arange(0, x.size(-1), 2) / x.size(-1))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def test_the_last_token_sees_a_bag_of_words_even_under_a_causal_mask():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(16, 2), torch.randn(1, 6, 16)
    shuffled = x[:, [2, 0, 1, 4, 3, 5]]
    before, after = (layer(y, y, y, causal_mask(6)) for y in (x, shuffled))
    assert torch.allclose(before[:, -1], after[:, -1], atol=1e-6)
    assert not torch.allclose(before[:, 1], after[:, 1], atol=1e-3)
    rows = nn.Embedding(6, 16).weight.detach()
    before, after = (layer(y, y, y, causal_mask(6)) for y in (x + rows, shuffled + rows))
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-3)


def test_rows_of_the_sinusoidal_table_know_the_distance_until_weights_come_between():
    waves = sinusoidal(48, 16)
    assert unevenness(waves @ waves.T) < 1e-4
    assert torch.allclose(waves.norm(dim=1), torch.tensor(8**0.5))
    torch.manual_seed(0)
    layer, token = MultiHeadAttention(16, 2), torch.randn(1, 16)
    scores = (layer.w_q(token + waves) @ layer.w_k(token + waves).T).detach()
    assert unevenness(scores) > scores.std()


def test_the_table_drowns_a_word_of_norm_1():
    one, other = torch.randn(2, 512, generator=torch.Generator().manual_seed(0)) / 512**0.5
    here, there = sinusoidal(100, 512)[[3, 90]]
    like = {
        factor: (
            cosine_similarity(factor * one + here, factor * one + there, dim=0).item(),
            cosine_similarity(factor * one + here, factor * other + here, dim=0).item(),
        )
        for factor in (1, 512**0.5)
    }
    assert like[1][0] < 0.5 < 0.99 < like[1][1]
    assert like[512**0.5][0] > 0.8 and like[512**0.5][1] < 0.35


def test_turned_scores_depend_on_the_distance_alone_in_both_layouts_and_not_in_a_mixture():
    q, k = pair()
    halves = rotate(q, PLACES) @ rotate(k, PLACES).T
    assert unevenness(halves) < 1e-4
    assert unevenness(neighbours(q, PLACES) @ neighbours(k, PLACES).T) < 1e-4
    mixed = rotate(q, PLACES) @ neighbours(k, PLACES).T
    assert unevenness(mixed) > 1 and 5 < (mixed - halves).abs().max() < 20


def test_norms_are_kept_and_a_shift_of_1000_changes_next_to_nothing():
    q, k = pair()
    near = rotate(q, PLACES) @ rotate(k, PLACES).T
    far = rotate(q, PLACES + 1000) @ rotate(k, PLACES + 1000).T
    assert (near - far).abs().max() < 1e-3
    assert torch.allclose(rotate(q, PLACES).norm(dim=1), q.norm(dim=1), atol=1e-4)


def test_equal_vectors_agree_most_at_distance_0():
    for seed in range(5):
        q = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed)).expand(48, 64)
        scores = rotate(q, PLACES)[20] @ rotate(q, PLACES).T
        assert scores.argmax() == 20


def test_turned_values_carry_the_absolute_place():
    q, k, v = torch.randn(3, 1, 2, 10, 16, generator=torch.Generator().manual_seed(4))

    def outputs(start, turn_values):
        at = torch.arange(start, start + 10)
        return attention(rotate(q, at), rotate(k, at), rotate(v, at) if turn_values else v)[0]

    assert torch.allclose(outputs(0, False), outputs(7, False), atol=1e-4)
    assert not torch.allclose(outputs(0, True), outputs(7, True), atol=1e-1)


def test_heads_turned_before_the_split_have_no_constant_diagonals():
    q, k = torch.randn(2, 1, 1, 64, generator=torch.Generator().manual_seed(5)).expand(2, 1, 48, 64)
    after = rotate(split_heads(q, 4), PLACES) @ rotate(split_heads(k, 4), PLACES).transpose(-2, -1)
    before = split_heads(rotate(q, PLACES), 4) @ split_heads(rotate(k, PLACES), 4).transpose(-2, -1)
    assert all(unevenness(head) < 1e-4 for head in after[0])
    assert all(unevenness(head) > 1e-1 for head in before[0])


def test_a_permutation_of_rows_in_every_head_moves_weights_to_the_other_layout():
    order = torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])
    text = torch.randn(1, 48, 64, generator=torch.Generator().manual_seed(6))
    weights = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(7)) / 8

    def scores(weights, turn):
        q, k = (turn(split_heads(text @ w.T, 4), PLACES) for w in weights)
        return q @ k.transpose(-2, -1)

    moved = [w.unflatten(0, (4, 16))[:, order].flatten(0, 1) for w in weights]
    wanted = scores(weights, neighbours)
    assert torch.allclose(scores(moved, rotate), wanted, atol=1e-3)
    assert not torch.allclose(scores(weights, rotate), wanted, atol=1)


@pytest.fixture(scope="module")
def models():
    """Three models of each kind, from seeds that the notebook does not use."""
    return {kind: [recall.train(kind, seed=s)[0] for s in (5, 6, 7)] for kind in recall.KINDS}


@pytest.fixture(scope="module")
def shares(models):
    """For each kind the shares at 12, 24 and 48 tokens."""
    return {k: [[recall.accuracy(m, n) for n in (12, 24, 48)] for m in runs] for k, runs in models.items()}


@pytest.mark.parametrize(
    "kind, intervals",
    [
        ("learned", ((0.99, 1.0), (0.46, 0.52), (0.24, 0.29))),
        ("sinusoidal", ((0.95, 1.0), (0.5, 0.75), (0.3, 0.5))),
        ("rotary", ((0.99, 1.0), (0.75, 1.0), (0.5, 1.0))),
        ("none", ((0.25, 0.35), (0.2, 0.3), (0.15, 0.25))),
    ],
)
def test_positions_at_longer_texts(shares, kind, intervals):
    for run in shares[kind]:
        assert all(low <= share <= high for share, (low, high) in zip(run, intervals)), run


def test_a_learned_table_is_right_inside_and_guesses_behind(shares):
    for run in shares["learned"]:
        for length, share in zip((24, 48), run[1:]):
            asked = length - 2
            assert abs(share - (10 + (asked - 10) / 16) / asked) < 0.01


def test_the_base_of_the_rotary_angles_helps_and_is_not_all(shares):
    slow = [recall.accuracy(recall.train("rotary", seed=s, base=10_000.0)[0], 48) for s in (5, 6, 7)]
    means = {kind: sum(run[2] for run in shares[kind]) / 3 for kind in ("sinusoidal", "rotary")}
    assert min(slow) > 0.35 and means["sinusoidal"] < sum(slow) / 3 < means["rotary"]


def test_through_a_window_as_long_as_the_training_nothing_is_lost(models):
    assert all(recall.accuracy(model, 48, window=12) > 0.99 for model in models["rotary"])


def test_in_longer_texts_the_places_wanted_get_less_weight(models):
    model = models["rotary"][0]
    found = []
    for length in (12, 24, 48):
        with torch.no_grad():
            model(recall.draw(256, length, torch.Generator().manual_seed(1)))
        weights = model.attention.attn[:, :, -1].mean(0)
        found.append(sum(weights[:, -1 - back].max().item() for back in (1, 2)) / 2)
    assert found[0] > 0.6 > found[2] and found[0] > found[1] > found[2]


def test_targets_are_the_tokens_one_and_two_back():
    tokens = torch.arange(6).unsqueeze(0)
    assert recall.targets(tokens).tolist() == [[[1, 0], [2, 1], [3, 2], [4, 3]]]


def test_an_unknown_kind_of_positions_is_refused():
    with pytest.raises(ValueError, match="learned, sinusoidal, rotary, none; got 'alibi'"):
        recall.Recall("alibi")
