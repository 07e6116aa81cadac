"""One load on one KV cache: what `serve` counts."""

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.experiments.serve import serve
from labkit.experiments.waiting_table import waiting_table
from labkit.workload.base import RequestSpec
from labkit.workload.synthetic import synthetic_load


@pytest.fixture(params=[0, 1])
def requests(request):
    load = synthetic_load("azure-conv", 80, np.random.default_rng(request.param))
    return [r for r in load if r.num_prompt_tokens + r.num_output_tokens <= 4096]


def run(kv, requests, **options):
    return serve(kv, requests, capacity_tokens=40_000, bytes_per_token=2, max_model_len=4096, **options)


def test_every_request_is_served_whole_on_every_cache(requests):
    for kv, options in {"paged": {}, "grow": {}, "reserve-max": {"max_model_len": 4096}}.items():
        served = run(kv, requests, kv_options=options)
        got = {name: record.num_output_tokens for name, record in served.recorder.requests.items()}
        assert got == {r.request_id: r.num_output_tokens for r in requests}, kv
        served.kv.check_integrity()
        assert served.kv.stats().num_requests == 0, kv


def test_token_share_is_one_minus_the_waste(requests):
    paged = run("paged", requests, every=1)
    reserved = run("reserve-max", requests, every=1, kv_options={"max_model_len": 4096})
    assert reserved.token_share < 0.5 < 0.95 < paged.token_share <= 1.0


def test_answers_end_at_the_limit_and_prompts_without_room_are_refused():
    load = [
        RequestSpec("fits", 0.0, 4000, 96, 96),
        RequestSpec("cut", 0.0, 4000, 97, 97),
        RequestSpec("no room", 0.0, 4096, 1, 1),
    ]
    served = run("paged", load)
    assert served.recorder.requests["fits"].num_output_tokens == 96
    assert served.recorder.requests["cut"].num_output_tokens == 96
    assert served.totals.num_refused == 1


def test_a_run_can_be_stopped_to_look_at_the_queue(requests):
    tight = {"capacity_tokens": 6000, "bytes_per_token": 2, "max_model_len": 4096}
    stopped = serve("paged", [_at_once(r) for r in requests], **tight, max_steps=40)
    assert stopped.totals.num_steps == 40
    table = waiting_table(stopped.scheduler)
    assert 0 < len(table) <= 10
    assert table["can_ever_fit"].all()
    calm = serve("paged", requests[:1], **tight)
    assert waiting_table(calm.scheduler).empty


def test_an_unknown_cache_is_named(requests):
    with pytest.raises(LabError, match="paged"):
        run("luck", requests)


def _at_once(r):
    return RequestSpec(r.request_id, 0.0, r.num_prompt_tokens, r.num_output_tokens, r.num_output_tokens)
