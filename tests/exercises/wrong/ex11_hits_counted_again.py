# ruff: noqa
"""Counts the blocks of cached tokens again."""


def my_admit(
    num_prompt_tokens,
    max_output_tokens,
    num_hit_tokens,
    *,
    block_size,
    num_blocks,
    num_free_blocks,
    num_running,
    headroom,
):
    at_most = -(-(num_prompt_tokens + max_output_tokens) // block_size)
    if at_most > num_blocks:
        return "never"
    needed = -(-num_prompt_tokens // block_size)
    kept_free = int(headroom * num_blocks) if num_running else 0
    return "admit" if needed <= num_free_blocks - kept_free else "wait"


EXPECT = "shared and not taken again"  # the message must contain this
