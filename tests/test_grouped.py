"""GroupedQueryAttention beside transformers' LlamaAttention and PyTorch's own kernel, weights copied."""

import copy
import io
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from mha_lib import GroupedQueryAttention, KeyValueCache, MultiHeadAttention, causal_mask, merge_heads, padding_mask, rotate, split_heads, window_mask
from mha_lib.cost import peak_mib
from tests.conftest import relative, seeded_randn

D_MODEL, HEADS, D_K = 48, 8, 6
KV_HEADS = [8, 4, 2, 1]
BASE = 10_000.0
OUTPUT = {torch.float32: 1e-6, torch.float64: 1e-13}
GRADIENT = {torch.float32: 5e-6, torch.float64: 1e-13}
# How a text of 11 tokens reaches the layer, chunk by chunk.
CHUNKS = {"at once": [11], "prefill, then one by one": [5, 1, 1, 1, 1, 1, 1], "one by one": [1] * 11, "in chunks": [4, 3, 1, 3]}


def make(kv_heads, dtype=torch.float32, rotary_base=BASE, bias=False):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GroupedQueryAttention(D_MODEL, HEADS, kv_heads, bias=bias, rotary_base=rotary_base).double().to(dtype)


def written(layer, x, chunks, cache=None, need_weights=False):
    """Give a text to the layer in chunks, with a cache, and return the outputs in one row."""
    cache, outputs = KeyValueCache() if cache is None else cache, []
    for chunk in x.split(chunks, dim=1):
        mask = causal_mask(chunk.size(1), x.device, keys=len(cache) + chunk.size(1))
        outputs.append(layer(chunk, mask, cache=cache, need_weights=need_weights))
    return torch.cat(outputs, 1)


def by_hand(layer, x, mask=None):
    """Compute the layer of a whole text with a loop over the query heads."""
    q, k, v = (split_heads(linear(x), n) for linear, n in ((layer.w_q, HEADS), (layer.w_k, layer.num_kv_heads), (layer.w_v, layer.num_kv_heads)))
    if layer.rotary_base is not None:
        places = torch.arange(x.size(1))
        q, k = rotate(q, places, layer.rotary_base), rotate(k, places, layer.rotary_base)
    heads, weights = [], []
    for i in range(HEADS):
        j = i // (HEADS // layer.num_kv_heads)
        scores = q[:, i] @ k[:, j].mT / D_K**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights.append(scores.softmax(-1))
        heads.append(weights[-1] @ v[:, j])
    return layer.w_o(torch.cat(heads, -1)), torch.stack(weights, 1)


@pytest.fixture(scope="module")
def llama():
    return pytest.importorskip("transformers.models.llama.modeling_llama", reason="transformers, the extra real, is not installed")


