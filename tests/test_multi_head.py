"""MultiHeadAttention beside PyTorch's own layer and kernel, weights copied."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mha_lib import (
    MultiHeadAttention,
    attention,
    causal_mask,
    clones,
    decoder_mask,
    merge_heads,
    padding_mask,
    split_heads,
    to_torch_mask,
)

D_MODEL, HEADS = 24, 4
OUTPUT = {torch.float32: 1e-6, torch.float64: 1e-13}
GRADIENT = {torch.float32: 5e-6, torch.float64: 1e-13}


def random(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def pair(dtype=torch.float32, dropout=0.0):
    """Return our layer and PyTorch's with the same weights and biases that are not zero."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, dropout=dropout, batch_first=True, dtype=torch.float64)
    ours = MultiHeadAttention(D_MODEL, HEADS, dropout).double()
    with torch.no_grad():
        theirs.in_proj_bias.copy_(random(3 * D_MODEL, seed=1, dtype=torch.float64))
        theirs.out_proj.bias.copy_(random(D_MODEL, seed=2, dtype=torch.float64))
        rows = zip((ours.w_q, ours.w_k, ours.w_v), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3))
        for linear, weight, bias in rows:
            linear.weight.copy_(weight)
            linear.bias.copy_(bias)
        ours.w_o.load_state_dict(theirs.out_proj.state_dict())
    return ours.to(dtype), theirs.to(dtype)


def ids(batch, length):
    tokens = torch.ones(batch, length, dtype=torch.long)
    for row in range(1, batch):
        tokens[row, length - row % length :] = 0
    return tokens


def cases():
    """Yield a name, the three inputs' sizes (B, T_q, T_k; T_k None = self-attention) and a mask."""
    yield "self", (3, 5, None), None
    yield "cross", (3, 4, 6), None
    yield "causal", (3, 5, None), causal_mask(5)
    yield "two axes", (3, 5, None), causal_mask(5)[0]
    yield "padding", (3, 4, 6), padding_mask(ids(3, 6), 0)
    yield "padding and causal", (3, 5, None), decoder_mask(ids(3, 5), 0)
    yield "B = h, padding", (HEADS, 4, 6), padding_mask(ids(HEADS, 6), 0)
    yield "B = h, both", (HEADS, 5, None), decoder_mask(ids(HEADS, 5), 0)
    yield "a mask for each head", (2, 5, None), (random(2, HEADS, 5, 5, seed=9) > -1) | torch.eye(5, dtype=torch.bool)
    yield "one token", (1, 1, None), None


CASES = {name: (sizes, mask) for name, sizes, mask in cases()}


def inputs(sizes, dtype):
    batch, query_len, key_len = sizes
    query = random(batch, query_len, D_MODEL, seed=3, dtype=dtype).requires_grad_()
    if key_len is None:
        return (query,) * 3
    return (query, *(random(batch, key_len, D_MODEL, seed=s, dtype=dtype).requires_grad_() for s in (4, 5)))


def relative(got, want):
    got, want = got.detach(), want.detach()
    return float((got - want).abs().max() / want.abs().max())


def gradients(output, given, module):
    steps = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return torch.autograd.grad((output * steps).sum(), [*dict.fromkeys(given), *module.parameters()])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", OUTPUT)
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name, dtype, training, need_weights):
    sizes, mask = CASES[name]
    ours, theirs = (m.train(training) for m in pair(dtype))
    query, key, value = inputs(sizes, dtype)
    attn_mask = None if mask is None else to_torch_mask(mask, query, key, HEADS)
    want, want_weights = theirs(query, key, value, attn_mask=attn_mask, average_attn_weights=False)
    with torch.autograd.detect_anomaly():
        got = ours(query, key, value, mask, need_weights=need_weights)
        assert relative(got, want) <= OUTPUT[dtype]
        if need_weights:
            assert relative(ours.attn, want_weights) <= 2 * OUTPUT[dtype]
        else:
            assert ours.attn is None
        got_gradients = gradients(got, (query, key, value), ours)
    want_gradients = gradients(want, (query, key, value), theirs)
    count = len(dict.fromkeys((query, key, value)))
    for a, b in zip(got_gradients[:count], want_gradients[:count]):
        assert relative(a, b) <= GRADIENT[dtype]
    weights, biases = got_gradients[count::2], got_gradients[count + 1 :: 2]
    theirs_gradients = dict(zip(dict(theirs.named_parameters()), want_gradients[count:]))
    assert relative(torch.cat(weights[:3]), theirs_gradients["in_proj_weight"]) <= GRADIENT[dtype]
    assert relative(torch.cat(biases[:3]), theirs_gradients["in_proj_bias"]) <= GRADIENT[dtype]
    assert relative(weights[3], theirs_gradients["out_proj.weight"]) <= GRADIENT[dtype]


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_stays_within_its_own_step(name):
    sizes, mask = CASES[name]
    exact, _ = pair(torch.float64)
    given = [x.detach().bfloat16() for x in inputs(sizes, torch.float64)]
    layer = copy.deepcopy(exact).bfloat16()
    reference = copy.deepcopy(layer).double()
    got = layer(*given, mask)
    assert got.dtype == torch.bfloat16
    step = torch.finfo(torch.bfloat16).eps
    assert relative(got.double(), reference(*(x.double() for x in given), mask)) <= 4 * step


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("need_weights", [True, False])
def test_rows_without_any_key(dtype, need_weights):
    ours, _ = pair(torch.float32)
    ours = ours.to(dtype)
    mask = torch.ones(3, 5, 5, dtype=torch.bool)
    mask[0, 2] = False
    mask[1] = False
    query, key, value = inputs((3, 5, None), dtype)
    with torch.autograd.detect_anomaly():
        output = ours(query, key, value, mask, need_weights=need_weights)
        gradient = torch.autograd.grad(output.float().sum(), [query, *ours.parameters()])
    assert output.isfinite().all() and all(g.isfinite().all() for g in gradient)
    bias = ours.w_o.bias
    assert torch.equal(output[0, 2], bias) and torch.equal(output[1], bias.expand(5, -1))


