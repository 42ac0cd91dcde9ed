"""The numbers that chapter 1 shows."""

import pytest
import torch

from mha_lib import attention


def three_tokens():
    return torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))


def test_weights_of_three_random_tokens():
    x = three_tokens()
    output, weights = attention(x, x, x)
    want = torch.tensor([[0.963, 0.010, 0.027], [0.045, 0.762, 0.193], [0.256, 0.390, 0.355]])
    assert torch.allclose(weights[0], want, atol=5e-4)
    assert torch.allclose(output[0, 0], torch.tensor([1.4535, -0.3072, -2.1104, 0.5605]), atol=5e-5)
    assert torch.allclose(output[0, 0], sum(weights[0, 0, j] * x[0, j] for j in range(3)))


def test_shuffled_tokens_give_shuffled_outputs():
    x = three_tokens()
    order = [2, 0, 1]
    assert torch.allclose(attention(x[:, order], x[:, order], x[:, order])[0], attention(x, x, x)[0][:, order], atol=1e-6)


def test_orange_ends_nearer_to_food_than_to_colour():
    weights = torch.tensor([0.21, 0.03, 0.05, 0.31, 0.40])
    values = torch.tensor([[0.5, 0.9], [0.0, 0.0], [0.2, 0.1], [0.8, 0.0], [1.0, 0.2]])
    food, colour = (weights @ values).tolist()
    assert abs(float(weights.sum()) - 1) < 1e-6
    assert food > 0.5 > colour


def test_a_vector_finds_itself_by_its_length():
    x = three_tokens()
    lengths = (x[0] ** 2).sum(-1)
    assert torch.allclose(lengths, torch.tensor([7.53, 4.00, 1.07]), atol=5e-3)
    assert attention(x, x, x)[1][0].argmax(-1).tolist() == [0, 1, 1]


def test_sums_without_their_axis_divide_the_columns():
    counts = torch.tensor([[1.0, 1.0, 2.0], [3.0, 3.0, 6.0], [2.0, 2.0, 4.0]])
    assert torch.equal(counts / counts.sum(-1, keepdim=True), torch.tensor([[0.25, 0.25, 0.5]] * 3))
    assert (counts / counts.sum(-1))[:, 1].tolist() == pytest.approx([1 / 12, 3 / 12, 2 / 12])


def test_values_may_have_another_number_of_features():
    x = three_tokens()
    output, weights = attention(x[..., :2], x[..., :2], x[..., :3])
    assert output.shape == (1, 3, 3) and weights.shape == (1, 3, 3)


def test_the_average_distance_of_the_coin_doubles_with_four_times_the_throws():
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        far = [(torch.randint(0, 2, (5_000, n), generator=generator).sum(1) - n / 2).abs().mean() for n in (100, 400, 1600)]
        assert 1.9 < far[1] / far[0] < 2.1 and 1.9 < far[2] / far[1] < 2.1
