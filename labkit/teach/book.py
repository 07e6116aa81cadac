"""The book: a static site of executed notebooks, claims, quiz, glossary and reference pages. Read it without a network."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

from labkit.atomic_file import write_atomic
from labkit.errors import LabError
from labkit.teach.claims import claim_list
from labkit.teach.pages import markdown_body, page
from labkit.teach.report import claims_body, write_html
from labkit.teach.runner import NotebookRun

NAVIGATION = (
    ("Book", "index.html"),
    ("Claims", "claims.html"),
    ("Quiz", "quiz.html"),
    ("Glossary", "docs/glossary.html"),
    ("Planner", "docs/planner.html"),
    ("Doctor", "docs/doctor.html"),
    ("All reference pages", "docs/index.html"),
)


def write_book(runs: Sequence[NotebookRun], site: Path, *, docs: Path) -> list[Path]:
    """Write the whole site and return its pages. Raises `LabError` when a link inside it leads nowhere."""
    (site / "docs").mkdir(parents=True, exist_ok=True)
    written = [_doc_page(path, docs, site) for path in sorted(docs.rglob("*.md"))]
    links = [(text, target) for text, target in NAVIGATION if target in _targets(written, site)]
    for run in runs:
        target = site / f"{run.notebook}.html"
        write_html(run, target, links=links)
        text = target.read_text(
            encoding="utf-8"
        )  # a notebook links to ../docs/NAME.md, the book has docs/NAME.html
        write_atomic(target, re.sub(r'href="\.\./docs/([^"#]+)\.md', r'href="docs/\1.html', text))
    verdicts = sorted(
        (v for run in runs for v in run.verdicts), key=lambda v: [int(p) for p in v.id.split(".")]
    )
    where = {run.notebook[:2]: f"{run.notebook}.html" for run in runs}
    body = claims_body(
        verdicts, link=lambda v: f"{where[v.notebook]}#claim-{v.id}" if v.notebook in where else ""
    )
    write_atomic(site / "claims.html", page("Claims", body, links=links, here="claims.html"))
    write_atomic(site / "quiz.html", page("Quiz", quiz_body(), links=links, here="quiz.html"))
    write_atomic(site / "index.html", page("The book", index_body(runs), links=links, here="index.html"))
    for path in written:
        name = path.relative_to(site).as_posix()
        root = "../" * (name.count("/"))
        text = path.read_text(encoding="utf-8")
        title = re.search(r"<h1[^>]*>(.*?)</h1>", text, re.S)
        write_atomic(
            path, page(_plain(title[1]) if title else path.stem, text, links=links, here=name, root=root)
        )
    listing = "<h1>Reference pages</h1><ul>" + "".join(
        f'<li><a href="{p.relative_to(site / "docs").as_posix()}">{html.escape(_title(p))}</a></li>'
        for p in written
    )
    write_atomic(
        site / "docs" / "index.html",
        page("Reference pages", listing + "</ul>", links=links, here="docs/index.html", root="../"),
    )
    broken = broken_links(site)
    if broken:
        raise LabError("the book has links that lead nowhere: " + "; ".join(broken[:10]))
    return sorted(site.rglob("*.html"))


def index_body(runs: Sequence[NotebookRun]) -> str:
    """The front page: the question, a search by claim, and a card a notebook."""
    cards = []
    for run in runs:
        held = sum(v.held for v in run.verdicts)
        title = _first_heading(run)
        count = f"{held} of {len(run.verdicts)} claims held" if run.verdicts else "start here"
        state = f"<b>failed: {html.escape(run.error)}</b>" if run.error else html.escape(count)
        cards.append(
            f'<a href="{run.notebook}.html"><b>{html.escape(title)}</b><br><small>{state}</small></a>'
        )
    total = sum(len(run.verdicts) for run in runs)
    held = sum(v.held for run in runs for v in run.verdicts)
    return (
        "<h1>Why does a GPU with memory to spare already refuse requests?</h1>"
        "<p>A lab you can read. Every page below was executed by the machine that built this book; every claim was "
        f"checked on that run beside a control on which it must be false: {held} of {total} held.</p>"
        '<p><input type="search" id="q" placeholder="claim, e.g. 5.2" list="ids"></p>'
        f"<datalist id='ids'>{''.join(f'<option value={i!r}>' for i in claim_list())}</datalist>"
        "<script>document.getElementById('q').addEventListener('change',(e)=>{location.href='claims.html#'+encodeURIComponent(e.target.value)})</script>"
        f'<div class="cards">{"".join(cards)}</div>'
    )


def quiz_body() -> str:
    """All questions in English and Chinese, answers folded away."""
    source = files("labkit.data").joinpath("quiz.yaml")
    if not source.is_file():
        return "<h1>Quiz</h1><p>No questions are shipped with this version.</p>"
    import yaml

    entries = yaml.safe_load(source.read_text(encoding="utf-8"))
    questions = entries["questions"] if isinstance(entries, dict) else entries
    parts = [
        "<h1>Quiz</h1><p>Answer aloud first, then unfold. <code>labkit quiz</code> asks them in a terminal.</p>"
    ]
    for number, entry in enumerate(questions, 1):
        parts.append(
            f"<details><summary>{number}. {_text(entry['question'])}</summary>{_text(entry['answer'])}</details>"
        )
    return "\n".join(parts)


def broken_links(site: Path) -> list[str]:
    """Links and pictures of every page that lead to no file of the site, or to no place in it."""
    pages = {path: _links_and_ids(path) for path in site.rglob("*.html")}
    problems = []
    for path, (targets, _ids) in pages.items():
        for target in targets:
            if re.match(r"(https?:|mailto:|data:|javascript:)", target):
                continue
            name, _, anchor = target.partition("#")
            other = (path.parent / name).resolve() if name else path.resolve()
            found = next((p for p in pages if p.resolve() == other), None)
            if not other.exists():
                problems.append(f"{path.relative_to(site)} -> {target}")
            elif (
                anchor and found is not None and anchor not in pages[found][1] and other.name != "claims.html"
            ):
                problems.append(f"{path.relative_to(site)} -> {target} (no such place)")
    return problems


class _Scan(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and ((tag == "a" and name == "href") or (tag in ("img", "script") and name == "src")):
                self.targets.append(value)
            if value and name == "id":
                self.ids.add(value)


def _links_and_ids(path: Path) -> tuple[list[str], set[str]]:
    scan = _Scan()
    scan.feed(path.read_text(encoding="utf-8"))
    return scan.targets, scan.ids


def _doc_page(path: Path, docs: Path, site: Path) -> Path:
    """The body of a Markdown page; links to other Markdown pages lead to their HTML, links to code become plain text,
    pictures are copied."""
    target = (site / "docs" / path.relative_to(docs)).with_suffix(".html")
    body = markdown_body(path.read_text(encoding="utf-8"))

    def relink(match: re.Match[str]) -> str:
        href, text = match[1], match[2]
        name, _, anchor = href.partition("#")
        if re.match(r"https?:", href) or not name:
            return match[0]
        if name.endswith(".md") and (path.parent / name).resolve().is_relative_to(docs.resolve()):
            return f'<a href="{name[:-3]}.html{"#" + anchor if anchor else ""}">{text}</a>'
        return text

    body = re.sub(r'<a href="([^"]*)">(.*?)</a>', relink, body, flags=re.S)
    for picture in re.findall(r'<img src="([^"]+)"', body):
        source = path.parent / picture
        if source.is_file():
            copied = target.parent / picture
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(source.read_bytes())
    return write_atomic(target, body, parents=True)


def _targets(written: Iterable[Path], site: Path) -> set[str]:
    always = {"index.html", "claims.html", "quiz.html", "docs/index.html"}
    return always | {path.relative_to(site).as_posix() for path in written}


def _first_heading(run: NotebookRun) -> str:
    import json

    for cell in json.loads(run.output.read_text(encoding="utf-8"))["cells"] if run.output.exists() else []:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and source.startswith("# "):
            return source.splitlines()[0][2:]
    return run.notebook.replace("_", " ")


def _title(path: Path) -> str:
    found = re.search(r"<h1[^>]*>(.*?)</h1>", path.read_text(encoding="utf-8"), re.S)
    return _plain(found[1]) if found else path.stem


def _plain(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", fragment)).strip()


def _text(value: object) -> str:
    """A text, or texts by language, as escaped HTML."""
    if isinstance(value, dict):
        return "<br>".join(html.escape(str(text)) for text in value.values())
    return html.escape(str(value))
