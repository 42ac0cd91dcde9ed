"""positions.py: the table to add, and the angle to turn by, beside formulas written another way and beside transformers."""

import math

import pytest
import torch

from mha_lib import rotate, sinusoidal
from tests.conftest import relative, seeded_randn

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
PLACES = torch.tensor([0, 1, 2, 5, 40, 1000])


def turned_as_complex(x, positions, base):
    """Rotary positions with neighbours as pairs: (x_2i, x_2i+1) is one complex number, turned by one factor."""
    d_k = x.size(-1)
    rates = torch.tensor([base ** (-2 * i / d_k) for i in range(d_k // 2)], dtype=torch.float64)
    angles = positions.double()[..., None] * rates
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def neighbours_to_halves(d_k):
    """The order in which features laid out as neighbours must be read to lie half a head apart."""
    return torch.cat((torch.arange(0, d_k, 2), torch.arange(1, d_k, 2)))


@pytest.mark.parametrize("d_model", [2, 6, 64])
def test_sinusoidal_follows_the_formula(d_model):
    table = sinusoidal(50, d_model)
    assert table.shape == (50, d_model) and table.dtype == torch.float32
    for pos in (0, 1, 49):
        for i in range(d_model // 2):
            angle = pos / 10_000 ** (2 * i / d_model)
            assert abs(table[pos, 2 * i].item() - math.sin(angle)) < 5e-6
            assert abs(table[pos, 2 * i + 1].item() - math.cos(angle)) < 5e-6
    assert torch.allclose(table.norm(dim=-1), torch.full((50,), math.sqrt(d_model / 2)))
    assert sinusoidal(0, d_model).shape == (0, d_model)
    assert sinusoidal(3, d_model, "meta").device.type == "meta"


@pytest.mark.parametrize("base", [10_000.0, 100.0])
@pytest.mark.parametrize("d_k", [2, 6, 16])
def test_rotate_is_the_other_layout_after_a_permutation(d_k, base):
    x = seeded_randn(2, 3, len(PLACES), d_k, seed=1, dtype=torch.float64)
    order = neighbours_to_halves(d_k)
    got = rotate(x[..., order], PLACES, base)
    assert relative(got, turned_as_complex(x, PLACES, base)[..., order]) <= 1e-13


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotate_equals_transformers(dtype):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="transformers, the extra real, is not installed")
    config = llama.LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    x = seeded_randn(2, 4, len(PLACES), 16, seed=2, dtype=dtype)
    cos, sin = llama.LlamaRotaryEmbedding(config)(x, PLACES[None])
    if dtype == torch.float64:  # its own angles are float32 whatever the input is
        angles = PLACES[None, :, None] * torch.tensor([500.0 ** (-2 * (i % 8) / 16) for i in range(16)], dtype=dtype)
        cos, sin = angles.cos(), angles.sin()
    want, _ = llama.apply_rotary_pos_emb(x, x, cos, sin)
    got = rotate(x, PLACES, 500.0)
    assert got.dtype == dtype
    assert relative(got, want) <= (1e-13 if dtype == torch.float64 else max(1e-6, 2 * torch.finfo(dtype).eps))


def test_scores_depend_on_the_distance_alone():
    q, k = (seeded_randn(16, seed=s).expand(30, 16) for s in (3, 4))
    places = torch.arange(30)
    scores = rotate(q, places) @ rotate(k, places).T
    for distance in range(-29, 30):
        along = scores.diagonal(distance)
        assert (along - along[0]).abs().max() <= 1e-5
    assert not torch.allclose(scores[0], scores[0, 0])
    further = rotate(q, places + 1000) @ rotate(k, places + 1000).T
    assert relative(further, scores) <= 2e-4
    assert torch.allclose(rotate(q, places).norm(dim=-1), q.norm(dim=-1), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_far_places_stay_apart_in_half_precision(dtype):
    places = torch.arange(4000, 4020)
    x = seeded_randn(20, 64, seed=5, dtype=dtype)
    assert relative(rotate(x, places).double(), rotate(x.double(), places)) <= 4 * torch.finfo(dtype).eps


def test_a_row_of_positions_for_each_text():
    x, places = seeded_randn(3, 2, 5, 8, seed=6), torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [0, 0, 0, 1, 2]])
    got = rotate(x, places[:, None])
    for text in range(3):
        assert torch.equal(got[text], rotate(x[text], places[text]))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_gradients_turn_back():
    x = seeded_randn(2, len(PLACES), 6, seed=7, dtype=torch.float64).requires_grad_()
    with torch.autograd.detect_anomaly():
        assert torch.autograd.gradcheck(lambda x: rotate(x, PLACES), x)


def test_compile_and_export():
    class Turn(torch.nn.Module):
        def forward(self, x, positions):
            return rotate(x, positions)

    x = seeded_randn(2, len(PLACES), 8, seed=8)
    want = rotate(x, PLACES)
    torch._dynamo.reset()
    assert relative(torch.compile(rotate, backend="aot_eager", fullgraph=True)(x, PLACES), want) <= 1e-6
    assert relative(torch.export.export(Turn(), (x, PLACES)).module()(x, PLACES), want) <= 1e-6


X = torch.zeros(2, 3, 5, 8)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: rotate(X[..., :7], torch.arange(5)), ["even", "d_k=7"]),
        (lambda: rotate(X[..., :0], torch.arange(5)), ["even", "d_k=0"]),
        (lambda: rotate(X, torch.arange(5) - 2), ["at least 0", "-2"]),
        (lambda: rotate(X, torch.arange(4)), ["(2, 3, 5)", "positions (4,)", "(B, 1, T)"]),
        (lambda: rotate(X, torch.zeros(3, 5)[None, None]), ["(2, 3, 5)", "positions (1, 1, 3, 5)"]),
        (lambda: rotate(X, torch.zeros(2, 5)), ["positions (2, 5)"]),
        (lambda: rotate(X, torch.arange(5), base=0.0), ["base", "got 0.0"]),
        (lambda: rotate(X, torch.arange(5, device="meta")), ["meta", "cpu"]),
        (lambda: rotate(torch.zeros(4), torch.zeros(())), ["(..., T, d_k)", "(4,)"]),
        (lambda: sinusoidal(5, 7), ["even", "got 7"]),
        (lambda: sinusoidal(5, 0), ["even", "got 0"]),
        (lambda: sinusoidal(-1, 8), ["length", "got -1"]),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