@pytest.mark.parametrize("name", CASES)
def test_equals_the_kernel(name):
    sizes, mask = CASES[name]
    ours, _ = pair()
    query, key, value = inputs(sizes, torch.float32)
    q, k, v = (split_heads(linear(x), HEADS) for linear, x in zip((ours.w_q, ours.w_k, ours.w_v), (query, key, value)))
    allowed = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
    want = ours.w_o(merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)))
    assert relative(ours(query, key, value, mask), want) <= 1e-6


def test_a_loop_over_heads_gives_the_same():
    x = random(2, 5, D_MODEL, seed=6)
    looped = torch.cat([attention(p, p, p, causal_mask(5))[0] for p in x.chunk(HEADS, -1)], -1)
    heads = split_heads(x, HEADS)
    batched = merge_heads(attention(heads, heads, heads, causal_mask(5).unsqueeze(1))[0])
    assert relative(batched, looped) <= 1e-6


def test_dropout_acts_in_training_alone():
    ours, _ = pair(dropout=0.5)
    x = random(2, 5, D_MODEL, seed=6)
    for need_weights in (True, False):
        ours.eval()
        assert torch.equal(ours(x, x, x, need_weights=need_weights), ours(x, x, x, need_weights=need_weights))
        ours.train()
        assert not torch.equal(ours(x, x, x, need_weights=need_weights), ours(x, x, x, need_weights=need_weights))
        ours.eval()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_without_gradients_the_same(mode):
    ours, _ = pair()
    x = random(2, 5, D_MODEL, seed=6)
    for mask in (None, causal_mask(5)):
        want, weights = ours(x, x, x, mask), ours.attn
        with mode():
            assert relative(ours(x, x, x, mask), want) <= 1e-6
        assert relative(ours.attn, weights) <= 1e-6


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("need_weights", [True, False])
def test_compile_and_export(need_weights, mode):
    ours, _ = pair()
    x = random(2, 5, D_MODEL, seed=6)
    with mode():
        _compile_and_export(ours, x, need_weights)


def _compile_and_export(ours, x, need_weights):
    want = ours(x, x, x, causal_mask(5), need_weights=need_weights)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    assert relative(compiled(x, x, x, causal_mask(5), need_weights=need_weights), want) <= 1e-6
    assert (ours.attn is not None) == need_weights
    exported = torch.export.export(ours, (x, x, x, causal_mask(5)), {"need_weights": need_weights})
    assert relative(exported.module()(x, x, x, causal_mask(5), need_weights=need_weights), want) <= 1e-6


def test_copies_and_state_go_round():
    ours, _ = pair()
    x = random(2, 5, D_MODEL, seed=6)
    want = ours(x, x, x)
    assert ours.attn is not None and torch.equal(copy.deepcopy(ours)(x, x, x), want)
    stored = io.BytesIO()
    torch.save(ours.state_dict(), stored)
    stored.seek(0)
    other = MultiHeadAttention(D_MODEL, HEADS)
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert torch.equal(other(x, x, x), want)
    assert set(ours.state_dict()) == {f"w_{r}.{p}" for r in "qkvo" for p in ("weight", "bias")}


def test_layers_stack():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = MultiHeadAttention(D_MODEL, HEADS)

        def forward(self, x):
            return x + self.attention(x, x, x)

    x = random(2, 5, D_MODEL, seed=6)
    assert nn.Sequential(Block(), Block())(x).shape == x.shape


