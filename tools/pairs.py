"""Write notebooks/NAME.ipynb from its reviewed source notebooks/NAME.py, or check that each pair is in step.

python tools/pairs.py           rewrite every .ipynb (no outputs, kernelspec python3, stable cell ids)
python tools/pairs.py --check   exit 1 and name the pairs that have drifted apart
"""

import sys
from pathlib import Path

sys.modules.setdefault("rfc3987_syntax", None)  # 2.4 CPU seconds for a check that is not needed here

import jupytext
import nbformat

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def built(source: Path) -> nbformat.NotebookNode:
    """The notebook of a percent file: byte for byte the same each time."""
    notebook = jupytext.read(source, fmt="py:percent")
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"c{index:02d}"
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def text_of(source: Path) -> str:
    return nbformat.writes(built(source)) + "\n"


def drifted() -> list[str]:
    """Names of pairs that are not in step, and of notebooks without a source."""
    sources = sorted(NOTEBOOKS.glob("*.py"))
    problems = [
        f"{source.stem}: run `make pairs`"
        for source in sources
        if not source.with_suffix(".ipynb").exists()
        or source.with_suffix(".ipynb").read_text(encoding="utf-8") != text_of(source)
    ]
    problems += [
        f"{n.stem}: has no .py source" for n in NOTEBOOKS.glob("*.ipynb") if not n.with_suffix(".py").exists()
    ]
    return problems


def main() -> int:
    if "--check" in sys.argv[1:]:
        problems = drifted()
        for problem in problems:
            print(f"notebook pair out of step: {problem}", file=sys.stderr)
        return 1 if problems else 0
    for source in sorted(NOTEBOOKS.glob("*.py")):
        target = source.with_suffix(".ipynb")
        if not target.exists() or target.read_text(encoding="utf-8") != text_of(source):
            target.write_text(text_of(source), encoding="utf-8")
            print(f"wrote {target.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
