"""Where each line of each solution is taught, before it is asked for.

For every exercise: line of the solution -> places. A place is the id of a notebook's cell, or "hint" for the
text of the exercise itself, and a piece of code or text that must stand there. test_teaches.py holds it to that.
"""

_TURN = ("n01-09", "transpose(-2, -1)")
_PRODUCT = ("n01-07", "query @ turned")
_ROOT = ("n01-11", "scores / d_k**0.5")
_WIDTH = ("n01-11", "d_k = query.size(-1)")
_SOFTMAX = ("n01-softmax", "torch.softmax(scaled, dim=-1)")
_MIX = ("n01-17", "weights @ value")
_PAIR = ("n01-20", "a pair is returned")
_KEEPDIM = ("n01-broadcast", "counts.sum(dim=-1, keepdim=True)")
_REGISTER = ("n01-module", "self.left = nn.Linear(d_in, d_out)")
_PLACES = ("n03-01", "places = torch.arange(5")
_COLUMN = ("n03-01", "places.unsqueeze(1)")
_DRAW = ("n01-05", "torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))")
_SPLIT = ("n04-11", "split_heads(q, 8)")

_ATTEND = {
    "scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5": [_PRODUCT, _TURN, _ROOT, _WIDTH],
    "weights = torch.softmax(scores, dim=-1)": [_SOFTMAX],
    "return weights @ value, weights": [_MIX, _PAIR],
}

