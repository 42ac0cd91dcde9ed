"""spellings.py: five spellings, one result, and weights that move between all of them."""

import itertools

import pytest
import torch
from torch import nn

from mha_lib import MultiHeadAttention, decoder_mask, padding_mask, to_torch_mask
from mha_lib.spellings import BertStyle, ClonedLinears, SplitCombine, parameters_by_role, transfer

D_MODEL, HEADS = 24, 4
OUTPUT = {torch.float32: 1e-6, torch.float64: 1e-13}
GRADIENT = {torch.float32: 5e-6, torch.float64: 1e-13}
MAKE = {
    "course": lambda: MultiHeadAttention(D_MODEL, HEADS),
    "cloned": lambda: ClonedLinears(HEADS, D_MODEL),
    "split_combine": lambda: SplitCombine(D_MODEL, HEADS),
    "bert": lambda: BertStyle(D_MODEL, HEADS),
    "torch": lambda: nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True),
}


def random(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def source(qkv_bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    layer = MultiHeadAttention(D_MODEL, HEADS, qkv_bias=qkv_bias).to(dtype)
    with torch.no_grad():
        for i, (weight, bias) in enumerate(parameters_by_role(layer).values()):
            if bias is not None:
                bias.copy_(random(D_MODEL, seed=i, dtype=dtype))
    return layer


def call(name, layer, query, key, value, mask):
    if name == "bert":
        return layer(query)
    if name == "torch":
        attn_mask = None if mask is None else to_torch_mask(mask, query, key, HEADS)
        return layer(query, key, value, attn_mask=attn_mask)[0]
    if name == "split_combine" and mask is not None:
        mask = mask.unsqueeze(1)
    return layer(query, key, value, mask)


IDS = torch.tensor([[5, 3, 8, 2, 0], [4, 4, 1, 9, 7], [3, 1, 0, 0, 0], [2, 2, 2, 2, 0]])
CASES = {
    "self": (lambda d: (random(4, 5, D_MODEL, seed=9, dtype=d),) * 3, None),
    "cross": (lambda d: (random(4, 3, D_MODEL, seed=9, dtype=d), *(random(4, 5, D_MODEL, seed=s, dtype=d) for s in (10, 11))), None),
    "padding": (lambda d: (random(4, 3, D_MODEL, seed=9, dtype=d), *(random(4, 5, D_MODEL, seed=s, dtype=d) for s in (10, 11))), padding_mask(IDS, 0)),
    "both": (lambda d: (random(4, 5, D_MODEL, seed=9, dtype=d),) * 3, decoder_mask(IDS, 0)),
}


def relative(a, b):
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", OUTPUT)
@pytest.mark.parametrize("name", [n for n in MAKE if n != "course"])
def test_each_equals_the_reference(name, dtype, case):
    if name == "bert" and case != "self":
        pytest.skip("it takes one input and no mask")
    make, mask = CASES[case]
    reference = source(qkv_bias=name != "split_combine", dtype=dtype)
    layer = MAKE[name]().to(dtype)
    transfer(reference, layer)
    given = [x.clone().requires_grad_() for x in dict.fromkeys(make(dtype))]
    inputs = given * 3 if len(given) == 1 else given
    want, got = reference(*inputs, mask), call(name, layer, *inputs, mask)
    assert relative(got, want) <= OUTPUT[dtype]
    steps = random(*want.shape, seed=20, dtype=dtype)
    for a, b in zip(torch.autograd.grad((got * steps).sum(), given), torch.autograd.grad((want * steps).sum(), given)):
        assert relative(a, b) <= GRADIENT[dtype]


@pytest.mark.parametrize("names", list(itertools.permutations(MAKE, 2)), ids="-".join)
def test_weights_go_there_and_back(names):
    reference = source(qkv_bias="split_combine" not in names)
    first, second, third = (MAKE[n]() for n in (*names, names[0]))
    transfer(reference, first)
    transfer(first, second)
    transfer(second, third)
    for role, (weight, bias) in parameters_by_role(first).items():
        again, again_bias = parameters_by_role(third)[role]
        assert torch.equal(weight, again)
        assert bias is None or torch.equal(bias, again_bias)


def test_separate_projections_of_torch_go_there_and_back():
    torch.manual_seed(0)
    first = nn.MultiheadAttention(D_MODEL, HEADS, kdim=10, vdim=14, batch_first=True)
    second = nn.MultiheadAttention(D_MODEL, HEADS, kdim=10, vdim=14, batch_first=True)
    nn.init.normal_(first.in_proj_bias)
    transfer(first, second)
    inputs = random(2, 3, D_MODEL, seed=1), random(2, 5, 10, seed=2), random(2, 5, 14, seed=3)
    assert torch.equal(first(*inputs)[0], second(*inputs)[0])
    with pytest.raises(ValueError, match=r"weight of k does not fit.*\(24, 10\).*\(24, 24\)"):
        transfer(first, MultiHeadAttention(D_MODEL, HEADS))


def test_a_bias_without_a_place_is_named_and_nothing_written():
    target = SplitCombine(D_MODEL, HEADS)
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(ValueError, match="SplitCombine has no place for the bias of q"):
        transfer(source(), target)
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


def test_a_bias_that_is_zero_needs_no_place():
    layer = MultiHeadAttention(D_MODEL, HEADS)
    with torch.no_grad():
        for role in "qkv":
            getattr(layer, f"w_{role}").bias.zero_()
    target = SplitCombine(D_MODEL, HEADS)
    transfer(layer, target)
    x = random(2, 5, D_MODEL, seed=1)
    assert relative(target(x, x, x), layer(x, x, x)) <= 1e-6


def test_a_key_bias_without_a_place_is_left_behind_and_moves_nothing():
    layer, target = source(), SplitCombine(D_MODEL, HEADS)
    with torch.no_grad():
        layer.w_q.bias.zero_()
        layer.w_v.bias.zero_()
    assert layer.w_k.bias.abs().max() > 1
    transfer(layer, target)
    x = random(2, 5, D_MODEL, seed=1)
    assert relative(target(x, x, x), layer(x, x, x)) <= 1e-6


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_a_layer_with_keys_of_its_own_is_refused_both_ways(option):
    torch.manual_seed(0)
    extra, plain = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True, **{option: True}), MAKE["torch"]()
    layers = (extra, plain)
    before = [{k: v.clone() for k, v in layer.state_dict().items()} for layer in layers]
    for first, second in (layers, layers[::-1]):
        with pytest.raises(ValueError, match=f"made with {option}"):
            transfer(first, second)
    for layer, kept in zip(layers, before):
        assert all(torch.equal(v, kept[k]) for k, v in layer.state_dict().items())
    # The copy would have been wrong: the same weights give another output.
    plain.load_state_dict({name: extra.state_dict()[name] for name in plain.state_dict()})
    x = random(2, 5, D_MODEL, seed=1)
    assert relative(plain(x, x, x)[0], extra(x, x, x)[0]) > 0.05


def test_a_missing_bias_becomes_zero():
    target = ClonedLinears(HEADS, D_MODEL)
    transfer(source(qkv_bias=False), target)
    assert not target.linears[0].bias.any() and target.linears[3].bias.any()


@pytest.mark.parametrize(
    "layers, error, words",
    [
        ((lambda: nn.Linear(2, 2), MAKE["course"]), TypeError, "Linear follows none of the spellings"),
        ((MAKE["course"], lambda: MultiHeadAttention(D_MODEL, 2)), ValueError, "head counts differ.*4.*2"),
        ((MAKE["course"], lambda: ClonedLinears(HEADS, 12)), ValueError, r"weight of q does not fit.*\(24, 24\).*\(12, 12\)"),
    ],
)
def test_layers_that_do_not_fit(layers, error, words):
    with pytest.raises(error, match=words):
        transfer(*(make() for make in layers))


def test_sizes_that_do_not_come_out_even():
    for make in (lambda: ClonedLinears(4, 10), lambda: SplitCombine(10, 4)):
        with pytest.raises(AssertionError, match="10 features do not come out even in 4 heads"):
            make()
    assert BertStyle(10, 4).all_head_size == 8  # the quirk: narrower inside, in silence


def test_quirks_are_kept():
    cloned = ClonedLinears(HEADS, D_MODEL, dropout=0.5)
    x = random(4, 5, D_MODEL, seed=1)
    torch.manual_seed(0)
    cloned(x, x, x, padding_mask(IDS, 0))
    assert (cloned.attn == 0).any() and cloned.attn.shape == (4, HEADS, 5, 5)
    assert MAKE["split_combine"]().W_q.bias is None and MAKE["split_combine"]().W_o.bias is not None
    counts = {n: sum(p.numel() for p in layer.parameters()) for n, layer in (("c", ClonedLinears(8, 512)), ("s", SplitCombine(512, 8)), ("b", BertStyle(512, 8)))}
    assert counts == {"c": 1_050_624, "s": 1_049_088, "b": 1_050_624}


def test_the_key_bias_does_nothing():
    layer = source(dtype=torch.float64)
    x = random(2, 5, D_MODEL, seed=1, dtype=torch.float64)
    layer(x, x, x).pow(2).sum().backward()
    assert layer.w_k.bias.grad.abs().max() < 1e-12 * layer.w_q.bias.grad.abs().max()
    before = layer(x, x, x)
    with torch.no_grad():
        layer.w_k.bias.add_(3.0)
    assert relative(layer(x, x, x), before) < 1e-12
