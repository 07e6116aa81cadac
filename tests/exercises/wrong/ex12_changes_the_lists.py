# ruff: noqa
"""Takes requests out of the caller's list."""


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
    while waiting:
        request_id, prompt, computed = waiting.pop(0)
        chunk = min(prompt - computed, left)
        if chunk <= 0 or num_running >= max_num_seqs:
            break
        step[request_id] = chunk
        left -= chunk
        num_running += 1
    return step


EXPECT = "your function changed the list `waiting`"  # the message must contain this
