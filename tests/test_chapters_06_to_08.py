"""The numbers that chapters 6, 7 and 8 show. The spellings themselves stand in test_spellings.py."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mha_lib import MultiHeadAttention, attention, cost, split_heads
from mha_lib.experiments import lookups


def test_the_gradient_of_the_key_bias_is_rounding_alone():
    torch.manual_seed(0)
    layer = MultiHeadAttention(512, 8)
    x = torch.randn(2, 10, 512, generator=torch.Generator().manual_seed(1))
    layer(x, x, x).pow(2).sum().backward()
    key, query, value = (getattr(layer, f"w_{r}").bias.grad.abs().max() for r in "kqv")
    assert value > query > 1e4 * key


@pytest.mark.parametrize("seed", range(3))
def test_what_each_bias_adds_to_the_scores(seed):
    q, k, b = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(seed))
    by_keys = q @ (k + b[:1]).T - q @ k.T
    by_queries = (q + b[:1]) @ k.T - q @ k.T
    assert by_keys.std(dim=1).max() < 1e-5 < by_keys.std(dim=0).min()
    assert by_queries.std(dim=0).max() < 1e-5 < by_queries.std(dim=1).min()


def turned(x):
    half = x.size(-1) // 2
    angle = torch.arange(x.size(-2)).unsqueeze(-1) * 100.0 ** (-torch.arange(half) / half)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


@pytest.mark.parametrize("seed", range(3))
def test_a_key_bias_works_once_keys_are_turned(seed):
    q, k, b = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(seed))
    gaps = [
        (attention(f(q), f(k + b[:1]), q)[0] - attention(f(q), f(k), q)[0]).abs().max() for f in (lambda x: x, turned)
    ]
    assert gaps[0] < 1e-5 and gaps[1] > 0.05


@pytest.mark.parametrize("seed", range(3))
def test_a_value_bias_folds_into_the_output_bias_where_rows_sum_to_1(seed):
    torch.manual_seed(seed)
    layer, x = MultiHeadAttention(24, 4), torch.randn(2, 5, 24)
    blocked = torch.ones(5, 5, dtype=torch.bool).tril(-1)  # the first row sees nothing
    with torch.no_grad():
        nn.init.normal_(layer.w_v.bias)
        before, before_blocked = layer(x, x, x), layer(x, x, x, blocked)
        layer.w_o.bias.add_(layer.w_o.weight @ layer.w_v.bias)
        layer.w_v.bias.zero_()
        after, after_blocked = layer(x, x, x), layer(x, x, x, blocked)
    assert (after - before).abs().max() < 1e-5
    moved = (after_blocked - before_blocked).abs().amax(dim=(0, 2))
    assert moved[0] > 0.05 and moved[1:].max() < 1e-5


@pytest.mark.parametrize("sizes", [(2, 32, 64, 4), (1, 100, 24, 3), (3, 7, 12, 12)])
def test_multiplications_are_those_that_torch_counts(sizes):
    batch, length, d_model, num_heads = sizes
    layer, x = MultiHeadAttention(d_model, num_heads), torch.randn(batch, length, d_model)
    with FlopCounterMode(display=False) as counter:
        layer(x, x, x)
    assert counter.get_total_flops() == 2 * sum(cost.multiplications(batch, length, d_model).values())


def test_tables_catch_up_at_twice_the_width():
    at = cost.multiplications(1, 1024, 512)
    assert at["tables"] == at["projections"]


def test_growth_with_each_doubling_from_there():
    totals = [sum(cost.multiplications(1, T, 512).values()) for T in (1024, 2048, 4096, 8192, 16_384)]
    assert [round(b / a, 1) for a, b in zip(totals, totals[1:])] == [3.0, 3.3, 3.6, 3.8]


@pytest.mark.parametrize("seed", range(3))
def test_the_scores_of_a_head_have_rank_d_k_at_most(seed):
    x = torch.randn(1, 32, 64, generator=torch.Generator().manual_seed(seed))
    for num_heads in (1, 4, 16, 64):
        torch.manual_seed(seed)
        layer = MultiHeadAttention(64, num_heads)
        q, k = (split_heads(linear(x), num_heads).detach() for linear in (layer.w_q, layer.w_k))
        ranks = torch.linalg.matrix_rank((q @ k.transpose(-2, -1))[0], rtol=1e-4)
        assert (ranks == min(32, 64 // num_heads)).all()


@pytest.mark.parametrize(
    "dropout, training, ours_holds, theirs_holds",
    [(0.0, True, False, False), (0.0, False, False, True), (0.1, True, True, True), (0.1, False, False, True)],
)
def test_who_holds_a_table_without_weights_on_a_cpu(dropout, training, ours_holds, theirs_holds):
    x = torch.randn(1, 2048, 128)
    ours = MultiHeadAttention(128, 8, dropout=dropout)
    theirs = nn.MultiheadAttention(128, 8, dropout=dropout, batch_first=True)
    for layer, holds in ((ours, ours_holds), (theirs, theirs_holds)):
        layer.train(training)
        with torch.set_grad_enabled(training):
            peak = cost.peak_mib(lambda: layer(x, x, x, need_weights=False))
        assert (peak > cost.table_bytes(1, 8, 2048) / 2**20) == holds, (type(layer), peak)


def test_peak_memory_by_hand_and_fused():
    peaks = {}
    for length in (512, 1024):
        q = torch.randn(1, 8, length, 64)
        peaks["hand", length] = cost.peak_mib(lambda: attention(q, q, q)[0])
        peaks["fused", length] = cost.peak_mib(lambda: F.scaled_dot_product_attention(q, q, q))
    table = cost.table_bytes(1, 8, 1024) / 2**20
    assert table == 32
    assert 2 * table <= peaks["hand", 1024] <= 3 * table
    assert peaks["hand", 1024] > 3.5 * peaks["hand", 512]
    assert peaks["fused", 1024] < table / 4


def test_memory_without_weights_grows_in_proportion_with_masks_too():
    layer = MultiHeadAttention(64, 8)
    peaks = []
    for length in (1024, 2048):
        x = torch.randn(1, length, 64)
        mask = torch.ones(1, 1, length, dtype=torch.bool)
        with torch.no_grad():
            peaks.append(cost.peak_mib(lambda: layer(x, x, x, mask, need_weights=False)))
    assert peaks[1] < 2.5 * peaks[0]


SEEDS = range(5, 10)


@pytest.fixture(scope="module")
def trained():
    return {
        heads: [lookups.train(32, heads, seed=s, steps=600, rate=1e-2, stop_at=0.001)[0] for s in SEEDS]
        for heads in (1, 2, 4)
    }


def test_one_head_answers_one_question_and_the_other_above_chance(trained):
    for model in trained[1]:
        better, other = sorted(lookups.accuracy(model), reverse=True)
        assert better > 0.85 and 2 / 16 < other < 0.35


@pytest.mark.parametrize("heads, at_least", [(2, 3), (4, 4)])
def test_more_heads_answer_both(trained, heads, at_least):
    assert sum(min(lookups.accuracy(model)) > 0.99 for model in trained[heads]) >= at_least


def test_one_head_has_both_tokens_on_top_and_names_the_same_for_both(trained):
    tokens = lookups.draw(512, torch.Generator().manual_seed(3))
    for model in trained[1]:
        assert min(lookups.both_on_top(model)) > 0.99
        with torch.no_grad():
            first = model(tokens).argmax(-1)
        assert (first[..., 0] == first[..., 1]).float().mean() > 0.8


def test_one_head_gives_its_two_places_different_weights(trained):
    for model in trained[1]:
        smaller, larger = sorted(lookups.looks(model)[0].tolist())
        assert smaller > 0.25 and larger - smaller > 0.02


def test_behind_one_frozen_head_an_mlp_reads_both_and_a_linear_map_one(trained):
    for seed, model in enumerate(trained[1][:3]):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        torch.manual_seed(seed)
        linear, mlp = nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
        better, other = sorted(lookups.read_again(model, linear, seed=seed), reverse=True)
        assert better > 0.85 and other < 0.35
        assert min(lookups.read_again(model, mlp, seed=seed)) > 0.85
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_width_does_not_replace_a_second_head():
    options = {"steps": 600, "rate": 1e-2, "stop_at": 0.001}
    wide = [lookups.train(64, 1, seed=s, **options)[0] for s in range(3, 6)]
    narrow = [lookups.train(16, 2, seed=s, **options)[0] for s in range(3, 6)]
    assert all(min(lookups.accuracy(model)) < 0.35 for model in wide)
    assert sum(min(lookups.accuracy(model)) > 0.99 for model in narrow) >= 2


def test_each_head_looks_at_one_place_and_carries_one_question(trained):
    for model in (m for m in trained[2] if min(lookups.accuracy(m)) > 0.99):
        looks, d_k = lookups.looks(model), model.attention.d_k
        assert sorted(looks.argmax(1).tolist()) == [0, 1] and (looks.amax(1) > 0.95).all()
        for head in range(2):
            with torch.no_grad():
                kept = model.attention.w_o.weight.clone()
                model.attention.w_o.weight[:, head * d_k : (head + 1) * d_k] = 0
                lost = lookups.accuracy(model)
                model.attention.w_o.weight.copy_(kept)
            question = int(looks[head].argmax())
            assert lost[question] < 0.3 and lost[1 - question] > 0.9


def test_an_untrained_model_guesses_at_chance():
    for seed in range(5):
        torch.manual_seed(seed)
        model = lookups.Lookups(32, 2)
        tokens = lookups.draw(256, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            loss = F.cross_entropy(model(tokens).flatten(0, 2), lookups.targets(tokens).flatten())
        assert abs(float(loss) - 2.773) < 0.2
        assert all(abs(share - 1 / 16) < 0.03 for share in lookups.accuracy(model))


def test_all_head_counts_have_the_same_parameters():
    assert len({sum(p.numel() for p in lookups.Lookups(32, h).parameters()) for h in (1, 2, 4)}) == 1
