"""Answers to the exercise of checks/exercises/real_sentences.py (chapter 14)."""

from tests.answers import Answer
from tests.answers.real import answers

SIMILAR = '''
from mha_lib import real_model
def masked_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)
    return weights @ value, weights

def most_similar(model, tokenizer, sentence, others):
    real_model.use_attention(model, masked_attention)
    batch = tokenizer([sentence, *others], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    real = batch["attention_mask"].unsqueeze(-1)
    vectors = (states * real).sum(1) / real.sum(1)
    cosines = torch.cosine_similarity(vectors[:1], vectors[1:])
    return int(cosines.argmax()), cosines
'''
USE = "real_model.use_attention(model, masked_attention)"
REAL, VECTORS = 'real = batch["attention_mask"].unsqueeze(-1)', "vectors = (states * real).sum(1) / real.sum(1)"
COSINES, FOUND = "cosines = torch.cosine_similarity(vectors[:1], vectors[1:])", "return int(cosines.argmax()), cosines"


WRONG = [
    *answers("most_similar", SIMILAR, [
        ("similar_cls", [f"{VECTORS} -> vectors = states[:, 0]"]),
        ("similar_padding_counted", [f"{VECTORS} -> vectors = states.mean(1)"]),
        ("similar_special_tokens_left_out", [f"{REAL} -> ids = batch['input_ids']; real = ((ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id) & (ids != tokenizer.pad_token_id)).unsqueeze(-1)"]),
        ("similar_special_tokens_left_out", [f"{REAL} -> real = batch['attention_mask'].unsqueeze(-1).clone(); real[:, 0] = 0"]),
        ("similar_largest", [f"{VECTORS} -> vectors = states.amax(1)"]),
        ("similar_last_token", [f"{VECTORS} -> vectors = states[:, -1]"]),
        ("similar_earlier_layer", ["model(**batch).last_hidden_state -> model(**batch, output_hidden_states=True).hidden_states[-2]"]),
        ("similar_divided_by_other_axis", [f"{COSINES} -> unit = F.normalize(vectors, dim=0); cosines = unit[1:] @ unit[0]"]),
        ("similar_with_the_last", [f"{COSINES} -> cosines = torch.cosine_similarity(vectors[-1:], vectors[:-1])"]),
        ("similar_every_pair", [f"{COSINES} -> unit = F.normalize(vectors, dim=-1); cosines = unit @ unit.T"]),
        ("similar_largest_alone", [f"{FOUND} -> return int(cosines.argmax()), cosines.max()"]),
        ("similar_mask_inverted", ["masked_fill(~mask -> masked_fill(mask"]),
        ("similar_mask_ignored", ["model(**batch) -> model(batch['input_ids'])"]),
        ("similar_distance", [f"{COSINES} -> cosines = 1 - torch.cosine_similarity(vectors[:1], vectors[1:])"]),
        ("one_truth_for_a_mask", ["    if mask is not None:\n        scores = scores.masked_fill(~mask ->     if True:\n        scores = scores.masked_fill(mask == 0"]),
        ("not_a_number", [f"{FOUND} -> return others[int(cosines.argmax())], cosines"]),
        ("not_a_number", [f"{FOUND} -> return cosines, int(cosines.argmax())"]),
        ("unpacked_elsewhere", ["return weights @ value, weights -> return weights @ value"]),
        ("similar_dot_products", [f"{COSINES} -> cosines = vectors[1:] @ vectors[0]"]),
        ("similar_distance", [f"{COSINES} -> cosines = (vectors[1:] - vectors[0]).norm(dim=-1)"]),
        ("similar_itself", [f"{COSINES} -> cosines = torch.cosine_similarity(vectors[:1], vectors)"]),
        ("similar_itself", [f"{FOUND} -> return int(cosines.argmax()) + 1, cosines"]),
        ("similar_least", [f"{FOUND} -> return int(cosines.argmin()), cosines"]),
        ("similar_mask_ignored", ["if mask is not None: -> if False:"]),
        ("similar_own_unused", [f"{USE} -> pass"]),
        ("not_a_pair", [f"{FOUND} -> return int(cosines.argmax())"]),
    ]),
]

RIGHT = [
    *answers("most_similar", SIMILAR, [
        (None, []),
        (None, [f"{COSINES} -> cosines = F.normalize(vectors[1:], dim=-1) @ F.normalize(vectors[0], dim=-1)"]),
        (None, [f"{VECTORS} -> vectors = torch.stack([s[m.bool()].mean(0) for s, m in zip(states, batch['attention_mask'])])"]),
        (None, [f"{FOUND} -> return cosines.argmax(), cosines.tolist()"]),
        (None, [f"{VECTORS} -> vectors = (states * real).sum(1)"]),
        (None, ["with torch.no_grad(): -> if True:"]),
    ]),
    Answer("most_similar", "most_similar", '''
from mha_lib import attention, real_model
def most_similar(model, tokenizer, sentence, others):
    real_model.use_attention(model, attention)
    def vector(text):
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
    mine = vector(sentence)
    cosines = torch.stack([F.cosine_similarity(mine, vector(other), dim=0) for other in others])
    return int(cosines.argmax()), cosines
'''),
]
