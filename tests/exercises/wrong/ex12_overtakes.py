# ruff: noqa
"""Skips a prompt that does not fit whole and takes the next."""


def my_plan_step(running, waiting, budget, max_num_seqs):
    step, left = {}, budget
    for request_id, prompt, computed in running:
        if computed >= prompt:
            step[request_id] = 1
            left -= 1
    for request_id, prompt, computed in running:
        chunk = min(prompt - computed, left)
        if chunk > 0:
            step[request_id] = chunk
            left -= chunk
    num_running = len(running)
    for request_id, prompt, computed in waiting:
        chunk = min(prompt - computed, left)
        if num_running >= max_num_seqs:
            break
        if chunk <= 0 or (chunk < prompt - computed and step):
            continue
        step[request_id] = chunk
        left -= chunk
        num_running += 1
    return step


EXPECT = "overtake"  # the message must contain this
