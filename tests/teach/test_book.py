"""The book of two tiny notebooks: complete, searchable, whole without a network, and strict about its links."""

import html
import json
import re
from pathlib import Path

import nbformat
import pytest

from labkit.atomic_file import write_atomic
from labkit.errors import LabError
from labkit.teach.book import broken_links, write_book
from labkit.teach.claims import CLAIM_MIME, HELD, NOT_HELD, RSS_MIME, Verdict
from labkit.teach.pages import markdown_body, page, slug
from labkit.teach.report import WIDGET_MIME, claims_body, claims_table, readable, write_claims
from labkit.teach.runner import NotebookRun

#: attributes by which a page would load something from elsewhere
LOADED = re.compile(
    r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//", re.I
)


def verdict(
    claim_id: str, *, held: bool = True, control: bool = False, statement: str = "it <holds>"
) -> Verdict:
    return Verdict(
        claim_id,
        claim_id.split(".")[0].zfill(2),
        HELD if held else NOT_HELD,
        held,
        control,
        "",
        statement,
        {"n": 3},
    )


def executed(folder: Path, name: str, title: str, made: list[Verdict], error: str = "") -> NotebookRun:
    """A notebook as the runner leaves it: a heading, a widget with its picture, a bare widget, claims, peak memory."""
    output = nbformat.v4.new_output
    cells = [nbformat.v4.new_markdown_cell(f"# {title}\n\nSee [the claims](claims.html).")]
    code = nbformat.v4.new_code_cell("1 + 1")
    code.outputs = [
        output("display_data", {WIDGET_MIME: {"model_id": "x"}, "text/plain": "Slider()"}),
        output(
            "display_data",
            {WIDGET_MIME: {"model_id": "y"}, "image/png": "iVBORw0KGgo=", "text/plain": "Panel()"},
        ),
        output("display_data", {RSS_MIME: {"peak_rss_mib": 100}}),
    ]
    for one in made:
        box = f'<div id="claim-{one.id}">claim {one.id}</div>'
        code.outputs.append(
            output(
                "display_data",
                {CLAIM_MIME: {"id": one.id}, "text/html": box, "text/plain": f"claim {one.id}"},
            )
        )
    cells.append(code)
    path = folder / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return NotebookRun(name, path, 1.0, error, made, 100.0)