def llama_pair(llama, kv_heads, dtype):
    """Return our layer, transformers' with the same weights, and what turns a number of tokens into its cos and sin."""
    parameters = {"rope_type": "default", "rope_theta": BASE}
    kind = "sdpa" if dtype == torch.float64 else "eager"  # its eager softmax is float32 whatever the input is
    config = llama.LlamaConfig(hidden_size=D_MODEL, num_attention_heads=HEADS, num_key_value_heads=kv_heads, rope_parameters=parameters, attn_implementation=kind)
    ours, theirs = make(kv_heads, dtype), llama.LlamaAttention(config, layer_idx=0).to(dtype)
    for mine, name in ((ours.w_q, "q_proj"), (ours.w_k, "k_proj"), (ours.w_v, "v_proj"), (ours.w_o, "o_proj")):
        getattr(theirs, name).load_state_dict(mine.state_dict())

    def angles(start, end):
        places = torch.arange(start, end)[None]
        if dtype == torch.float64:  # its own angles are float32 whatever the input is
            turns = places[..., None] * torch.tensor([BASE ** (-2 * (i % (D_K // 2)) / D_K) for i in range(D_K)], dtype=dtype)
            return turns.cos(), turns.sin()
        return llama.LlamaRotaryEmbedding(config)(torch.empty(0, dtype=dtype), places)

    return ours, theirs, angles


def llama_written(theirs, angles, x, chunks):
    from transformers import DynamicCache

    cache, outputs, start = DynamicCache(), [], 0
    for chunk in x.split(chunks, dim=1):
        end = start + chunk.size(1)
        blocked = ~causal_mask(chunk.size(1), keys=end)[None]
        mask = torch.zeros(blocked.shape, dtype=x.dtype).masked_fill(blocked, torch.finfo(x.dtype).min)
        outputs.append(theirs(chunk, angles(start, end), mask, cache)[0])
        start = end
    return torch.cat(outputs, 1)


def gradients(output, x, linears):
    steps = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return torch.autograd.grad((output * steps).sum(), [x, *(linear.weight for linear in linears)])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("dtype", OUTPUT)
@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_equals_transformers(llama, kv_heads, dtype, chunks, need_weights):
    ours, theirs, angles = llama_pair(llama, kv_heads, dtype)
    x = seeded_randn(3, 11, D_MODEL, seed=1, dtype=dtype).requires_grad_()
    want = llama_written(theirs, angles, x, CHUNKS[chunks])
    with torch.autograd.detect_anomaly():
        got = written(ours, x, CHUNKS[chunks], need_weights=need_weights)
        assert relative(got, want) <= OUTPUT[dtype]
        got_gradients = gradients(got, x, (ours.w_q, ours.w_k, ours.w_v, ours.w_o))
    want_gradients = gradients(want, x, (theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.o_proj))
    for a, b in zip(got_gradients, want_gradients):
        assert relative(a, b) <= GRADIENT[dtype]


@pytest.mark.parametrize("rotary_base", [None, BASE])
@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_equals_the_kernel(kv_heads, rotary_base):
    layer, x, places = make(kv_heads, rotary_base=rotary_base), seeded_randn(2, 7, D_MODEL, seed=2), torch.arange(7)
    q, k, v = (split_heads(linear(x), n) for linear, n in ((layer.w_q, HEADS), (layer.w_k, kv_heads), (layer.w_v, kv_heads)))
    if rotary_base:
        q, k = rotate(q, places, rotary_base), rotate(k, places, rotary_base)
    for mask in (None, causal_mask(7), window_mask(7, 3)):
        want = layer.w_o(merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)))
        assert relative(layer(x, mask), want) <= 1e-6
        assert relative(layer(x, mask, need_weights=True), want) <= 1e-6


@pytest.mark.parametrize("rotary_base", [None, BASE])
@pytest.mark.parametrize("kv_heads", KV_HEADS)
@pytest.mark.parametrize("bias", [True, False])
def test_equals_a_loop_over_heads(kv_heads, rotary_base, bias):
    layer, x = make(kv_heads, torch.float64, rotary_base, bias), seeded_randn(HEADS, 7, D_MODEL, seed=2, dtype=torch.float64)
    for mask in (None, causal_mask(7)):
        want, weights = by_hand(layer, x, mask)
        assert relative(layer(x, mask), want) <= 1e-13 and layer.attn is None
        assert relative(layer(x, mask, need_weights=True), want) <= 1e-13
        assert relative(layer.attn, weights) <= 1e-13 and not layer.attn.requires_grad


def test_as_many_key_heads_is_the_layer_of_part_one():
    layer, other = make(HEADS, rotary_base=None, bias=True), MultiHeadAttention(D_MODEL, HEADS)
    other.load_state_dict(layer.state_dict())
    x = seeded_randn(2, 7, D_MODEL, seed=3)
    for need_weights in (True, False):
        assert relative(layer(x, causal_mask(7), need_weights=need_weights), other(x, x, x, causal_mask(7))) <= 1e-6
        assert need_weights is False or relative(layer.attn, other.attn) <= 1e-6


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("rotary_base", [None, BASE])
def test_chunks_with_a_cache_equal_the_whole_text(mode, chunks, rotary_base):
    layer, x = make(2, rotary_base=rotary_base), seeded_randn(2, 11, D_MODEL, seed=4)
    want, cache = layer(x, causal_mask(11)), KeyValueCache()
    with mode():
        assert relative(written(layer, x, CHUNKS[chunks], cache), want) <= 1e-6
    assert len(cache) == 11 and cache.bytes == 2 * 2 * 2 * 11 * D_K * 4
    k = split_heads(layer.w_k(x), 2)
    turned = k if rotary_base is None else rotate(k, torch.arange(11), BASE)
    assert relative(cache.append(k[:, :, :1], k[:, :, :1])[0][:, :, :11], turned) <= 1e-6


def test_left_padding_changes_nothing_for_the_real_tokens():
    layer, x = make(2), seeded_randn(1, 6, D_MODEL, seed=5)
    padded = torch.cat((seeded_randn(1, 3, D_MODEL, seed=6), x), 1)
    real = padding_mask(torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]]), 0)
    want, cache = layer(x, causal_mask(6)), KeyValueCache()
    outputs = [layer(padded[:, :5], real[..., :5] & causal_mask(5), cache=cache)]
    outputs += [layer(padded[:, i : i + 1], real[..., : i + 1], cache=cache) for i in range(5, 9)]
    assert relative(torch.cat(outputs, 1)[:, 3:], want) <= 2e-6


