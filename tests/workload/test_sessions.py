"""Sessions: every turn repeats what was said before it, and nothing else is shared."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.workload.sessions import SessionLoad, session_load


def test_turns_grow_and_share_only_what_they_should():
    load = session_load(SessionLoad(), 200, np.random.default_rng(5))
    assert load == session_load(SessionLoad(), 200, np.random.default_rng(5))
    assert [r.arrival_s for r in load] == sorted(r.arrival_s for r in load)
    sessions: dict[str, list] = {}
    for request in sorted(load, key=lambda r: int(r.kind.split()[1])):
        sessions.setdefault(request.session_id, []).append(request)
    assert len(sessions) == 200
    assert np.mean([len(turns) for turns in sessions.values()]) == pytest.approx(4, rel=0.2)
    seen: set[int] = set()
    for turns in sessions.values():
        for before, after in pairwise(turns):
            assert after.prompt_token_ids[: before.num_prompt_tokens] == before.prompt_token_ids
            assert after.num_prompt_tokens > before.num_prompt_tokens + before.num_output_tokens
        private = set(turns[-1].prompt_token_ids[512:])
        assert not private & seen, "two sessions share nothing beyond the system prompt"
        seen |= private
    assert len({tuple(r.prompt_token_ids[:512]) for r in load}) == 4


def test_bad_numbers():
    with pytest.raises(LabError, match="session_rate"):
        SessionLoad(session_rate=0)
    with pytest.raises(LabError, match="num_sessions"):
        session_load(SessionLoad(), 0, np.random.default_rng(0))
