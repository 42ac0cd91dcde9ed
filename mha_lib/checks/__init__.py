"""The checks of the exercises: call the one named as the exercise, with your function or class.

A check never raises and answers one of three things: not attempted yet, not yet (and which
mistake it is), passed. With MHA_CHECKS=strict in the environment anything but a pass raises
CheckFailed.
"""

from mha_lib.checks import planted
from mha_lib.checks.chapter_01 import attention, scores, single_head, softmax_rows
from mha_lib.checks.chapter_02 import bug_scaling, scaling, score_std, stable_softmax
from mha_lib.checks.chapter_03 import bug_masking, call_torch, causal_mask, decoder_mask, masked_attention, padding_mask
from mha_lib.checks.chapter_04 import bug_splitting, heads_attention, merge_heads, split_heads
from mha_lib.checks.chapter_05 import bug_layer, dropout, load_torch_weights, multi_head_attention, sum_over_heads
from mha_lib.checks.chapter_06 import load_cloned, load_without_bias, mask_for, which_spelling
from mha_lib.checks.result import CheckFailed, Result

# The exercises of each chapter, in the order of its notebook.
CHAPTERS = {
    1: (scores, softmax_rows, attention, single_head),
    2: (score_std, scaling, stable_softmax, bug_scaling),
    3: (causal_mask, padding_mask, decoder_mask, masked_attention, call_torch, bug_masking),
    4: (split_heads, merge_heads, heads_attention, bug_splitting),
    5: (sum_over_heads, dropout, multi_head_attention, load_torch_weights, bug_layer),
    6: (load_cloned, load_without_bias, mask_for, which_spelling),
}

__all__ = [
    "CHAPTERS",
    "CheckFailed",
    "Result",
    "attention",
    "bug_layer",
    "bug_masking",
    "bug_scaling",
    "bug_splitting",
    "call_torch",
    "causal_mask",
    "decoder_mask",
    "dropout",
    "heads_attention",
    "load_cloned",
    "load_torch_weights",
    "load_without_bias",
    "mask_for",
    "masked_attention",
    "merge_heads",
    "multi_head_attention",
    "padding_mask",
    "planted",
    "scaling",
    "score_std",
    "scores",
    "single_head",
    "softmax_rows",
    "split_heads",
    "stable_softmax",
    "sum_over_heads",
    "which_spelling",
]
