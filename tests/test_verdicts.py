"""Verdicts that point at a line, explain an exception, say how numbers are related, and never lie."""

import linecache
import threading

import pytest
import torch
from torch import nn

from mha_lib import checks
from mha_lib.checks import trace
from tests.answers import PRELUDE
from tests.conftest import missing_model


def load(source: str, name: str):
    """Run a source as a notebook does: its lines can be looked up."""
    file = f"<cell {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope: dict = {}
    exec(PRELUDE, scope)
    exec(compile(source, file, "exec"), scope)
    return scope[name]


SHARED_OUT = "scores = query @ key.mT / query.size(-1) ** 0.5\n    "


def judge(source: str, check: str = "attention", name: str = "attention"):
    return getattr(checks, check).judge(load(source, name))


ATTENTION = """def attention(query, key, value):
    scores = query @ key.transpose(-2, -1)
    scores = scores / query.size(-1) ** 0.5
    weights = {weights}
    output = weights @ value
    return output, weights
"""


def test_the_verdict_points_at_the_first_line_off_the_way():
    result = judge(ATTENTION.format(weights="scores.softmax(-1).pow(1.5)"))
    assert result.misconception == "first_wrong_step"
    assert result.facts["line 2, scores"] == "the dot products, right"
    assert result.facts["line 3, scores"] == "the divided scores, right"
    assert result.facts["line 4, weights"].startswith("the first value that is no step of the way")
    assert "line 4, weights" in result.message


def test_a_line_is_described_by_what_can_be_seen():
    result = judge(ATTENTION.format(weights="(1.3 * scores).softmax(-2).pow(1.0)"))
    assert "each column sums to 1, over the queries" in result.facts["line 4, weights"]


def test_a_return_that_leaves_the_way_is_found():
    source = ATTENTION.format(weights="scores.softmax(-1)").replace("return output, weights", "return output.cumsum(-1), weights")
    assert judge(source).facts["line 6, return"].startswith("the first value")


TABLE = """def sinusoidal(length, d_model):
    table = torch.zeros(length, d_model)
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos() ** 3
    return table
"""


def test_a_tensor_that_is_still_written_to_is_not_off_the_way():
    result = judge(TABLE, "sinusoidal", "sinusoidal")
    assert result.facts["line 3, angle"] == "the angles of the sines, right"
    assert "line 5, table" in result.message and "line 2, table" not in result.facts


SIBLINGS = """import mha_lib
def relative_scores(query, key, num_heads):
    q, k = mha_lib.split_heads(query, num_heads), mha_lib.split_heads(key, num_heads)
    gap = k.size(2) - q.size(2)
    q = mha_lib.rotate(q + 1, torch.arange(gap, k.size(2)))
    k = mha_lib.rotate(k, torch.arange(k.size(2)))
    return q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
"""


def test_a_wrong_value_is_found_also_where_its_sibling_comes_out_right_after_it():
    result = judge(SIBLINGS, "relative_scores", "relative_scores")
    assert "line 5, q" in result.message and "Up to there" not in result.message


def test_halves_of_an_input_are_not_off_the_way():
    source = "def rotate(x, positions):\n    a, b = x.chunk(2, -1)\n    angle = positions[:, None] / 10000 ** (torch.arange(0, 8, 2) / 8)\n    return torch.cat([a * angle.cos(), b - 1], -1)\n"
    result = judge(source, "rotate", "rotate")
    assert "line 2, a" not in result.facts and "line 4, return" in result.facts


def test_what_was_copied_and_what_was_cut_is_shown():
    load = "def load_real_weights(layer, theirs):\n    for mine, his in zip((layer.w_q, layer.w_k, layer.w_v, layer.w_o), (theirs.self.query, theirs.self.key, theirs.self.key, theirs.output.dense)):\n        mine.weight.data.copy_(his.weight.data)\n        mine.bias.data.copy_(his.bias.data)\n    layer.w_v.bias.data.copy_(theirs.self.value.bias.data)\n"
    prune = "def prune(model, heads):\n    for layer, head in heads:\n        model.encoder.layer[layer].attention.output.dense.weight.data[:, head] = 0\n        model.encoder.layer[layer].attention.output.dense.weight.data[:, head + 1] = 0\n"
    if missing_model():
        pytest.skip(missing_model())
    assert judge(load, "load_real_weights", "load_real_weights").facts["w_v.weight"] == "the weight of self.key"
    assert "columns 2–3: 0 now" in judge(prune, "prune", "prune").facts["you changed"]


