"""attention: the numbers, the gradients, the rows without any key, and what bad input is told."""

import math

import pytest
import torch
import torch.nn.functional as F

from mha_lib import attention, causal_mask

DTYPES = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(dtype=torch.float32):
    return random(2, 3, 4, 8, seed=1, dtype=dtype), random(2, 3, 5, 8, seed=2, dtype=dtype), random(2, 3, 5, 6, seed=3, dtype=dtype)


def relative(got, want):
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
def test_equals_sdpa(dtype, masked):
    query, key, value = inputs(dtype)
    mask = torch.ones(4, 5, dtype=torch.bool).tril() if masked else None
    output, weights = attention(query, key, value, mask)
    assert output.dtype == weights.dtype == dtype
    assert relative(output, F.scaled_dot_product_attention(query, key, value, attn_mask=mask)) <= DTYPES[dtype]
    assert torch.allclose(weights.sum(-1).double(), torch.ones(2, 3, 4).double(), atol=10 * DTYPES[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_equal_sdpa(dtype):
    mask = torch.ones(4, 5, dtype=torch.bool).tril()
    ours, theirs = ([x.requires_grad_() for x in inputs(dtype)] for _ in range(2))
    steps = random(2, 3, 4, 6, seed=4, dtype=dtype)
    (attention(*ours, mask)[0] * steps).sum().backward()
    (F.scaled_dot_product_attention(*theirs, attn_mask=mask) * steps).sum().backward()
    for a, b in zip(ours, theirs):
        assert relative(a.grad, b.grad) <= (5e-6 if dtype == torch.float32 else 1e-13)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_without_keys_gives_zero_and_no_nan_anywhere(dtype):
    query, key, value = (x.requires_grad_() for x in inputs(dtype))
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[2] = False
    with torch.autograd.detect_anomaly():
        output, weights = attention(query, key, value, mask)
        output.sum().backward()
    assert not output[..., 2, :].any() and not weights[..., 2, :].any()
    for x in (output, weights, query.grad, key.grad, value.grad):
        assert x.isfinite().all()


def test_integers_0_and_1_are_a_mask():
    query, key, value = inputs()
    mask = torch.ones(4, 5, dtype=torch.bool).tril()
    for other in (mask.long(), mask.to(torch.uint8)):
        assert torch.equal(attention(query, key, value, other)[0], attention(query, key, value, mask)[0])


def test_weights_are_those_before_dropout():
    query, key, value = inputs()
    output, weights = attention(query, key, value, dropout=lambda w: w * 0)
    assert not output.any() and torch.allclose(weights, attention(query, key, value)[1])


def test_inputs_are_left_alone():
    given = (*inputs(), torch.ones(4, 5, dtype=torch.bool).tril())
    kept = [x.clone() for x in given]
    attention(*given)
    assert all(torch.equal(a, b) for a, b in zip(given, kept))


def test_large_scores_stay_finite():
    query, key, value = inputs()
    output, _ = attention(query * 1e4, key * 1e4, value)
    assert output.isfinite().all()


def test_no_keys_at_all_give_zero():
    output, weights = attention(random(2, 3, 4), random(2, 0, 4), random(2, 0, 6))
    assert output.shape == (2, 3, 6) and weights.shape == (2, 3, 0) and not output.any()


@pytest.mark.parametrize(
    "shapes, words",
    [
        (((1, 3, 4), (1, 3, 5), (1, 3, 5)), ["axis -1", "4 and 5", "query (1, 3, 4)", "key (1, 3, 5)"]),
        (((1, 3, 4), (1, 5, 4), (1, 6, 4)), ["axis -2", "5 keys and 6 values", "(1, 6, 4)"]),
        (((2, 3, 4), (3, 5, 4), (3, 5, 4)), ["in front", "(2, 3, 4)", "(3, 5, 4)"]),
        (((4,), (3, 4), (3, 4)), ["two axes", "query (4,)"]),
    ],
)
def test_shapes_that_do_not_fit(shapes, words):
    with pytest.raises(ValueError) as caught:
        attention(*(torch.zeros(*shape) for shape in shapes))
    for word in words:
        assert word in str(caught.value)


def test_a_float_mask_is_refused_and_both_meanings_named():
    with pytest.raises(TypeError, match=r"two things.*may attend.*add to the scores"):
        attention(*inputs(), torch.ones(4, 5))


@pytest.mark.parametrize(
    "mask, words",
    [
        (torch.ones(4, 6, dtype=torch.bool), ["(4, 6)", "(2, 3, 4, 5)", "axis -1 is 6", "1 or 5"]),
        (torch.ones(3, 5, dtype=torch.bool), ["axis -2 is 3", "1 or 4"]),
        (torch.ones(1, 1, 1, 4, 5, dtype=torch.bool), ["more axes", "(1, 1, 1, 4, 5)"]),
    ],
)
def test_a_mask_that_does_not_fit(mask, words):
    with pytest.raises(ValueError) as caught:
        attention(*inputs(), mask)
    for word in words:
        assert word in str(caught.value)


def test_devices_and_dtypes_that_differ():
    query, key, value = inputs()
    with pytest.raises(ValueError, match="different devices.*meta.*cpu"):
        attention(query.to("meta"), key, value)
    with pytest.raises(ValueError, match=r"mask lies on meta, the inputs on cpu"):
        attention(query, key, value, torch.ones(4, 5, dtype=torch.bool, device="meta"))
    with pytest.raises(ValueError, match="different dtypes.*float64.*float32"):
        attention(query.double(), key, value)
    with pytest.raises(ValueError, match="must hold floats.*int64"):
        attention(query.long(), key.long(), value.long())


def test_scale_is_the_root_of_the_width():
    query, key, value = inputs()
    scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(8)
    assert torch.allclose(attention(query, key, value)[1], scores.softmax(-1), atol=1e-6)


def test_causal_mask_broadcasts_over_heads():
    x = random(2, 3, 5, 4)
    assert not attention(x, x, x, causal_mask(5))[1].triu(1).any()