TEACHES = {
    "scores": {"return query @ key.transpose(-2, -1)": [_PRODUCT, _TURN]},
    "softmax_rows": {
        "positive = scores.exp()": [("n01-13", "positive = row.exp()")],
        "return positive / positive.sum(dim=-1, keepdim=True)": [("n01-13", "positive / positive.sum()"), _KEEPDIM],
    },
    "attention": _ATTEND,
    "single_head": {
        "self.w_q = nn.Linear(d_model, d_k)": [_REGISTER],
        "self.w_k = nn.Linear(d_model, d_k)": [_REGISTER],
        "self.w_v = nn.Linear(d_model, d_k)": [_REGISTER],
        "return mha_lib.attention(self.w_q(query), self.w_k(key), self.w_v(value))": [
            ("n01-23", "q, k, v = w_q(x), w_k(x), w_v(x)"),
            ("n01-23", "attention(q, k, v)"),
            ("n01-module", "return self.left(a) + self.right(b)"),
        ],
    },
    "score_std": {"return d_k**0.5": [("n02-02", "$\\sqrt{64} = 8$"), _ROOT]},
    "divisor": {
        "variance_of_one_product = spread_query**2 * spread_key**2": [("n02-02", "the mean of $q^2$ times that of $k^2$")],
        "return (d_k * variance_of_one_product) ** 0.5": [("n02-02", "`d_k` of them give $d_k$"), ("n02-02", "The spread is the root")],
    },
    "scaling": {
        "scores = (query / query.size(-1) ** 0.5) @ key.transpose(-2, -1)": [
            ("n01-19", "(query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)"),
            ("hint", "`query / number` makes a new tensor"),
        ],
        "weights = torch.softmax(scores, dim=-1)": [_SOFTMAX],
        "return weights @ value, weights": [_MIX, _PAIR],
    },
    "stable_softmax": {
        "exp = (scores - scores.amax(dim=-1, keepdim=True)).exp()": [
            ("n02-25", "lowered = row - row.max()"),
            ("n02-27", "table.amax(dim=-1)"),
            ("n02-28", "knows `keepdim`"),
        ],
        "return exp / exp.sum(dim=-1, keepdim=True)": [("n02-27", "exp / exp.sum(dim=-1, keepdim=True)")],
    },
    "bug_scaling": {
        "generator = torch.Generator().manual_seed(0)": [_DRAW],
        "query = torch.randn(1, 3, 4, generator=generator)": [_DRAW],
        "key = torch.randn(1, 7, 4, generator=generator)": [_DRAW],
        "value = torch.randn(1, 7, 4, generator=generator)": [_DRAW],
        "return query, key, value": [("hint", "return the arguments `(query, key, value)`")],
    },
    "causal_mask": {
        "places = torch.arange(size)": [_PLACES],
        "return (places.unsqueeze(1) >= places).unsqueeze(0)": [
            _COLUMN,
            ("n03-01", "column >= places"),
            ("hint", "The axis in front is one more of size 1"),
        ],
    },
    "padding_mask": {
        "return (tokens != pad_id).unsqueeze(1)": [
            ("n03-22", "axis of size 1 stands for all queries"),
            ("hint", "Compare, then put in an axis of size 1"),
            ("n03-01", "an axis of size 1 put in at place 1"),
        ]
    },
    "decoder_mask": {
        "return mha_lib.padding_mask(tokens, pad_id) & mha_lib.causal_mask(tokens.size(1))": [
            ("n03-tools", "real & past"),
            ("n03-13", "causal_mask(5, device)"),
            ("n03-21", "padding_mask(ids, pad_id=0)"),
            ("hint", "`&` joins two masks"),
        ]
    },
    "window_mask": {
        "places = torch.arange(size)": [_PLACES],
        "distance = places.unsqueeze(1) - places": [("n03-window", "distance = places.unsqueeze(1) - places")],
        "return ((distance >= 0) & (distance < window)).unsqueeze(0)": [
            ("n03-window", "distance.abs() < 3"),
            ("n03-window-after", "where *i - j* is negative"),
            ("hint", "Two conditions, joined cell by cell"),
        ],
    },
    "masked_attention": _ATTEND
    | {
        'scores = scores.masked_fill(mask == 0, float("-inf"))': [
            ("n03-11", 'scores.masked_fill(~allowed, float("-inf"))'),
            ("n03-integers", "ones == 0"),
        ]
    },
    "blocked_rows": {
        "scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5": [_PRODUCT, _TURN, _ROOT, _WIDTH],
        "scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)": [
            ("n03-26", "It fills with the lowest finite number"),
            ("n03-clear", "torch.finfo(scores.dtype).min"),
        ],
        "weights = torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)": [("n03-clear", "weights.masked_fill(~empty, 0.0)")],
        "return weights @ value, weights": [_MIX, _PAIR],
    },
    "bug_masking": {
        "query = torch.full((1, 3, 4), 5.0)": [("n02-09", "torch.full("), ("hint", "Which queries and keys make scores that lie below it")],
        "key = torch.full((1, 3, 4), -5.0)": [("n02-09", "torch.full(")],
        "value = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))": [_DRAW],
        "return query, key, value, mha_lib.causal_mask(3)": [("n03-13", "causal_mask(5, device)")],
    },
    "loop_of_heads": {
        "d_k = x.size(-1) // num_heads": [("hint", "`d_k = d_model // num_heads` features")],
        "outputs = []": [("n04-loop", "one_by_one = [")],
        "for i in range(num_heads):": [("n04-loop", "for head in heads")],
        "own = slice(i * d_k, (i + 1) * d_k)": [("hint", "`w[a:b]` takes rows `a` to `b - 1`"), ("n04-stack", "q[..., 64:128]")],
        "q, k, v = x @ w_q[own].T, x @ w_k[own].T, x @ w_v[own].T": [("n04-stack", "x @ W_q.T, x @ W_k.T, x @ W_v.T")],
        "outputs.append(mha_lib.attention(q, k, v)[0])": [("n04-loop", "head(x, x, x)[0]")],
        "return torch.cat(outputs, dim=-1)": [("n04-loop", "torch.cat(one_by_one, dim=-1)")],
    },
    "split_heads": {
        "B, T, d_model = x.shape": [("n04-wrong-layer", "B, T, d_model = query.shape")],
        "return x.view(B, T, num_heads, d_model // num_heads).transpose(1, 2)": [
            ("n04-07", "cut = q.view(2, 10, 8, 64)"),
            ("n04-07", "cut.transpose(1, 2)"),
        ],
    },
    "merge_heads": {
        "B, h, T, d_k = x.shape": [("n04-wrong-layer", "B, T, d_model = query.shape")],
        "return x.transpose(1, 2).contiguous().view(B, T, h * d_k)": [
            ("n04-13", "back = output.transpose(1, 2)"),
            ("n04-15", "back.contiguous().view(2, 10, 512)"),
        ],
    },
    "heads_attention": {
        "q, k, v = (mha_lib.split_heads(x, num_heads) for x in (query, key, value))": [_SPLIT],
        "if mask is not None:": [("n01-19", "if mask is None")],
        "mask = mask.unsqueeze(1)": [("n04-mask", "mask.unsqueeze(1)")],
        "output, weights = mha_lib.attention(q, k, v, mask)": [
            ("n04-11", "attention(split_heads(q, 8), split_heads(k, 8), split_heads(v, 8))"),
            ("n03-13", "attention(x, x, x, mask)"),
        ],
        "return mha_lib.merge_heads(output), weights": [("n04-15", "merge_heads(output)")],
    },
    "bug_splitting": {"return torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)), 2": [_DRAW]},
}
