"""Fetching against a server on loopback: checked, atomic, and one sentence when it goes wrong."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from labkit.cli.main import main
from labkit.errors import LabError
from labkit.workload import traces
from labkit.workload.fetch import checksum, fetch
from labkit.workload.traces import TraceFile

BODY = b"arrival_s,prompt_tokens,output_tokens\r\n0,10,2\r\n1,20,3"


class Handler(BaseHTTPRequestHandler):
    hits = 0

    def do_GET(self):
        type(self).hits += 1
        if self.path == "/good":
            self.answer(BODY)
        elif self.path == "/wrong":
            self.answer(BODY.replace(b"20", b"21"))
        elif self.path == "/long":
            self.answer(BODY * 50)
        elif self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY[:20])
        else:
            self.send_error(404, "gone")

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def trace(url: str | None) -> TraceFile:
    return TraceFile(
        "tiny", "tiny.csv", len(BODY), hashlib.sha256(BODY).hexdigest(), url, "CC0", "two requests"
    )


def test_a_good_file_is_checked_and_kept(server, tmp_path):
    path = fetch(trace(f"{server}/good"), tmp_path / "new" / "folder")
    assert path.read_bytes() == BODY
    assert [p.name for p in path.parent.iterdir()] == ["tiny.csv"]
    hits = Handler.hits
    assert fetch(trace(f"{server}/good"), path.parent) == path
    assert Handler.hits == hits, "a good copy is not downloaded again"


@pytest.mark.parametrize(
    ("page", "said"),
    [("wrong", "SHA-256"), ("gone", "404"), ("long", "more than"), ("cut", "SHA-256|cannot be reached")],
)
def test_a_bad_answer_keeps_what_was_there(server, tmp_path, page, said):
    (tmp_path / "tiny.csv").write_text("an older copy")
    with pytest.raises(LabError, match=said) as raised:
        fetch(trace(f"{server}/{page}"), tmp_path)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "tiny.csv").read_text() == "an older copy"
    assert len(list(tmp_path.iterdir())) == 1


def test_nobody_answers(tmp_path):
    with pytest.raises(LabError, match="cannot be reached"):
        fetch(trace("http://127.0.0.1:9/x"), tmp_path)
    with pytest.raises(LabError, match="without a public address"):
        fetch(trace(None), tmp_path)
    with pytest.raises(LabError, match="not an http"):
        fetch(trace("file:///etc/passwd"), tmp_path)


def test_command_line(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(traces.TRACES, "tiny", trace(f"{server}/good"))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as done:
        main(["traces", "fetch", "tiny", "--json"])
    assert not done.value.code
    data = json.loads(capsys.readouterr().out)
    assert checksum(tmp_path / "traces" / "tiny.csv") == data["sha256"]
    assert traces.find_trace("tiny") == tmp_path / "traces" / "tiny.csv"
    assert len(traces.load_trace("tiny")) == 2
    with pytest.raises(SystemExit) as done:
        main(["traces", "fetch", "nothing"])
    assert done.value.code == 2
    assert "choose one of" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        main(["traces", "list", "--json"])
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} >= {"azure-conv", "tiny"}
