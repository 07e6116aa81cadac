"""`labkit replay --serve-metrics`: a scrape on loopback sees the run under the servers' own names, while it goes."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from labkit.cli.main import main
from labkit.errors import InputError
from labkit.observe.scrape import read_pages, series_frame


@pytest.fixture
def trace(tmp_path):
    rows = [f"{i * 0.5},{200 + i},{40}" for i in range(40)]
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("scheduler", "system"),
    [("lab", "vllm"), ("vllm", "vllm"), ("sglang", "sglang"), ("tensorrt_llm", "vllm")],
)
def test_a_scrape_sees_the_run_as_it_goes(trace, scheduler, system):
    command = [
        sys.executable, "-m", "labkit.cli.main", "replay", str(trace), "--scheduler", scheduler, "--kv-memory", "2 GiB",
        "--max-model-len", "2048", "--serve-metrics", "0", "--speed", "8", "--linger", "1", "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", server.stderr.readline()).group()
        pages = []
        while server.poll() is None and len(pages) < 60:
            with suppress(
                InputError
            ):  # nothing is published before the first step, nobody answers after the end
                pages += read_pages([address])
            time.sleep(0.25)
        assert server.wait() == 0
    assert {page.system for page in pages} == {system}
    frame = series_frame(pages)
    finished = frame["num_finished"].tolist()
    assert finished == sorted(finished)
    assert finished[-1] == 40
    assert any(0 < num < 40 for num in finished), "it was seen under way"
    assert frame["kv_usage"].between(0, 1).all()
    assert frame["kv_usage"].max() > 0


def refused(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(["replay", *map(str, args)])
    return caught.value.code, capsys.readouterr().err


def test_what_cannot_be_served_is_one_sentence(trace, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, err = refused(capsys, trace, "--serve-metrics", taken.getsockname()[1], "--speed", 0)
    assert code == 2
    assert "cannot be served on" in err
    code, err = refused(capsys, trace, "--serve-metrics", 0, "--scheduler", "lab,vllm")
    assert code == 2
    assert "one run" in err
    code, err = refused(capsys, trace, "--serve-metrics", 0, "--speed", -1)
    assert code == 2
    assert "speed" in err
