"""Order of the tests: those marked `slow` first, so that no worker is left alone with a long one at the end.

A `slow` test may also take longer than the others before it counts as hung: on a machine busy with other work it has to wait."""

import pytest

SLOW_TIMEOUT_S = 900


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