def test_a_class_is_watched_by_head_with_its_helpers():
    source = """class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        assert d_model % num_heads == 0
        self.h, self.d_k = num_heads, d_model // num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.view(x.size(0), -1, self.h, self.d_k).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.split(self.w_q(query)), self.split(self.w_k(key)), self.split(self.w_v(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        weights = self.dropout(scores.softmax(-1))
        mixed = (weights @ v).tanh()
        return self.w_o(mixed.transpose(1, 2).flatten(2))
"""
    result = judge(source, "multi_head_attention", "MultiHeadAttention")
    assert result.misconception == "first_wrong_step"
    assert result.facts["line 17, weights"] == "the weights, right"
    assert result.facts["line 18, mixed"].startswith("the first value")


def test_watching_changes_nothing_and_puts_the_trace_function_back():
    import sys

    def before(frame, event, argument):
        return None

    old = sys.gettrace()
    sys.settrace(before)
    try:
        judge(ATTENTION.format(weights="scores.softmax(-1).pow(1.5)"))
        assert sys.gettrace() is before
    finally:
        sys.settrace(old)


def test_watching_stops_after_a_while():
    def slow(x):
        for _ in range(10**5):
            x = x + 1
        return x

    values = trace.watch(slow, torch.zeros(2))
    assert len(values) <= trace.MOST + 1


def softmax_rows(line: str):
    return judge(f"def softmax_rows(scores):\n    w = scores.softmax(-1)\n    return {line}\n", "softmax_rows", "softmax_rows")


@pytest.mark.parametrize(
    "line, id, words",
    [
        ("-w", "negated", "exactly the negative"),
        ("2 * w", "constant_multiple", "times 2"),
        ("w + 1", "constant_offset", "plus 1"),
        ("w.double()", "wrong_dtype", "torch.float64"),
        ("w.round(decimals=3)", "rounded", "3 decimals"),
        ("scores", "input_returned", "one of the inputs"),
        ("w.flip(-1)", "another_order", "in reverse"),
        ("torch.cat([w[..., :1, :], w[..., 1:, :] * 0.5], -2)", "wrong_in_places", "only at 0"),
        ("w[..., :2]", "part_only", "the first 2 of 5"),
        ("torch.ones_like(w)", "all_alike", "the same everywhere: 1"),
        ("w.unsqueeze(0)", "axes_of_size_one", "too many"),
    ],
)
def test_a_relation_between_the_results_is_said(line, id, words):
    result = softmax_rows(line)
    assert result.misconception == id and words in result.message, str(result)


def test_swapped_axes_are_said():
    result = judge("def split_heads(x, num_heads):\n    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2).flip(1)\n", "split_heads", "split_heads")
    assert result.misconception == "another_order" and "in reverse" in result.message


def test_close_numbers_are_told_apart():
    result = softmax_rows("w + 3e-5 * (torch.arange(w.size(-1)) == 0)")
    assert result.status == "failed" and result.facts["yours"] != result.facts["expected"]


def test_two_mistakes_at_once_are_both_named():
    result = judge("def attention(query, key, value):\n    w = (query @ key.transpose(-2, -1)).softmax(-2)\n    return w @ value, w\n")
    assert set(result.misconception.split("+")) == {"scale_missing", "att_softmax_over_queries"}


