# ruff: noqa
"""Goes through the running requests once, prefills before decodes if they stand there."""


def my_plan_step(running, waiting, budget, max_num_seqs):
    step, left = {}, budget
    for request_id, prompt, computed in running:
        chunk = 1 if computed >= prompt else min(prompt - computed, left)
        if chunk > 0:
            step[request_id] = chunk
            left -= chunk
    num_running = len(running)
    for request_id, prompt, computed in waiting:
        chunk = min(prompt - computed, left)
        if chunk <= 0 or num_running >= max_num_seqs:
            break
        step[request_id] = chunk
        left -= chunk
        num_running += 1
    return step


EXPECT = "decodes take their tokens first"  # the message must contain this
