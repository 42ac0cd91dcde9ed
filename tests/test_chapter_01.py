"""The numbers that chapter 1 shows."""

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