EXCEPTIONS = [
    ("if query: pass", "truth_of_tensor"),
    ("scores = query @ key.transpose(-2, -1) / query.size(-1) ^ 2", "caret_for_power"),
    ("query @ key.T", "sizes_do_not_meet|refused_by_library"),
    ("query.requires_grad_().numpy()", "numpy_on_gradients"),
    ("query.view(7, 7)", "sizes_do_not_multiply"),
    ("query.transpose(1, 2).view(-1)", "view_refused"),
    ("query.softmax(5)", "axis_does_not_exist"),
    ("torch.sqrt(query.size(-1))", "scale_torch_sqrt_int"),
    ("nn.Linear(99, 4)(query)", "linear_does_not_fit"),
    ("torch.cat([query, key[..., :1]], -2)", "joined_on_wrong_axis"),
    ("query.split([1, 1], -1)", "split_takes_a_size"),
    ("dot(query, key)", "name_unknown"),
    ("query(key)", "tensor_called"),
    ("0.5(query)", "number_called"),
    ("a, b = query.shape", "unpacking"),
    ("query.transope(0, 1)", "no_such_attribute"),
    ("raise ValueError('no')", "refused_by_you"),
    ("query.masked_fill(query > 0, '-inf')", "fill_is_text"),
    ("query[query[:1] > 0]", "mask_as_index"),
    ("torch.cat(query, -1)", "join_wants_a_list"),
    ("math.sqrt(query.shape)", "number_wanted"),
    ("query.repeat(2, 1)", "repeat_axes"),
    ("query.split(0, 1)", "pieces_of_nothing"),
    ("torch.bool(query)", "not_callable"),
    ("(query is key).unsqueeze(1)", "one_truth_for_a_tensor"),
    ("(query > 0) @ (key > 0).mT", "product_of_integers"),
    ("query in nn.Linear(4, 4)", "nothing_to_search"),
    ("query.requires_grad_().chunk(2, -1)[0].add_(1)", "piece_changed_in_place"),
    ("math.cos(query)", "one_number_wanted"),
    ("query[:, 0] = query", "written_axes"),
    ("query.expand(7, 3, 4)", "stretched_sizes"),
    ("torch.cat([query, query[0]])", "joined_axes_differ"),
    ("torch.cat([query, 0])", "joined_no_tensor"),
    ("query.size(0).shape", "no_tensor_here"),
    ("query.median(-1).flatten()", "max_returns_pair"),
    ("torch.ones(query.size(0) / 2, 3)", "sizes_are_not_numbers"),
    ("query[:, 3]", "index_behind_the_end"),
]


@pytest.mark.parametrize("line, ids", EXCEPTIONS, ids=[i for _, i in EXCEPTIONS])
def test_an_exception_is_explained_with_its_line_and_shapes(line, ids):
    result = judge(f"def attention(query, key, value):\n    {line}\n    return query, key\n")
    assert result.misconception in ids.split("|"), str(result)
    assert result.facts["raised by"].startswith(line)
    if "query" in line:
        assert "query (2, 3, 4)" in result.facts["there"]


def test_a_whole_message_is_shown_where_its_second_line_says_what_is_wrong():
    source = "def load_torch_weights(mine, torch_mha):\n    mine.w_q.load_state_dict({'weight': torch_mha.in_proj_weight[:12], 'bias': torch_mha.in_proj_bias[:12], 'more': 1})\n"
    result = judge(source, "load_torch_weights", "load_torch_weights")
    assert result.misconception == "state_dict_names" and "more" in result.facts["yours"]


def test_a_word_of_pytorch_for_what_it_cannot_do_is_no_stub():
    assert judge("def attention(query, key, value):\n    return query ^ 0.5, key\n").status == "failed"
    assert judge("def attention(query, key, value):\n    return query & key, key\n").status == "failed"


def test_a_stub_left_behind_is_named():
    stub = "def scores(query, key):\n    raise NotImplementedError()\n"
    assert judge(stub, "scores", "scores").status == "not attempted"
    above = "def scores(query, key):\n    raise NotImplementedError()\n    return query @ key.mT\n"
    below = "def scores(query, key):\n    s = query @ key.mT\n    raise NotImplementedError()\n"
    for source in (above, below):
        assert judge(source, "scores", "scores").misconception == "stub_left"


