"""The exercises, one file a topic, and the one list of them: by chapter, in the order of its notebook."""

from mha_lib.checks.exercises import attention, decoding, heads, layer, masks, positions, scale, spellings, transfers

CHAPTERS = {
    1: (attention.scores, attention.softmax_rows, attention.attention, attention.single_head),
    2: (scale.score_std, scale.scaling, scale.stable_softmax, scale.bug_scaling),
    3: (masks.causal_mask, masks.padding_mask, masks.decoder_mask, masks.masked_attention, spellings.call_torch, masks.bug_masking),
    4: (heads.split_heads, heads.merge_heads, heads.heads_attention, heads.bug_splitting),
    5: (heads.sum_over_heads, layer.dropout, layer.multi_head_attention, transfers.load_torch_weights, layer.bug_layer),
    6: (transfers.load_cloned, transfers.load_without_bias, spellings.mask_for, spellings.which_spelling),
    9: (positions.sinusoidal, positions.rotate, positions.relative_scores, positions.swap_layout, positions.bug_positions),
    10: (decoding.offset_causal_mask, decoding.step, decoding.cache_bytes, decoding.generate, decoding.bug_decoding),
}
