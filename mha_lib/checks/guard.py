"""Running a learner's code: cut off in time, silent, and with the global state put back."""

import contextlib
import ctypes
import io
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

TIME_LIMIT = 4.0  # seconds that a learner's code has for all the inputs of one check together


class TimeUp(BaseException):
    """Raised inside code that runs too long; no `except Exception` of its catches it."""


@dataclass
class Call:
    """What came of one call: a value, or the exception that ended it."""

    value: object = None
    error: BaseException | None = None


class Guard:
    """Calls functions of a learner; a context manager that puts the global state back."""

    def __enter__(self) -> "Guard":
        self._left = TIME_LIMIT
        self._stack = contextlib.ExitStack()
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        self._stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        self._stack.callback(random.setstate, random.getstate())
        if "numpy" in sys.modules:
            numpy_random = sys.modules["numpy"].random
            self._stack.callback(numpy_random.set_state, numpy_random.get_state())
        self._stack.enter_context(_defaults())
        return self

    def __exit__(self, *exception) -> None:
        self._stack.close()

    def call(self, function: Callable, *args, **kwargs) -> Call:
        """Call a function; every exception but KeyboardInterrupt is returned, not raised."""
        seed()
        with _defaults(), _silence(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.monotonic()
            try:
                with _alarm(self._left):
                    return Call(value=function(*args, **kwargs))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                return Call(error=error)
            finally:
                # Only the learner's own seconds count, not those of the comparison, on however slow a machine.
                self._left -= time.monotonic() - start


def seed() -> None:
    """Seed the generators in use.

    torch.manual_seed does more: for each kind of device not in use it keeps a stack trace, which takes longer than a check.
    """
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


def where(error: BaseException) -> str:
    """Return the learner's own line that raised, or ""."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.line and not _is_library(frame.filename)
    ]
    return f"{frames[-1].line}   (line {frames[-1].lineno} of your cell)" if frames else ""


def from_library(error: BaseException) -> bool:
    """Say whether an exception was raised by a library rather than by a learner's own line."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _is_library(frames[-1].filename)


def _is_library(filename: str) -> bool:
    return "site-packages" in filename or "dist-packages" in filename or "mha_lib" in filename


@contextlib.contextmanager
def _defaults():
    """Set the defaults that a check relies on, and put back what was set before."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    threads, anomaly = torch.get_num_threads(), torch.is_anomaly_enabled()
    torch.set_default_dtype(torch.float32)
    if device.type != "cpu":
        torch.set_default_device(None)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.is_anomaly_enabled() != anomaly:
            torch.autograd.set_detect_anomaly(anomaly)


@contextlib.contextmanager
def _silence():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _alarm(seconds: float):
    """Raise TimeUp in the code within after some seconds."""
    seconds = max(seconds, 0.05)
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        rung = False

        def ring(signum, frame):
            nonlocal rung
            if _is_ours(frame):
                return
            if rung:
                _strike_again(frame)
            rung = True
            raise TimeUp

        previous, trace = signal.signal(signal.SIGALRM, ring), sys.gettrace()
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)  # rings on, because code may catch everything
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.settrace(trace)
            signal.signal(signal.SIGALRM, previous)
    else:
        ident = ctypes.c_ulong(threading.get_ident())
        timer = threading.Timer(
            seconds, ctypes.pythonapi.PyThreadState_SetAsyncExc, (ident, ctypes.py_object(TimeUp))
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename in (__file__, contextlib.__file__)


def _strike_again(frame: FrameType) -> None:
    """Raise TimeUp also in the line that handles it, which stands outside its try."""

    def strike(at: FrameType, event: str, arg: object):
        if not _is_ours(at) and event != "exception":
            raise TimeUp
        return strike

    sys.settrace(strike)
    while frame is not None and not _is_ours(frame):
        frame.f_trace = strike
        frame = frame.f_back
