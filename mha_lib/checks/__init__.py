"""The checks of the exercises: call the one named as the exercise, with your function or class.

A check never raises and answers one of three things: not attempted yet, not yet (and which
mistake it is), passed. With MHA_CHECKS=strict in the environment anything but a pass raises
CheckFailed.
"""

from mha_lib.checks.chapter_01 import attention, scores, single_head, softmax_rows
from mha_lib.checks.result import CheckFailed, Result

__all__ = ["CheckFailed", "Result", "attention", "scores", "single_head", "softmax_rows"]
