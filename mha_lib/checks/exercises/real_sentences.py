"""The check of the end of chapter 14: the most similar sentence."""

import functools
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor

from mha_lib import real_model
from mha_lib.attention import attention
from mha_lib.checks import read
from mha_lib.checks.case import Fresh, Mistake, Probe, Sign
from mha_lib.checks.compare import Unfit, a, as_tensor, refuse_none
from mha_lib.checks.exercises.real import RealExercise, loaded, tokens_of

# -- the most similar sentence

TEN = (
    "A man is eating a piece of bread.",
    "The weather will be fine tomorrow, with a light wind from the south.",
    "Someone is playing the violin.",
    "Stock prices fell sharply on Monday.",
    "She sold her old bicycle to a neighbour.",
    "How many moons does Jupiter have?",
    "The children built a castle out of sand on the beach.",
    "A cook cuts onions in the kitchen of a small restaurant.",
    "He forgot the password of his computer again, and nobody could help him that evening.",
    "It rains.",
)


def _similar_with(pool=None, compare=None, attend=attention, first=None):
    def most_similar(model, tokenizer, sentence, others):
        if attend is not None:
            real_model.use_attention(model, attend)
        result, batch = _read_with(attend, sentence, *others)
        vectors = (pool or _mean)(result, batch)
        cosines = (compare or _cosines)(vectors)
        return int(cosines.argmax()) if first is None else first(cosines), cosines

    return most_similar


@functools.cache
@torch.no_grad()
def _read_with(attend, *sentences):
    """Run the model once; the reference and the mimics differ in what they do with the result."""
    model, batch = loaded()[0], tokens_of(*sentences)
    return model(**batch, output_hidden_states=True), batch


def _mean(result, batch):
    real = batch["attention_mask"].unsqueeze(-1)
    return (result.last_hidden_state * real).sum(1) / real.sum(1)


def _without(first: bool, last: bool):
    """Return a mean that leaves out [CLS], [SEP] or both."""

    def pool(result, batch):
        real = batch["attention_mask"].clone()
        end = real.sum(1) - 1
        if first:
            real[:, 0] = 0
        if last:
            real[torch.arange(len(real)), end] = 0
        return (result.last_hidden_state * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True)

    return pool


def _largest(result, batch):
    return result.last_hidden_state.masked_fill(batch["attention_mask"].unsqueeze(-1) == 0, -torch.inf).amax(1)


def _at_the_end(result, batch):
    return result.last_hidden_state[torch.arange(len(batch["attention_mask"])), batch["attention_mask"].sum(1) - 1]


def _of_layer(number: int):
    def pool(result, batch):
        real = batch["attention_mask"].unsqueeze(-1)
        return (result.hidden_states[number] * real).sum(1) / real.sum(1)

    return pool


def _cosines(vectors):
    return F.cosine_similarity(vectors[:1], vectors[1:])


def _unmasked(query, key, value, mask=None):
    return attention(query, key, value)