def test_masks_of_every_shape():
    layer, x = make(4, torch.float64), seeded_randn(3, 5, D_MODEL, seed=7, dtype=torch.float64)
    each = (seeded_randn(3, HEADS, 5, 5, seed=8) > -0.5) | torch.eye(5, dtype=torch.bool)
    for need_weights in (True, False):
        want = torch.stack([by_hand(layer, x, each[:, i])[1][:, i] for i in range(HEADS)], 1)
        got = layer(x, each, need_weights=need_weights)
        if need_weights:
            assert relative(layer.attn, want) <= 1e-13
            kept = got
        assert relative(got, kept) <= 1e-13
        for mask in (causal_mask(5)[0], causal_mask(5), causal_mask(5).expand(3, 5, 5), causal_mask(5)[:, None], causal_mask(5).long()):
            assert relative(layer(x, mask, need_weights=need_weights), by_hand(layer, x, causal_mask(5))[0]) <= 1e-13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_heads", KV_HEADS)
def test_half_precision_stays_within_its_own_step(kv_heads, dtype):
    layer, x = make(kv_heads, dtype), seeded_randn(2, 11, D_MODEL, seed=9, dtype=dtype)
    reference = copy.deepcopy(layer).double()
    got = written(layer, x, CHUNKS["in chunks"])
    assert got.dtype == dtype
    assert relative(got.double(), reference(x.double(), causal_mask(11))) <= 4 * torch.finfo(dtype).eps


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [True, False])
def test_rows_without_any_key(dtype, need_weights):
    layer, x = make(2, dtype, bias=True), seeded_randn(2, 5, D_MODEL, seed=9, dtype=dtype).requires_grad_()
    mask = causal_mask(5).repeat(2, 1, 1)
    mask[0, 2] = mask[1] = False
    with torch.autograd.detect_anomaly():
        output = layer(x, mask, need_weights=need_weights)
        gradient = torch.autograd.grad(output.float().sum(), [x, *layer.parameters()])
    assert output.isfinite().all() and all(g.isfinite().all() for g in gradient)
    assert torch.equal(output[0, 2], layer.w_o.bias) and torch.equal(output[1], layer.w_o.bias.expand(5, -1))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("need_weights", [True, False])
