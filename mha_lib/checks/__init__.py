"""The checks of the exercises: call the one named as the exercise, with your function or class.

A check never raises and answers one of three things: not attempted yet, not yet (and which
mistake it is), passed. With MHA_CHECKS=strict in the environment anything but a pass raises
CheckFailed.
"""

from mha_lib.checks.guard import plain_modes

with plain_modes():  # the inputs of the exercises are made here, whatever device or dtype another cell has set
    from mha_lib.checks import planted
    from mha_lib.checks.exercises import CHAPTERS

from mha_lib.checks.result import CheckFailed, Result

_exercises = {exercise.name: exercise for chapter in CHAPTERS.values() for exercise in chapter}
globals().update(_exercises)

__all__ = ["CHAPTERS", "CheckFailed", "Result", "planted", *_exercises]
