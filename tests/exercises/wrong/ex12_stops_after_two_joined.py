# ruff: noqa
"""Lets at most two requests join in a step."""


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
        if chunk <= 0 or num_running >= max_num_seqs:
            break
        step[request_id] = chunk
        left -= chunk
        num_running += 1
        if num_running - len(running) == 2:
            break
    return step


EXPECT = "waits and gets no entry from you"  # the message must contain this
