"""A kernel that runs a learner's cells one by one, and that no cell can take along, fill or stop."""

import ast
import json
import queue
import re
import time
from dataclasses import dataclass
from pathlib import Path

PRINTED_LIMIT = 2_000_000  # characters that one cell may print


class KernelEnded(Exception):
    """A cell ended its kernel, or had to be ended with it; the message says which of the two, for a learner."""


@dataclass
class Raised:
    """What a cell raised, and in which of its lines; no temporary file is named."""

    words: str
    line: int | None = None

    @classmethod
    def told(cls, name: str, value: str, traceback: list[str]) -> "Raised":
        """Return what a kernel tells about an exception."""
        plain = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(traceback))
        lines = re.findall(r"(?:Cell In\[\d+\]|<ipython-input[^>]*>), line (\d+)", plain)
        place = re.search(r"\s*\([^()]*\bline (\d+)\)", value or "")
        if place:
            value, lines = value[: place.start()] + value[place.end() :], [place[1]]
        first = (value or "").strip().split("\n")[0]
        return cls(f"{name}: {first}" if first else name, int(lines[-1]) if lines else None)


class Kernel:
    """A fresh kernel in a folder; a context manager that ends it.

    results_of is an expression that gives JSON; it is asked for directly, so that nothing a cell does to print or
    to sys.stdout matters.
    """

    def __init__(self, folder: Path, timeout: float, results_of: str):
        self._folder, self._timeout, self._expression = folder, timeout, results_of
        self._results: dict = {}

    def __enter__(self) -> "Kernel":
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(
            120, kernel_name="python3", cwd=str(self._folder.resolve()), extra_arguments=["--log-level=ERROR"]
        )
        return self

    def __exit__(self, *exception) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, source: str) -> Raised | None:
        """Run a cell; return what it raised, or None.

        Raises:
            KernelEnded: the cell ended the kernel, or could not be stopped.
        """
        return self._ask(source)

    def results(self) -> dict:
        """Return what the expression gives now."""
        self._ask("", silent=True)
        return self._results

    def _ask(self, source: str, silent: bool = False) -> Raised | None:
        asked = self._client.execute(
            source, silent=silent, allow_stdin=False, stop_on_error=False, user_expressions={"results": self._expression}
        )
        raised, printed, stopped = None, 0, ""
        deadline = time.monotonic() + self._timeout
        reply = None
        while reply is None:
            message = self._next(asked)
            if message is not None and message["msg_type"] == "stream":
                printed += len(message["content"].get("text", ""))
            elif message is not None and message["msg_type"] == "error":
                raised = self._told(message["content"])
            reply = self._reply(asked)
            if reply is None and not self._manager.is_alive():
                raise KernelEnded("the cell ends the kernel, as exit() and os._exit() do. Take that out")
            if stopped and time.monotonic() > deadline:
                raise KernelEnded(f"{stopped}, and goes on when it is interrupted")
            if not stopped and (printed > PRINTED_LIMIT or time.monotonic() > deadline):
                stopped = "the cell prints without end" if printed > PRINTED_LIMIT else f"the cell did not end in {self._timeout:g} seconds"
                deadline = time.monotonic() + 5
                self._manager.interrupt_kernel()
        content = reply["content"]
        if any(wish.get("source") == "ask_exit" for wish in content.get("payload", [])):
            raise KernelEnded("the cell ends the kernel, as exit() and os._exit() do. Take that out")
        if content["status"] == "error" and raised is None:
            raised = self._told(content)
        told = content.get("user_expressions", {}).get("results", {})
        if told.get("status") == "ok":
            self._results = json.loads(ast.literal_eval(told["data"]["text/plain"]))
        return Raised(stopped) if stopped else raised

    def _next(self, asked: str) -> dict | None:
        try:
            message = self._client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            return None
        return message if message["parent_header"].get("msg_id") == asked else None

    def _reply(self, asked: str) -> dict | None:
        """Return the reply if it is there; wait for nothing."""
        while True:
            try:
                message = self._client.get_shell_msg(timeout=0)
            except queue.Empty:
                return None
            if message["parent_header"].get("msg_id") == asked:
                return message

    @staticmethod
    def _told(content: dict) -> Raised:
        return Raised.told(content.get("ename", ""), content.get("evalue", ""), content.get("traceback", []))
