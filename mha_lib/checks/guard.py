"""Running a learner's code: cut off in time, its prints kept, and the global state put back."""

import contextlib
import ctypes
import io
import linecache
import random
import signal
import sys
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch

TIME_LIMIT = 4.0  # seconds of processor time that a learner's code has for all the inputs of one check together
WAITING = 12.0  # seconds after which code that only waits is stopped
PRINTED = 1500  # characters of what a learner prints that are kept

_one_at_a_time = threading.RLock()  # the state that is put back belongs to the whole process
_STDLIB = sysconfig.get_paths()["stdlib"]


class TimeUp(BaseException):
    """Raised inside code that runs too long; no `except Exception` of its catches it."""


@dataclass
class Call:
    """What came of one call: a value, or the exception that ended it; and what it printed."""

    value: object = None
    error: BaseException | None = None
    printed: str = ""


class Guard:
    """Calls functions of a learner; a context manager that puts the global state back."""

    printed = ""

    def __enter__(self) -> "Guard":
        _one_at_a_time.acquire()
        self._left = TIME_LIMIT
        self._stack = contextlib.ExitStack()
        self._stack.callback(_one_at_a_time.release)
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        self._stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        self._stack.callback(random.setstate, random.getstate())
        if "numpy" in sys.modules:
            numpy_random = sys.modules["numpy"].random
            self._stack.callback(numpy_random.set_state, numpy_random.get_state())
        self._stack.enter_context(plain_modes())
        return self

    def __exit__(self, *exception) -> None:
        self._stack.close()

    def call(self, function: Callable, *args, **kwargs) -> Call:
        """Call a function; every exception but KeyboardInterrupt is returned, not raised."""
        seed()
        call, out = Call(), _Short()
        with plain_modes(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.thread_time()
                try:
                    with _alarm(self._left):
                        call.value = function(*args, **kwargs)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    call.error = error
                finally:
                    # Only the learner's own seconds count, not those of the comparison or of other programs.
                    self._left -= time.thread_time() - start
        call.printed = out.getvalue()
        self.printed = self.printed or call.printed
        return call


class _Short(io.StringIO):
    """Keeps the first characters that are written, and counts the rest."""

    dropped = 0

    def write(self, text: str) -> int:
        room = max(PRINTED - self.tell(), 0)
        super().write(text[:room])
        self.dropped += len(text) - min(room, len(text))
        return len(text)

    def getvalue(self) -> str:
        kept = super().getvalue().rstrip("\n")
        return f"{kept} … and {self.dropped} more characters" if self.dropped else kept


def seed() -> None:
    """Seed the generators in use.

    torch.manual_seed does more: for each kind of device not in use it keeps a stack trace, which takes longer than a
    check.
    """
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


def own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of the learner's own code in an exception's traceback, each with its line."""
    return [(f, n) for f, n in traceback.walk_tb(error.__traceback__) if not is_library(f.f_code.co_filename)]


def line_of(frame: FrameType, number: int) -> str:
    """Return the text of a line of the learner's code, or ""."""
    return linecache.getline(frame.f_code.co_filename, number).strip()


def is_library(filename: str) -> bool:
    """Say whether a file belongs to Python, to a package or to the course, and not to the learner."""
    if any(
        part in filename for part in ("site-packages", "dist-packages", "mha_lib", "<frozen", "<__array_function__")
    ):
        return True
    return filename.startswith(_STDLIB)


@contextlib.contextmanager
def plain_modes():
    """Set aside every mode that changes what code computes, and put back what was set before."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    threads, anomaly = torch.get_num_threads(), torch.is_anomaly_enabled()
    torch.set_default_dtype(torch.float32)
    with contextlib.ExitStack() as stack:
        stack.callback(_put_back_device, device)
        if device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            if torch.is_anomaly_enabled() != anomaly:
                torch.autograd.set_detect_anomaly(anomaly)


def _clock_of_this_thread() -> Callable[[], float]:
    """Return a clock of this thread's processor time that other threads can read too, where there is one."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return lambda: time.clock_gettime(clock)
    return time.process_time


def _put_back_device(device: torch.device) -> None:
    if torch.get_default_device() != device:
        torch.set_default_device(None if device.type == "cpu" else device)


@contextlib.contextmanager
def _alarm(seconds: float):
    """Raise TimeUp in the code within after some seconds of processor time, or when it only waits."""
    seconds, clock = max(seconds, 0.05), _clock_of_this_thread()
    began, start = clock(), time.monotonic()

    def is_over() -> bool:
        used, passed = clock() - began, time.monotonic() - start
        return used > seconds or (passed > WAITING and used < 0.05 * passed)

    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        rung = False

        def ring(signum, frame):
            nonlocal rung
            if _is_ours(frame) or not is_over():
                return
            if rung:
                _strike_again(frame)
            rung = True
            raise TimeUp

        previous, trace = signal.signal(signal.SIGALRM, ring), sys.gettrace()
        signal.setitimer(signal.ITIMER_REAL, min(seconds, 0.1), 0.1)  # rings on, because code may catch everything
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.settrace(trace)
            signal.signal(signal.SIGALRM, previous)
    else:
        done, ident = threading.Event(), ctypes.c_ulong(threading.get_ident())

        def watch():
            while not done.wait(0.1):
                if is_over() and not done.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(TimeUp))
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            done.set()


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