@pytest.fixture
def runs(tmp_path):
    return [
        executed(tmp_path, "03_holes", "Holes <in> memory", [verdict("3.1"), verdict("3.2", held=False)]),
        executed(tmp_path, "15_end", "The end", [verdict("15.1")]),
    ]


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "glossary.md").write_text(
        "# Glossary\n\n## A span\n\nSee [metrics](metrics.md#the-list) and [code](../labkit/x.py).\n"
    )
    (folder / "metrics.md").write_text(
        "# Metrics\n\n## The list\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n![p](p.png)\n"
    )
    (folder / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return folder


def test_the_book_is_whole(runs, docs, tmp_path):
    site = tmp_path / "site"
    pages = {path.relative_to(site).as_posix() for path in write_book(runs, site, docs=docs)}
    assert pages == {
        "index.html", "claims.html", "quiz.html", "03_holes.html", "15_end.html",
        "docs/index.html", "docs/glossary.html", "docs/metrics.html",
    }  # fmt: skip
    index = (site / "index.html").read_text()
    assert "2 of 3 held" in index
    assert "Holes &lt;in&gt; memory" in index
    assert "1 of 2 claims held" in index
    glossary = (site / "docs" / "glossary.html").read_text()
    assert '<a href="metrics.html#the-list">metrics</a>' in glossary
    assert "labkit/x.py" not in glossary  # a link to code is plain text in the book
    assert '<a href="../claims.html">Claims</a>' in glossary
    assert (site / "docs" / "p.png").is_file()
    assert not list(site.rglob("*.part"))


def test_claims_can_be_searched_and_lead_to_their_place(runs, docs, tmp_path):
    write_book(runs, tmp_path / "site", docs=docs)
    claims = (tmp_path / "site" / "claims.html").read_text()
    assert 'type="search" id="q"' in claims
    assert re.findall(r'data-words="([\d.]+) ', claims) == ["3.1", "3.2", "15.1"]
    assert 'href="03_holes.html#claim-3.2"' in claims
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'type="search" id="q"' in index
    assert "'5.2'" in index  # every id is offered


def test_nothing_is_loaded_from_a_network(runs, docs, tmp_path):
    for path in write_book(runs, tmp_path / "site", docs=docs):
        found = LOADED.search(path.read_text())
        assert not found, f"{path.name} loads {found[0]}"
        assert "@import" not in path.read_text()
    assert LOADED.search('<script async src="https://x.org/y.js">')  # the pattern sees one


def test_a_widget_leaves_its_picture_and_no_trace_of_itself(runs):
    (_, code) = readable(runs[0].output).cells
    assert [sorted(out["data"]) for out in code.outputs] == [["image/png", "text/plain"]] + [
        ["text/html", "text/plain"]
    ] * 2


@pytest.mark.parametrize(
    ("link", "named"),
    [("nowhere.md", "docs/bad.html -> nowhere.html"), ("#no-such-heading", "no such place")],
)
def test_a_broken_link_is_named(runs, docs, tmp_path, link, named):
    (docs / "bad.md").write_text(f'# Bad\n\n<a href="{link}">x</a>\n')
    with pytest.raises(LabError, match="lead nowhere") as error:
        write_book(runs, tmp_path / "site", docs=docs)
    assert named in str(error.value)


def test_links_out_of_the_site_are_not_followed(tmp_path):
    write_atomic(
        tmp_path / "a.html", page("A", '<a href="https://example.org">x</a><a href="b.html#here">y</a>')
    )
    write_atomic(tmp_path / "b.html", page("B", '<p id="here">z</p>'))
    assert broken_links(tmp_path) == []


def test_a_failed_notebook_is_shown_as_failed(tmp_path, docs):
    run = executed(tmp_path, "03_holes", "Holes", [verdict("3.1")], error="ZeroDivisionError: <x>")
    write_book([run], tmp_path / "site", docs=docs)
    assert "failed: ZeroDivisionError: &lt;x&gt;" in (tmp_path / "site" / "index.html").read_text()


def test_the_claims_table_in_json_text_and_html(runs, tmp_path):
    made = [verdict("15.1"), verdict("3.2", held=False), verdict("3.1", control=True)]
    write_claims(made, tmp_path)
    rows = json.loads((tmp_path / "claims.json").read_text())
    assert [row["id"] for row in rows] == ["3.1", "3.2", "15.1"]
    assert set(rows[0]) == {"id", "notebook", "verdict", "held", "control", "reason", "statement", "figures"}
    body = claims_body(made)
    assert "2 of 3 claims held" in body
    assert "holds too, so this shows nothing" in body
    assert html.escape("it <holds>") in body
    assert "it <holds>" not in body
    text = claims_table(runs)
    assert "03_holes: ran in 1.0 s, peak 100 MiB" in text
    assert re.search(r"3\.2\s+not held", text)


def test_markdown_headings_can_be_linked_to_and_tables_stay_tables():
    body = markdown_body("# How it works, in short\n\n| a |\n|---|\n| 1 |\n")
    assert '<h1 id="how-it-works-in-short">' in body
    assert "<table>" in body
    assert slug("OOM & `kv_free_bytes`") == "oom--kv_free_bytes"


def test_a_page_is_complete_and_escapes_its_title():
    text = page(
        "a < b",
        "<p>x</p>",
        links=[("Book", "index.html"), ("Claims", "claims.html")],
        here="claims.html",
        root="../",
    )
    assert text.startswith("<!doctype html>")
    assert "<title>a &lt; b</title>" in text
    assert '<a href="../index.html">Book</a><b>Claims</b>' in text
