"""The numbers that chapter 14 shows, measured again by other means: hooks, other sentences, weights set to 0 one by one."""

import pytest
import torch
import torch.nn.functional as F

from mha_lib import real_model
from tests.conftest import needs_real_model

pytestmark = needs_real_model
OTHERS = [
    "A small boat lay at the shore and nobody remembered to whom it belonged.",
    "Because the shop was closed, they bought their bread in the next village.",
    "My grandmother still writes letters by hand and answers every one she gets.",
    "Two of the windows were open, although it had been raining since noon.",
    "Engineers found the fault within an hour and repaired it during the night.",
    "Most people who visit the museum never see the rooms below the stairs.",
]


@pytest.fixture(scope="module")
def real():
    model, tokenizer = real_model.load()

    @torch.no_grad()
    def look(sentence):
        batch = tokenizer(sentence, return_tensors="pt")
        result = model(**batch, output_attentions=True)
        return tokenizer.convert_ids_to_tokens(batch.input_ids[0]), torch.cat(result.attentions)

    model.look, model.read = look, lambda texts: tokenizer(texts, padding=True, return_tensors="pt")
    return model


def weight(real, sentence, start, end, layer=None, head=None):
    tokens, weights = real.look(sentence)
    table = weights[:, :, tokens.index(start), tokens.index(end)]
    return table if layer is None else float(table[layer, head])


def test_one_head_looks_back_and_another_ahead_on_other_sentences_too(real):
    back, ahead = [], []
    for sentence in OTHERS:
        _, weights = real.look(sentence)
        inner = weights[:, :, 2:-2]
        places = torch.arange(2, weights.size(-1) - 2)
        back.append(inner[:, :, places - 2, places - 1].mean(-1))
        ahead.append(inner[:, :, places - 2, places + 1].mean(-1))
    back, ahead = torch.stack(back).mean(0), torch.stack(ahead).mean(0)
    assert divmod(int(back.argmax()), 12) == (0, 2) and back[0, 2] > 0.99
    assert divmod(int(ahead.argmax()), 12) == (1, 8) and 0.5 < ahead[1, 8] < 0.75
    assert back.flatten().topk(2).values[1] < 0.5


def test_most_heads_rest_on_cls_where_the_values_are_short(real):
    sizes = {}
    hooks = [
        block.attention.self.value.register_forward_hook(lambda m, i, out, n=n: sizes.setdefault(n, []).append(out[0].view(-1, 12, 32).norm(dim=-1)))
        for n, block in enumerate(real.encoder.layer)
    ]
    rest = torch.stack([real.look(s)[1][:, :, 2:-2, 0].mean(-1) for s in OTHERS]).mean(0)
    for hook in hooks:
        hook.remove()
    assert rest[1:5].mean() > 0.5 and (rest[1:5] > 0.4).float().mean() > 0.6 and rest.max() > 0.8
    for layer in range(1, 5):
        at_cls = torch.stack([s[0] for s in sizes[layer]]).median()
        at_words = torch.cat([s[1:-1] for s in sizes[layer]]).mean()
        assert 0.05 < at_cls < 0.25 and 3 < at_words < 5


def test_it_and_the_animal(real):
    text = "The animal didn't cross the street because it was too {}."
    table = weight(real, text.format("tired"), "it", "animal")
    assert divmod(int(table.argmax()), 12) == (3, 1)
    tired, wide = (weight(real, text.format(w), "it", "animal", 3, 1) for w in ("tired", "wide"))
    assert tired == pytest.approx(0.677, abs=0.004) and wide == pytest.approx(0.281, abs=0.004)
    assert weight(real, text.format("wide"), "it", "street", 3, 1) < wide


def test_trophy_and_suitcase_make_no_difference(real):
    text = "The trophy does not fit into the suitcase because it is too {}."
    big, small = (weight(real, text.format(w), "it", "trophy", 3, 1) for w in ("big", "small"))
    assert small > big > 0.55
    assert all(weight(real, text.format(w), "it", "suitcase", 3, 1) < 0.25 for w in ("big", "small"))


def test_orange_fruit_and_color(real):
    fruit, color = (weight(real, f"Orange is my favorite {w}.", "orange", w, 5, 5) for w in ("fruit", "color"))
    assert fruit == pytest.approx(0.229, abs=0.004) and color == pytest.approx(0.020, abs=0.004)


@torch.no_grad()
def test_heads_off(real):
    batch = real.read(OTHERS)
    kept = batch.attention_mask.unsqueeze(-1)

    def vectors():
        return (real(**batch).last_hidden_state * kept).sum(1) / kept.sum(1)

    off = set()

    def silence(layer):
        def before(module, arguments):
            (x,) = arguments
            cut = x.clone()
            for head in (h for (l, h) in off if l == layer):
                cut[..., 32 * head : 32 * head + 32] = 0
            return (cut,)

        return before

    hooks = [b.attention.output.dense.register_forward_pre_hook(silence(n)) for n, b in enumerate(real.encoder.layer)]
    whole, importance = vectors(), {}

    def without(heads):
        off.clear()
        off.update(heads)
        return F.cosine_similarity(vectors(), whole).mean().item()

    for head in [(layer, head) for layer in range(6) for head in range(12)]:
        importance[head] = 1 - without([head])
    order = sorted(importance, key=importance.get)
    least, most, random = without(order[:12]), without(order[-12:]), without(order[::6])
    for hook in hooks:
        hook.remove()
    assert least > 0.985 and 0.65 < most < 0.85 and most < random < least
    assert sum(layer == 5 for layer, _ in order[-12:]) >= 9
    assert importance[0, 2] < 0.01
