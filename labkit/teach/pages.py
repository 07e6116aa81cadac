"""One look for every page of the book: self-contained HTML, no script or style from elsewhere, readable on a phone."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

STYLE = """
:root{--ink:#1c2733;--soft:#5a6773;--line:#d9dfe5;--paper:#fff;--code:#f6f8fa;--link:#0b5cad}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf0;--soft:#a3afba;--line:#3a444e;--paper:#161b20;--code:#20272e;--link:#7ab7f5}
 .output_png img,.output_svg svg{background:#fff;border-radius:4px}}
*{box-sizing:border-box}
body{margin:0;color:var(--ink);background:var(--paper);font:16px/1.55 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1rem 1.2rem 4rem}
nav{border-bottom:1px solid var(--line);padding:.6rem 1.2rem;font-size:.92rem;display:flex;flex-wrap:wrap;gap:.3rem 1rem}
nav b{margin-right:.6rem}
a{color:var(--link)}
a.anchor-link{visibility:hidden;text-decoration:none;margin-left:.3em}
:is(h1,h2,h3):hover a.anchor-link{visibility:visible}
h1{font-size:1.7rem;line-height:1.25}h2{margin-top:2.2rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
pre{background:var(--code);padding:.6rem .8rem;overflow-x:auto;border-radius:4px;font-size:.84rem;line-height:1.4;margin:.6rem 0}
code{background:var(--code);padding:.1em .3em;border-radius:3px;font-size:.9em}pre code{padding:0;background:none}
.output_area pre{background:none;padding:.2rem 0;white-space:pre-wrap}.output_stderr{display:none}
img{max-width:100%;height:auto}
table{border-collapse:collapse;margin:.8rem 0;font-size:.9rem;display:block;overflow-x:auto}
th,td{border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:left;vertical-align:top}
table.dataframe,table.dataframe :is(th,td){border-width:0 0 1px}table.dataframe thead th{text-align:left}
blockquote{border-left:4px solid var(--line);margin:0;padding-left:1rem;color:var(--soft)}
details{margin:.5rem 0;border:1px solid var(--line);border-radius:4px;padding:.4rem .8rem}summary{cursor:pointer}
input[type=search]{font:inherit;padding:.35rem .6rem;width:min(100%,26rem);border:1px solid var(--line);border-radius:4px;background:var(--paper);color:var(--ink)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(17rem,1fr));gap:.8rem}
.cards a{display:block;border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;text-decoration:none;color:inherit}
.cards a:hover{border-color:var(--link)}.cards small{color:var(--soft)}
"""


def page(
    title: str, body: str, *, links: Sequence[tuple[str, str]] = (), here: str = "", root: str = ""
) -> str:
    """A complete page. `links` is the navigation, `(text, target)` with targets relative to the root of the site;
    `here` is this page's own target and `root` the way back to the root ("" or "../")."""
    items = "".join(
        f"<b>{html.escape(text)}</b>"
        if target == here
        else f'<a href="{root}{target}">{html.escape(text)}</a>'
        for text, target in links
    )
    nav = f"<nav>{items}</nav>" if links else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}{_code_colours()}</style></head>\n<body>{nav}<main>\n{body}\n</main></body></html>\n"
    )


def notebook_body(notebook: Any) -> str:
    """Cells and outputs of an executed notebook (nbformat node) as HTML, without page, style or script of their own."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    body, _ = exporter.from_notebook_node(notebook)
    return str(body)


def markdown_body(text: str) -> str:
    """Markdown with tables as HTML; headings get ids so that they can be linked to."""
    from markdown_it import MarkdownIt

    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = renderer.parse(text)
    for opening, content in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", slug(content.content))
    return str(renderer.renderer.render(tokens, renderer.options, {}))


def slug(heading: str) -> str:
    """`"How it works, in short" -> "how-it-works-in-short"`, as code hosts make their anchors."""
    kept = "".join(char for char in heading.lower() if char.isalnum() or char in " -_")
    return kept.replace(" ", "-")


@cache
def _code_colours() -> str:
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{light}\n@media(prefers-color-scheme:dark){{{dark}\n.highlight{{background:none}}}}"