def test_compile_and_export(need_weights, mode):
    torch._dynamo.reset()
    layer, x = make(2), seeded_randn(2, 5, D_MODEL, seed=6)
    with mode():
        want = layer(x, causal_mask(5), need_weights=need_weights)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        assert relative(compiled(x, causal_mask(5), need_weights=need_weights), want) <= 1e-6
        assert (layer.attn is not None) == need_weights
        exported = torch.export.export(layer, (x, causal_mask(5)), {"need_weights": need_weights})
        assert relative(exported.module()(x, causal_mask(5), need_weights=need_weights), want) <= 1e-6


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_compiled_with_a_cache(mode):
    torch._dynamo.reset()
    layer, x, cache = make(2), seeded_randn(2, 5, D_MODEL, seed=6), KeyValueCache()
    with mode():
        want = layer(x, causal_mask(5))
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        got = [compiled(x[:, :3], causal_mask(3), cache=cache), *(compiled(x[:, i : i + 1], cache=cache) for i in (3, 4))]
    assert relative(torch.cat(got, 1), want) <= 1e-6 and len(cache) == 5


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_no_copy_of_the_keys_for_each_query_head_is_made(kv_heads):
    """With long keys and one query, repeated keys would be the largest thing in memory by far."""
    keys, layer = 4096, GroupedQueryAttention(256, 8, kv_heads)
    with torch.no_grad():
        cache = KeyValueCache()
        for _ in range(2):  # the second leaves room for one token more
            cache.append(*(torch.randn(1, kv_heads, keys // 2, 32) for _ in range(2)))
        cache.append(*(torch.randn(1, kv_heads, 1, 32) for _ in range(2)))
        one, many = torch.randn(1, 1, 256), torch.randn(1, keys, 256)
        layer(one, cache=cache)
        repeated = 2 * 8 * keys * 32 * 4 / 2**20  # MiB of keys and values, one for each query head
        assert peak_mib(lambda: layer(one, cache=cache)) < repeated / 20
        # In a whole text queries, heads and output weigh as much as repeated keys: the floor is what counts.
        q, k, v = layer.w_q(many), layer.w_k(many), layer.w_v(many)
        heads = [split_heads(x, n) for x, n in ((q, 8), (k, kv_heads), (v, kv_heads))]
        kernel = peak_mib(lambda: F.scaled_dot_product_attention(*heads, enable_gqa=True))
        linears = (q.numel() + k.numel() + v.numel() + many.numel()) * 4 / 2**20
        assert peak_mib(lambda: layer(many)) < kernel + linears + repeated / 20


def test_copies_and_state_go_round():
    layer, x = make(2, bias=True), seeded_randn(2, 5, D_MODEL, seed=6)
    want = layer(x, need_weights=True)
    assert torch.equal(copy.deepcopy(layer)(x, need_weights=True), want)
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    stored.seek(0)
    other = GroupedQueryAttention(D_MODEL, HEADS, 2, bias=True, rotary_base=BASE)
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert torch.equal(other(x, need_weights=True), want)
    assert set(layer.state_dict()) == {f"w_{r}.{p}" for r in "qkvo" for p in ("weight", "bias")}


def test_parameters_shrink_with_the_key_heads():
    counts = [sum(p.numel() for p in GroupedQueryAttention(512, 8, n, bias=True).parameters()) for n in KV_HEADS]
    assert counts == [1_050_624, 787_968, 656_640, 590_976]


X = torch.zeros(2, 5, 24)


def filled(kv_heads=2, batch=2, dtype=torch.float32):
    cache = KeyValueCache()
    cache.append(*(seeded_randn(batch, kv_heads, 3, 6, seed=s, dtype=dtype) for s in (1, 2)))
    return cache


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda m: GroupedQueryAttention(24, 5, 1), ValueError, ["d_model=24", "num_heads=5", "1, 2, 3, 4, 6, 8, 12, 24"]),
        (lambda m: GroupedQueryAttention(24, 4, 3), ValueError, ["num_heads=4", "num_kv_heads=3", "1, 2, 4"]),
        (lambda m: GroupedQueryAttention(24, 4, 8), ValueError, ["num_kv_heads=8", "1, 2, 4"]),
        (lambda m: GroupedQueryAttention(24, 4, 0), ValueError, ["num_kv_heads=0", "1, 2, 4"]),
        (lambda m: GroupedQueryAttention(24, 8, 2, rotary_base=BASE), ValueError, ["d_k=3", "odd", "1, 2, 3, 4, 6, 12"]),
        (lambda m: GroupedQueryAttention(24, 4, 2, rotary_base=0.0), ValueError, ["rotary_base", "got 0.0"]),
        (lambda m: m(X[..., :8]), ValueError, ["8 features", "d_model=24", "(2, 5, 8)"]),
        (lambda m: m(X[0]), ValueError, ["(B, T, d_model)", "(5, 24)"]),
        (lambda m: m(X[:, :0]), ValueError, ["no token", "(2, 0, 24)"]),
        (lambda m: m(X[:, :0], cache=filled()), ValueError, ["no token", "(2, 0, 24)"]),
        (lambda m: m(X, torch.ones(5, 5)), TypeError, ["two things"]),
        (lambda m: m(X, causal_mask(5, "meta")), ValueError, ["meta", "cpu"]),
        (lambda m: m(X, causal_mask(5), cache=filled()), ValueError, ["(1, 5, 5)", "T_q=5", "T_k=8", "3 tokens in the cache", "causal_mask(5, keys=8)"]),
        (lambda m: m(X, causal_mask(3, keys=8), cache=filled()), ValueError, ["(1, 3, 8)", "T_q=5"]),
        (lambda m: m(X, causal_mask(5, keys=9), cache=filled()), ValueError, ["(1, 5, 9)", "T_k=8"]),
        (lambda m: m(X, cache=filled(kv_heads=4)), ValueError, ["(2, 2, 5, 6)", "(2, 4, 3, 6)"]),
        (lambda m: m(X, cache=filled(batch=1)), ValueError, ["(2, 2, 5, 6)", "(1, 2, 3, 6)"]),
        (lambda m: m(X, cache=filled(dtype=torch.float64)), ValueError, ["float32", "float64"]),
    ],
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_bad_input(call, error, words, need_weights):
    layer = GroupedQueryAttention(24, 4, 2, rotary_base=BASE)
    with pytest.raises(error) as caught:
        call(lambda *args, **more: layer(*args, need_weights=need_weights, **more))
    for word in words:
        assert word in str(caught.value)


def test_a_refused_mask_leaves_the_cache_as_it_was():
    layer, cache = GroupedQueryAttention(24, 4, 2), filled()
    with pytest.raises(ValueError):
        layer(X, causal_mask(5), cache=cache)
    assert len(cache) == 3


def test_the_import_brings_no_transformers():
    code = "import sys, mha_lib; print([name for name in ('transformers', 'matplotlib') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