def _inverted(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    weights = (scores if mask is None else scores.masked_fill(mask, -torch.inf)).softmax(-1)
    return weights @ value, weights


def _inverted_and_cleared(query, key, value, mask=None):
    return attention(query, key, value, None if mask is None else ~mask)


def _run_similar(function, model, tokenizer, sentence, others):
    model.set_attn_implementation("eager")
    try:
        result = function(model, tokenizer, sentence, others)
        return result, model.config._attn_implementation != "eager"
    finally:
        model.set_attn_implementation("eager")


def _found(value: object) -> dict[str, Tensor]:
    result, own = value
    refuse_none(result)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Unfit(
            "not_a_pair", "Asked for is a pair: the number of the most similar sentence, and the cosines of all."
        )
    index, cosines = result
    if (
        isinstance(index, Tensor)
        and index.numel() != 1
        or not isinstance(index, (Real, Tensor))
        or float(index) != int(index)
    ):
        raise Unfit(
            "not_a_number",
            f"The first of your pair is {a(index)}; asked for is the number of a sentence, counted from 0.",
        )
    cosines = as_tensor(cosines if isinstance(cosines, Tensor) else torch.tensor(cosines), "cosines").detach()
    return {"cosines": cosines, "number": torch.tensor(int(index)), "own attention": torch.tensor(float(own))}


def _own_unused(trials):
    told = [
        t for t in trials if t.seen.error is None and t.seen.parts["cosines"].shape == t.want.parts["cosines"].shape
    ]
    return (
        bool(told)
        and all(
            t.seen.error is None
            and not t.seen.parts["own attention"]
            and torch.allclose(t.seen.parts["cosines"], t.want.parts["cosines"], atol=1e-4)
            for t in trials
            if t.seen.error is not None or t.seen.parts["cosines"].shape == t.want.parts["cosines"].shape
        )
        and all(t.is_wrong for t in trials)
    )


def _a_square(trials):
    told = [t.seen.parts["cosines"] for t in trials if t.is_wrong and t.seen.error is None]
    return bool(told) and all(x.dim() == 2 and x.size(0) == x.size(1) for x in told)


def _the_largest(trials):
    told = [(t.seen.parts["cosines"], t.want.parts["cosines"]) for t in trials if t.is_wrong and t.seen.error is None]
    return bool(told) and all(x.numel() == 1 and torch.allclose(x, want.max(), atol=1e-4) for x, want in told)


def _question(sentence: str, others: tuple = TEN) -> tuple:
    return (
        Fresh(lambda: loaded()[0], "the real model"),
        Fresh(lambda: loaded()[1], "its tokenizer"),
        sentence,
        Fresh(lambda: list(others), f"{len(others)} sentences"),
    )


most_similar = RealExercise(
    "most_similar",
    signature="model tokenizer sentence others",
    expects="a pair (number, cosines): the number of the most similar of the others, counted from 0, and a tensor "
    "with the cosine of each.",
    reference=_similar_with(),
    parts=_found,
    apply=_run_similar,
    read=read.REAL_OFF,
    probes=[
        Probe(
            "a long sentence",
            _question("In the back room of the inn, a woman is chopping vegetables for the soup of the evening."),
            tolerance=1e-4,
        ),
        Probe("a short one", _question("Music."), tolerance=1e-4),
        Probe("a question among five", _question("Is Saturn larger than Mars?", TEN[3:8]), tolerance=1e-4),
        Probe("two of one length, without padding", _question("Snow falls.", ("It rains.",)), tolerance=1e-4),
    ],
    mistakes=[
        Mistake(
            "similar_cls",
            "You take the vector at [CLS] for the sentence. This model was trained to carry its meaning in the mean "
            "of all tokens.",
            _similar_with(pool=lambda result, batch: result.last_hidden_state[:, 0]),
            _similar_with(pool=lambda result, batch: result.pooler_output),
        ),
        Mistake(
            "similar_padding_counted",
            "Your mean runs over the padding too, so a short sentence drowns in it.",
            _similar_with(pool=lambda result, batch: result.last_hidden_state.mean(1)),
            _similar_with(
                pool=lambda result, batch: (result.last_hidden_state * batch["attention_mask"].unsqueeze(-1)).mean(1),
                compare=lambda v: v[1:] @ v[0],
            ),
        ),
        Mistake(
            "similar_special_tokens_left_out",
            "Your mean leaves out [CLS] or [SEP], or both. Here they count: only padding does not.",
            *(_similar_with(pool=_without(*which)) for which in ((True, True), (True, False), (False, True))),
        ),
        Mistake(
            "similar_largest",
            "A feature of your vector is the largest of all tokens. Asked for is their mean.",
            _similar_with(pool=lambda result, batch: result.last_hidden_state.amax(1)),
            _similar_with(pool=_largest),
        ),
        Mistake(
            "similar_last_token",
            "You take the vector of the last place for the sentence. Asked for is the mean of all its tokens.",
            _similar_with(pool=lambda result, batch: result.last_hidden_state[:, -1]),
            _similar_with(pool=_at_the_end),
        ),
        Mistake(
            "similar_earlier_layer",
            "Your vectors come from an earlier layer. Asked for are the model's last hidden states.",
            *(_similar_with(pool=_of_layer(number)) for number in (-2, 0, 1, -3)),
        ),
        Mistake(
            "similar_divided_by_other_axis",
            "You bring features to length 1 over all sentences. A cosine divides each sentence's vector by its own "
            "length.",
            _similar_with(compare=lambda v: (n := F.normalize(v, dim=0))[1:] @ n[0]),
        ),
        Mistake(
            "similar_with_the_last",
            "You compare with the last of the sentences in your batch, not with the one that is asked for.",
            _similar_with(compare=lambda v: F.cosine_similarity(v[-1:], v[:-1])),
            _similar_with(compare=lambda v: F.cosine_similarity(v[-1:], v[1:])),
        ),
        Mistake(
            "similar_every_pair",
            "You compare every sentence with every other. Asked for is one with each of the others.",
            Sign(_a_square),
        ),
        Mistake(
            "similar_largest_alone",
            "You return the largest cosine alone. Asked for is a tensor with the cosine of each.",
            Sign(_the_largest),
        ),
        Mistake(
            "similar_dot_products",
            "You compare dot products. A cosine divides them by both lengths.",
            _similar_with(compare=lambda v: v[1:] @ v[0]),
        ),
        Mistake(
            "similar_distance",
            "You measure distances: they are small where sentences are alike.",
            _similar_with(compare=lambda v: torch.cdist(v[:1], v[1:])[0]),
            _similar_with(compare=lambda v: torch.cdist(v[:1], v[1:])[0], first=lambda d: int(d.argmin())),
            _similar_with(compare=lambda v: -torch.cdist(v[:1], v[1:])[0]),
            _similar_with(compare=lambda v: 1 - _cosines(v)),
            _similar_with(compare=lambda v: 1 - _cosines(v), first=lambda d: int(d.argmin())),
        ),
        Mistake(
            "similar_itself",
            "The sentence is compared with itself too: its cosine is 1, and every number is off by one.",
            _similar_with(compare=lambda v: F.cosine_similarity(v[:1], v)),
            _similar_with(first=lambda cosines: int(cosines.argmax()) + 1),
        ),
        Mistake(
            "similar_least",
            "You give the number of the least similar sentence.",
            _similar_with(first=lambda cosines: int(cosines.argmin())),
        ),
        Mistake(
            "similar_mask_ignored",
            "Words attend to padding: the batch's mask does not reach the attention, or your attention ignores it.",
            _similar_with(attend=_unmasked),
        ),
        Mistake(
            "similar_mask_inverted",
            "The attention that you put into the model blocks where its mask is True. Here True means may attend.",
            _similar_with(attend=_inverted),
            _similar_with(attend=_inverted_and_cleared),
            read=read.MEANING,
        ),
        Mistake(
            "similar_own_unused",
            "The numbers are right, but the model ran with its own attention. Yours was never called.",
            _similar_with(attend=None),
            Sign(_own_unused),
            read=read.REAL_INSIDE,
        ),
    ],
)