def test_linears_may_be_parametrised():
    ours, _ = pair()
    x = random(2, 5, D_MODEL, seed=6)
    want = ours(x, x, x)
    for name in ("w_q", "w_k", "w_v", "w_o"):
        nn.utils.parametrizations.weight_norm(getattr(ours, name))
    assert relative(ours(x, x, x), want) <= 1e-6
    ours(x, x, x).sum().backward()
    assert all(p.grad is not None for p in ours.parameters())


@pytest.mark.parametrize("bias, qkv_bias, count", [(True, None, 8), (False, None, 4), (True, False, 5), (False, True, 7)])
def test_biases(bias, qkv_bias, count):
    layer = MultiHeadAttention(D_MODEL, HEADS, bias=bias, qkv_bias=qkv_bias)
    assert len(list(layer.parameters())) == count


def test_parameters_do_not_depend_on_the_heads():
    counts = {sum(p.numel() for p in MultiHeadAttention(512, h).parameters()) for h in (1, 8, 64)}
    assert counts == {1_050_624} == {4 * (512**2 + 512)}


def test_clones_are_equal_and_separate():
    copies = clones(nn.Linear(3, 3), 4)
    assert len(copies) == 4 and all(torch.equal(c.weight, copies[0].weight) for c in copies)
    assert len({c.weight.data_ptr() for c in copies}) == 4
    assert len(clones(nn.Linear(3, 3), 0)) == 0
    with pytest.raises(ValueError, match="at least 0; got -1"):
        clones(nn.Linear(3, 3), -1)


X = torch.zeros(2, 5, 12)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda m: MultiHeadAttention(10, 4), ValueError, ["d_model=10", "num_heads=4", "1, 2, 5, 10"]),
        (lambda m: MultiHeadAttention(12, 0), ValueError, ["num_heads", "got 0"]),
        (lambda m: MultiHeadAttention(12, -3), ValueError, ["num_heads", "got -3"]),
        (lambda m: MultiHeadAttention(0, 1), ValueError, ["d_model", "got 0"]),
        (lambda m: MultiHeadAttention(12, 4, dropout=1.5), ValueError, ["1.5"]),
        (lambda m: m(X[..., :8], X, X), ValueError, ["query has 8 features", "d_model=12", "(2, 5, 8)"]),
        (lambda m: m(X, X[..., :8], X), ValueError, ["key has 8 features"]),
        (lambda m: m(X[0], X, X), ValueError, ["query must be (B, T, d_model)", "(5, 12)"]),
        (lambda m: m(X, X[:1], X[:1]), ValueError, ["axis 0", "(1, 5, 12)"]),
        (lambda m: m(X, X, X[:, :3]), ValueError, ["axis 1", "(2, 3, 12)"]),
        (lambda m: m(X, X.to("meta"), X), ValueError, ["different devices", "meta"]),
        (lambda m: m(X, X, X, torch.ones(5, 5)), TypeError, ["two things"]),
        (lambda m: m(X, X, X, torch.ones(5, 6, dtype=torch.bool)), ValueError, ["(5, 6)", "T_k=5"]),
        (lambda m: m(X, X, X, torch.ones(3, 1, 5, dtype=torch.bool)), ValueError, ["(3, 1, 5)", "B=2"]),
        (lambda m: m(X, X, X, torch.ones(5, dtype=torch.bool)), ValueError, ["(5,)"]),
    ],
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_bad_input(call, error, words, need_weights):
    layer = MultiHeadAttention(12, 4)
    with pytest.raises(error) as caught:
        call(lambda *args: layer(*args, need_weights=need_weights))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("need_weights", [True, False])
def test_empty_sequences(need_weights):
    layer = MultiHeadAttention(12, 4)
    none = torch.zeros(2, 0, 12)
    assert layer(none, X, X, need_weights=need_weights).shape == (2, 0, 12)
    output = layer(X, none, none, need_weights=need_weights)
    assert torch.equal(output, layer.w_o.bias.expand(2, 5, -1))


def test_integer_masks_are_taken():
    layer = MultiHeadAttention(12, 4)
    x = random(2, 5, 12, seed=7)
    for need_weights in (True, False):
        got = layer(x, x, x, causal_mask(5).long(), need_weights=need_weights)
        assert torch.equal(got, layer(x, x, x, causal_mask(5), need_weights=need_weights))


def test_another_dtype_is_refused_with_both():
    x = torch.randn(2, 3, D_MODEL, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"the layer holds torch.float32, the inputs hold query torch.float64.*\.to\(torch.float32\)"):
        MultiHeadAttention(D_MODEL, HEADS)(x, x, x)


def test_autocast_may_mix_dtypes():
    x = torch.randn(2, 3, D_MODEL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert MultiHeadAttention(D_MODEL, HEADS)(x.bfloat16(), x.bfloat16(), x.bfloat16()).dtype == torch.bfloat16