class Odd:
    def __eq__(self, other):
        raise ValueError("no comparison")

    __hash__ = None

    def __repr__(self):
        raise ValueError("no words")

    def __len__(self):
        raise ValueError("no length")


class Silent(Exception):
    def __str__(self):
        raise ValueError("no message")


class Mine(torch.Tensor):
    pass


def generator():
    yield 1


def raising():
    raise Silent


def leave():
    import sys

    sys.exit(3)


def deep():
    return deep()


def left_running():
    threading.Thread(target=threading.Event().wait, args=(5,), daemon=True).start()
    return torch.ones(1)


EVERY_KIND = (
    checks.attention,
    checks.score_std,
    checks.causal_mask,
    checks.single_head,
    checks.multi_head_attention,
    checks.load_torch_weights,
    checks.call_torch,
    checks.which_spelling,
    checks.bug_splitting,
)
ODD = {
    "generator": generator,
    "list of nothing": lambda: [],
    "object": Odd,
    "pair of objects": lambda: (Odd(), Odd()),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse pair": lambda: (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()),
    "meta": lambda: (torch.empty(2, 3, 6, device="meta"), torch.empty(2, 3, 5, device="meta")),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8),
    "complex": lambda: (torch.ones(2, 3, 6) * 1j, torch.ones(2, 3, 5) * 1j),
    "subclass": lambda: (torch.ones(2, 3, 6).as_subclass(Mine), torch.ones(2, 3, 5).as_subclass(Mine)),
    "nothing": lambda: torch.empty(0),
    "a number": lambda: 3,
    "a class": lambda: nn.Linear,
    "a string": lambda: "weights",
    "NaN": lambda: float("nan"),
    "exception without words": raising,
    "exit": leave,
    "recursion": deep,
    "a thread left running": left_running,
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("exercise", EVERY_KIND, ids=lambda e: e.name)
def test_whatever_comes_back_is_judged(exercise, make):
    if hasattr(exercise, "roles"):
        answer = type("Layer", (nn.Module,), {"__init__": lambda self, *a, **k: nn.Module.__init__(self), "forward": lambda self, *a, **k: make()})
    else:
        answer = lambda *arguments, **named: make()  # noqa: E731
    result = exercise.judge(answer)
    assert result.status == "failed" and result.message and str(result) and result._repr_html_()


def test_stop_passes_through():
    def stop(query, key, value):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checks.attention.judge(stop)


RIGHT = "def attention(query, key, value):\n    w = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.size(-1)), -1)\n    return w @ value, w\n"


def test_open_modes_change_no_verdict():
    answer = load(RIGHT, "attention")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert checks.attention.judge(answer).status == "passed"
    with torch.device("meta"):
        assert checks.attention.judge(answer).status == "passed"
        assert torch.ones(1).device.type == "meta"
    with torch.inference_mode():
        assert checks.attention.judge(answer).status == "passed"


