"""Situations that operators reported, as small deterministic runs with the numbers that must come out.

A scenario is a JSON file in `labkit/data/scenarios/` (inputs, seed, expected figures, validity, source) and a function
`run(inputs, seed) -> figures` in a module of `labkit.experiments.scenario_runs`, registered under the same name:

    @SCENARIOS.register("never-fits")
    def never_fits(inputs, seed): ...

    run_scenario("never-fits").check()

Expected figures are named by their path in the nested figures (`"with_check.num_refused"`). A plain value must be equal;
`{"value": 11.5, "digits": 1}` is compared after rounding; `{"value": 929, "within": 0.1}` in relative terms.
Validity is "reproduced", "reproduced in shape" or "not reproduced"; the last kind stays in and says why.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from labkit.errors import LabError
from labkit.registry import Registry

Run = Callable[[Mapping[str, Any], int], dict[str, Any]]
SCENARIOS: Registry[Run] = Registry("scenario")
VALIDITIES = ("reproduced", "reproduced in shape", "not reproduced")


@dataclass(frozen=True, slots=True)
class Scenario:
    """The JSON file. `source` names public threads or papers; `note` says what was assumed."""

    name: str
    question: str
    inputs: dict[str, Any]
    seed: int
    expected: dict[str, Any]
    validity: str
    note: str
    source: list[str]


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """`misses` lists expected figures that did not come out, one sentence each."""

    scenario: Scenario
    figures: dict[str, Any]
    misses: list[str]

    @property
    def holds(self) -> bool:
        """No expected figure was missed."""
        return not self.misses

    def check(self) -> ScenarioResult:
        """Itself when every expected figure came out; raises `AssertionError` that lists the others."""
        if self.misses:
            raise AssertionError(f"scenario {self.scenario.name}: " + "; ".join(self.misses))
        return self


def run_scenario(name: str, **changed_inputs: Any) -> ScenarioResult:
    """Run a scenario, with some inputs changed if wished. Raises `LabError` for an unknown name or input."""
    run = _registry()[name]
    scenario = load_scenario(name)
    for key in changed_inputs:
        if key not in scenario.inputs:
            raise LabError(
                f"scenario {name!r} has no input {key!r}; it has: {', '.join(sorted(scenario.inputs))}"
            )
    figures = run({**scenario.inputs, **changed_inputs}, scenario.seed)
    return ScenarioResult(scenario, figures, compare(scenario.expected, figures))


def scenario_names() -> list[str]:
    """All scenarios that can be run."""
    return list(_registry())


def load_scenario(name: str) -> Scenario:
    """Inputs and expected figures of a scenario. Raises `LabError` for an unknown name."""
    file = resources.files("labkit").joinpath(f"data/scenarios/{name}.json")
    if not file.is_file():
        raise LabError(f"unknown scenario {name!r}; choose one of: {', '.join(scenario_names())}")
    scenario = Scenario(name=name, **json.loads(file.read_text(encoding="utf-8")))
    if scenario.validity not in VALIDITIES:
        raise LabError(
            f"scenario {name!r}: validity {scenario.validity!r} is not one of {', '.join(VALIDITIES)}"
        )
    return scenario


def page() -> str:
    """docs/scenarios.md; written by `python -c "from labkit.experiments.scenarios import page; print(page(), end='')"`."""
    rows = [load_scenario(name) for name in scenario_names()]
    lines = [f"| `{s.name}` | {s.question} | {s.validity} | {'; '.join(s.source)} |" for s in rows]
    return _PAGE + "\n".join(lines) + "\n"


def compare(expected: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    """One sentence for each expected figure that differs."""
    misses = []
    for path, wanted in expected.items():
        got: Any = figures
        for key in path.split("."):
            got = got.get(key) if isinstance(got, Mapping) else None
        if got is None:
            misses.append(f"{path} is not among the figures, expected {wanted!r}")
            continue
        if isinstance(wanted, dict):
            value = wanted["value"]
            if "digits" in wanted:
                ok = round(got, wanted["digits"]) == value
            else:
                ok = abs(got - value) <= wanted["within"] * abs(value)
        else:
            ok = got == wanted
        if not ok:
            misses.append(f"{path} is {got!r}, expected {wanted!r}")
    return misses


def _registry() -> Registry[Run]:
    """Every module of the package registers its own, so that nobody has to be listed here."""
    package = importlib.import_module("labkit.experiments.scenario_runs")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return SCENARIOS


_PAGE = """# Scenarios: situations that operators reported, with the numbers that must come out

`run_scenario(NAME).check()` (`labkit.experiments.scenarios`) runs one and raises when an expected figure does not come out;
`run_scenario(NAME, num_blocks=...)` changes an input. Inputs, expected figures, validity and source stand in
`labkit/data/scenarios/NAME.json`; the runs in `labkit/experiments/scenario_runs/`. A new one is a JSON file and a function
registered under its name in any module of that package; `page()` writes this list.

| name | question | validity | source |
|---|---|---|---|
"""
