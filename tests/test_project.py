"""The set-up files agree with each other, and the package keeps its promises about imports."""

import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return {canonicalize_name(name): pinned for name, _, pinned in (line.partition("==") for line in lines)}


def declared() -> list[Requirement]:
    extras = [text for group in PROJECT["optional-dependencies"].values() for text in group]
    return [Requirement(text) for text in PROJECT["dependencies"] + extras]


def problems_of_environment(environment: dict, project: dict, pinned: dict[str, str]) -> list[str]:
    """Where environment.yml, pyproject.toml and constraints.txt disagree."""
    problems = []
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    pip = next((entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)), [])
    python = next((entry.partition("=")[2] for entry in conda if entry.startswith("python=")), "")
    if f"{python}.0" not in SpecifierSet(project["requires-python"]):
        problems.append(f"python {python!r} is not in {project['requires-python']}")
    if "-c constraints.txt" not in pip:
        problems.append("the pip section does not use constraints.txt")
    package = next((entry for entry in pip if entry.startswith("-e .")), "")
    extras = set(package.partition("[")[2].rstrip("]").split(",")) - {""}
    if extras != set(project["optional-dependencies"]):
        problems.append(
            f"the extras are {sorted(extras)}, the project has {sorted(project['optional-dependencies'])}"
        )
    if "pip" not in conda:
        problems.append("pip is not among the conda packages")
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        if name not in pinned:
            problems.append(f"{name} is not pinned")
        elif pinned[name] not in requirement.specifier:
            problems.append(f"{name}=={pinned[name]} is outside {requirement.specifier}")
    return problems


def environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def test_environment_and_pins_agree_with_the_project():
    assert problems_of_environment(environment(), PROJECT, pins()) == []


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (lambda env, pinned: pinned.update(torch="2.10.0"), "torch==2.10.0"),
        (lambda env, pinned: pinned.pop("papermill"), "papermill is not pinned"),
        (lambda env, pinned: env["dependencies"].__setitem__(0, "python=3.10"), "python '3.10'"),
        (lambda env, pinned: env["dependencies"][-1]["pip"].pop(0), "constraints.txt"),
        (lambda env, pinned: env["dependencies"][-1]["pip"].__setitem__(1, "-e .[dev]"), "extras"),
    ],
)
def test_a_drifted_environment_is_named(break_it, named):
    drifted, pinned = environment(), pins()
    break_it(drifted, pinned)
    assert any(named in problem for problem in problems_of_environment(drifted, PROJECT, pinned))


def test_the_pair_of_torch_and_triton():
    assert (pins()["torch"], pins()["triton"]) == ("2.13.0", "3.7.1")
    triton = next(r for r in declared() if r.name == "triton")
    assert triton.marker is not None
    assert not triton.marker.evaluate({"sys_platform": "darwin"})


@pytest.mark.skipif(sys.platform == "win32", reason="py-rattler leg is for Linux and macOS")
def test_conda_lines_are_match_specs():
    rattler = pytest.importorskip("rattler")
    for entry in environment()["dependencies"]:
        if isinstance(entry, str):
            assert ";" not in entry
            rattler.MatchSpec(entry)


def test_every_dependency_is_justified():
    text = (ROOT / "docs" / "dependencies.md").read_text().lower()
    missing = [r.name for r in declared() if f"`{canonicalize_name(r.name)}`" not in text]
    assert missing == []


LIGHT = "import sys, {module}; print(sorted(m for m in ('torch', 'matplotlib', 'pandas', 'triton') if m in sys.modules))"


@pytest.mark.parametrize(
    "module",
    [
        "labkit",
        "labkit.memory",
        "labkit.kv",
        "labkit.workload",
        "labkit.models",
        "labkit.serving",
        "labkit.observe",
    ],
)
def test_deciding_needs_neither_torch_nor_matplotlib(module):
    code = LIGHT.format(module=module)
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert loaded.strip() == "[]"


def labkit(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "labkit.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_mistake_is_one_sentence_and_exit_code_2():
    done = labkit("notebooks", "run", "99")
    assert done.returncode == 2
    assert "no notebook '99'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_env_says_what_runs_here_as_json():
    import json

    facts = json.loads(labkit("env", "--json").stdout)
    assert facts["versions"]["torch"].startswith("2.")
    assert "kernel times" in facts["on this machine"]


def test_every_pin_installs_on_the_oldest_python_that_is_promised():
    """A pin made on 3.11.7 may ask for 3.11.5, and then `make install` fails on a distribution's own 3.11.2."""
    pinned = pins()
    asks = {
        name: dist.metadata.get("Requires-Python") or ""
        for dist in distributions()
        if (name := canonicalize_name(dist.metadata["Name"])) in pinned
    }
    assert len(asks) > 100
    oldest = f"{PROJECT['requires-python'].removeprefix('>=')}.0"
    assert {name: ask for name, ask in asks.items() if oldest not in SpecifierSet(ask)} == {}