def test_checks_in_several_threads_leave_printing_as_it_was():
    import sys

    out = sys.stdout
    threads = [threading.Thread(target=checks.attention.judge, args=(load(RIGHT, "attention"),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stdout is out


def test_what_an_answer_prints_is_shown_once_and_shortened():
    loud = RIGHT.replace("    w =", "    print('scores of', tuple(query.shape))\n    w =")
    result = judge(loud)
    assert result.status == "passed" and result.printed == "scores of (2, 3, 4)"
    assert str(result).count("scores of") == 1 and "you printed" in str(result)
    endless = judge(RIGHT.replace("    w =", "    print('x' * 10**6)\n    w ="))
    assert len(endless.printed) < 2000 and "more characters" in endless.printed


def test_an_answer_is_run_once_on_every_input():
    calls = []

    def attention(query, key, value):
        calls.append(1)
        return value, query

    checks.attention.judge(attention)
    assert len(calls) <= len(checks.attention.probes) + 1  # once more, watched


@pytest.mark.parametrize(
    "check, lines, says",
    [
        ("scaling", "scores = query @ key.mT / query.size(-1) ** 0.5\n    weights = scores.softmax(-1)", "you divide the scores once they are there"),
        ("scaling", "scores = query / query.size(-1) ** 0.5 @ key.mT\n    weights = scores.softmax(-1)", ""),
        ("masked_attention", f"{SHARED_OUT}w = scores.softmax(-1) * mask\n    weights = w / w.sum(-1, keepdim=True)", "the softmax has rounded their weights to 0"),
        ("masked_attention", f"{SHARED_OUT}weights = scores.masked_fill(mask == 0, -torch.inf).softmax(-1)", ""),
    ],
)
def test_a_remark_stands_beside_a_pass(check, lines, says):
    signature = ", ".join(getattr(checks, check).signature)
    result = judge(f"def attention({signature}):\n    {lines}\n    return weights @ value, weights\n", check)
    assert result.status == "passed" and result.misconception is None
    assert says in " ".join(result.message.split()) and bool(result.facts) == bool(says), str(result)


def test_read_again_is_a_link_to_the_heading():
    html = softmax_rows("w * 3")._repr_html_()
    assert 'href="../notebooks/01_single_head_attention.ipynb#Softmax-turns-a-row-of-scores-into-weights"' in html


def test_an_exception_inside_a_called_function_says_what_the_function_wants():
    source = "import mha_lib\n\n\ndef decoder_mask(tokens, pad_id):\n    return mha_lib.causal_mask(tokens)\n"
    result = judge(source, "decoder_mask", "decoder_mask")
    assert result.misconception == "truth_of_tensor" and "wants one number" in result.message


def test_a_mistake_is_named_where_the_answer_raises_on_other_inputs():
    result = judge("def scores(query, key):\n    b, t, d = query.shape\n    return query @ key.reshape(b, d, -1)\n", "scores", "scores")
    assert result.misconception == "scores_key_reshaped" and "too many values to unpack" in result.facts["and on"]


def test_a_tensor_that_is_filled_later_and_a_piece_of_an_input_are_no_wrong_steps():
    source = "def softmax_rows(scores):\n    out = torch.zeros_like(scores)\n    for i, row in enumerate(scores):\n        e = row.exp() ** 2\n        out[i] = e / e.sum(-1, keepdim=True)\n    return out\n"
    result = judge(source, "softmax_rows", "softmax_rows")
    assert "line 4, e" in result.message, str(result)


def test_an_input_that_was_changed_on_the_way_is_shown():
    centred = "    value = value - value.mean(-2, keepdim=True)\n    scores = query"
    result = judge(ATTENTION.format(weights="scores.softmax(-1)").replace("    scores = query", centred))
    assert result.facts["line 2, value"] == "an input, changed: no step of the way"
    assert "up to there" not in result.message, str(result)


def test_very_low_scores_are_told_apart():
    source = "def attention(query, key, value, mask):\n    s = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5\n    e = (s / 1000).exp() * mask\n    w = e / e.sum(-1, keepdim=True)\n    return w @ value, w\n"
    assert "the dot products, right" not in str(judge(source, "masked_attention", "attention"))


def test_two_mistakes_are_shown_on_an_input_with_both():
    source = """class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.0):
        super().__init__()
        assert d_model % num_heads == 0
        self.h = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value)))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1), -1e9)
        mixed = self.dropout(scores.softmax(-1)) @ v
        return self.w_o(mixed.reshape(query.shape))
"""
    result = judge(source, "multi_head_attention", "MultiHeadAttention")
    assert set(result.misconception.split("+")) == {"mha_merge_view", "mha_mask_inverted_for_sdpa"}
    assert "mask" in result.facts["seen on"]


def test_a_class_without_its_parents_constructor_is_explained():
    source = "class MultiHeadAttention(nn.Module):\n    def __init__(self, d_model, num_heads, dropout=0.0):\n        self.w_q = nn.Linear(d_model, d_model)\n"
    assert judge(source, "multi_head_attention", "MultiHeadAttention").misconception == "super_missing"
