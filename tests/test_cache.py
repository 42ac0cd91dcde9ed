"""cache.py: what is kept, what is written, and what is refused."""

import pytest
import torch

from mha_lib import KeyValueCache
from tests.conftest import seeded_randn

B, H, D_K, D_V = 2, 3, 4, 6


def tokens(count, seed=0, dtype=torch.float32):
    return seeded_randn(B, H, count, D_K, seed=seed, dtype=dtype), seeded_randn(B, H, count, D_V, seed=seed + 100, dtype=dtype)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_it_returns_all_that_was_appended(mode):
    cache, given = KeyValueCache(), [tokens(n, seed=n) for n in (5, 1, 3, 1, 40)]
    with mode():
        for i, (key, value) in enumerate(given):
            keys, values = cache.append(key, value)
            assert torch.equal(keys, torch.cat([k for k, _ in given[: i + 1]], 2))
            assert torch.equal(values, torch.cat([v for _, v in given[: i + 1]], 2))
            assert len(cache) == keys.size(2)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_the_room_doubles_and_nothing_moves_in_between(mode):
    cache, places, copied = KeyValueCache(), [], 0
    with mode():
        for i in range(1000):
            keys, _ = cache.append(*tokens(1, seed=i))
            if keys.data_ptr() not in places[-1:]:
                places.append(keys.data_ptr())
                copied += i
    assert len(places) == 11 and copied < 2 * 1000
    assert cache.room == 1024


def test_bytes_are_those_of_the_tokens_kept():
    cache = KeyValueCache()
    assert cache.bytes == len(cache) == cache.room == 0
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8)):
        cache.reset()
        for n in (5, 1, 1):
            cache.append(*tokens(n, dtype=dtype))
        assert cache.bytes == B * H * 7 * (D_K + D_V) * size
        assert cache.room >= 7


def test_what_was_handed_out_does_not_change():
    cache = KeyValueCache()
    handed = [cache.append(*tokens(n, seed=n)) for n in (4, 1, 2, 1)]
    before = [(k.clone(), v.clone()) for k, v in handed]
    cache.append(*tokens(9, seed=9))
    cache.reset()
    cache.append(*tokens(9, seed=10))
    for (k, v), (k0, v0) in zip(handed, before):
        assert torch.equal(k, k0) and torch.equal(v, v0)


def test_it_keeps_copies():
    cache, (key, value) = KeyValueCache(), tokens(2)
    keys, values = cache.append(key, value)
    want = key.clone(), value.clone()
    key.zero_(), value.zero_()
    assert torch.equal(keys, want[0]) and torch.equal(values, want[1])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_gradients_reach_every_token():
    given = [tuple(x.requires_grad_() for x in tokens(n, seed=n, dtype=torch.float64)) for n in (3, 1, 1, 2)]
    with torch.autograd.detect_anomaly():
        cache, total = KeyValueCache(), 0.0
        for key, value in given:
            keys, values = cache.append(key, value)
            total = total + (keys**2).sum() + (values**3).sum()
        total.backward()
    for i, (key, value) in enumerate(given):
        times = len(given) - i  # an early token is read at every later step
        assert torch.allclose(key.grad, 2 * times * key.detach()) and torch.allclose(value.grad, 3 * times * value.detach() ** 2)


def test_a_step_without_gradients_does_not_disturb_an_earlier_one_with_them():
    """Queries may learn while keys do not: then the fused kernel keeps the cached keys for its backward pass."""
    cache, (key, value) = KeyValueCache(), tokens(3)
    query = seeded_randn(B, H, 1, D_K, seed=5).requires_grad_()
    with torch.no_grad():
        cache.append(*tokens(4, seed=1))
    keys, values = cache.append(key, value)
    output = torch.nn.functional.scaled_dot_product_attention(query, keys, values[..., :D_K])
    cache.append(*tokens(1, seed=2))
    with torch.no_grad():
        cache.append(*tokens(1, seed=3))
    output.sum().backward()
    assert query.grad.isfinite().all()


def test_modes_may_follow_each_other():
    cache, given = KeyValueCache(), [tokens(n, seed=n) for n in (3, 1, 2, 1, 1, 1)]
    for (key, value), mode in zip(given, (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode, torch.enable_grad, torch.no_grad)):
        with mode():
            keys, _ = cache.append(key.clone().requires_grad_(torch.is_grad_enabled()), value.clone())
    assert torch.equal(keys, torch.cat([k for k, _ in given], 2))


KEY, VALUE = tokens(2)


@pytest.mark.parametrize(
    "key, value, words",
    [
        (KEY[:1], VALUE[:1], ["(1, 3, 2, 4)", "(2, 3, 5, 4)", "batch"]),
        (KEY[:, :1], VALUE[:, :1], ["(2, 1, 2, 4)", "(2, 3, 5, 4)", "heads"]),
        (KEY[..., :3], VALUE, ["(2, 3, 2, 3)", "(2, 3, 5, 4)", "features"]),
        (KEY, VALUE[..., :3], ["the value (2, 3, 2, 3)", "(2, 3, 5, 6)", "features"]),
        (KEY.double(), VALUE.double(), ["float64", "float32"]),
        (KEY.to("meta"), VALUE.to("meta"), ["meta", "cpu"]),
        (KEY, VALUE.double(), ["float64", "float32"]),
        (KEY, VALUE[:, :, :1], ["(2, 3, 2, 4)", "(2, 3, 1, 6)"]),
        (KEY[0], VALUE[0], ["(B, h, T, d_k)", "(3, 2, 4)"]),
        (KEY[:, :, :0], VALUE[:, :, :0], ["no token", "(2, 3, 0, 4)"]),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_lost(key, value, words):
    cache = KeyValueCache()
    kept = cache.append(*tokens(5, seed=7))
    with pytest.raises(ValueError) as caught:
        cache.append(key, value)
    for word in words:
        assert word in str(caught.value)
    assert len(cache) == 5
    keys, values = cache.append(KEY, VALUE)
    assert torch.equal(keys, torch.cat((kept[0], KEY), 2)) and torch.equal(values, torch.cat((kept[1], VALUE), 2))


def test_after_reset_another_text_fits():
    cache = KeyValueCache()
    cache.append(*tokens(5))
    cache.reset()
    assert len(cache) == cache.bytes == cache.room == 0
    keys, _ = cache.append(KEY[:1].double(), VALUE[:1].double())
    assert keys.shape == (1, H, 2, D_K) and keys.dtype == torch.float64
