"""The exercises, one file a topic, and the one list of them: by chapter, in the order of its notebook."""

from mha_lib.checks.exercises import (
    attention,
    blockwise,
    cost,
    decoding,
    grouped,
    heads,
    layer,
    masks,
    positions,
    real,
    scale,
    spellings,
    trained,
    transfers,
    two_layers,
)

CHAPTERS = {
    1: (attention.scores, attention.softmax_rows, attention.attention, attention.single_head),
    2: (scale.score_std, scale.divisor, scale.scaling, scale.stable_softmax, scale.bug_scaling),
    3: (
        masks.causal_mask,
        masks.padding_mask,
        masks.decoder_mask,
        masks.window_mask,
        masks.masked_attention,
        masks.blocked_rows,
        masks.bug_masking,
    ),
    4: (heads.loop_of_heads, heads.split_heads, heads.merge_heads, heads.heads_attention, heads.bug_splitting),
    5: (heads.sum_over_heads, layer.dropout, layer.multi_head_attention, transfers.load_torch_weights, spellings.call_torch, layer.bug_layer),
    6: (transfers.load_cloned, transfers.load_without_bias, spellings.mask_for, spellings.which_spelling),
    7: (cost.multiplications, cost.longest_text, cost.attention_in_chunks, cost.bug_dropout),
    8: (trained.looks_back, trained.switch_off, trained.accuracy_without, trained.bug_averaging, trained.two_diagonals),
    9: (positions.sinusoidal, positions.rotate, positions.relative_scores, positions.swap_layout, positions.bug_positions),
    10: (decoding.offset_causal_mask, decoding.step, decoding.cache_bytes, decoding.generate, decoding.bug_decoding),
    11: (grouped.repeat_heads, grouped.grouped_attention, grouped.average_heads, grouped.bug_grouped),
    12: (blockwise.running_softmax, blockwise.merge, blockwise.blockwise, blockwise.blocks_to_visit, blockwise.bug_blockwise),
    13: (two_layers.block, two_layers.induction_score, two_layers.switch_off_and_see, two_layers.bug_block),
    14: (real.load_real_weights, real.my_attention, real.find_head, real.prune, real.most_similar),
}
