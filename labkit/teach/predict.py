"""Predict before you run: the reader commits to a number or an answer, and sees later how it compares.

    guess = predict("How many of 4,000 requests are refused?", low=0, high=4000)
    ...
    guess.compare(run.num_fragmentation_failures)

Under papermill nobody answers; the comparison then only states the result.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from labkit.errors import LabError


class Prediction:
    """One question. Shows itself as a slider (numbers) or a drop-down (`options`) with a button to commit."""

    def __init__(
        self,
        question: str,
        *,
        low: float = 0,
        high: float = 100,
        options: Sequence[str] | None = None,
        unit: str = "",
    ):
        if options is None and not low < high:
            raise LabError(f"a prediction needs low < high; got {low} and {high}")
        self.question, self.low, self.high, self.options, self.unit = question, low, high, options, unit
        self.committed: Any = None
        self._widget: Any = None

    def commit(self, value: Any) -> None:
        """Commit without the widget, e.g. from a script."""
        self.committed = value

    def compare(self, actual: Any) -> None:
        """Say what happened and how far the prediction was off."""
        shown = _text(actual, self.unit)
        if self.committed is None:
            print(f"{self.question}\n  measured: {shown} (no prediction was committed)")
        elif isinstance(self.committed, str):
            print(f"{self.question}\n  measured: {shown}; you said {self.committed}")
        else:
            off = float(self.committed) - float(actual)
            verdict = (
                "exactly" if off == 0 else f"{_text(abs(off), self.unit)} too {'high' if off > 0 else 'low'}"
            )
            print(
                f"{self.question}\n  measured: {shown}; you said {_text(self.committed, self.unit)}: {verdict}"
            )

    def _build(self) -> Any:
        import ipywidgets as W

        if self.options is not None:
            answer = W.Dropdown(options=list(self.options), layout=W.Layout(width="24em"))
        else:
            whole = isinstance(self.low, int) and isinstance(self.high, int)
            kind = W.IntSlider if whole else W.FloatSlider
            answer = kind(
                value=(self.low + self.high) // 2 if whole else (self.low + self.high) / 2,
                min=self.low,
                max=self.high,
                layout=W.Layout(width="32em"),
            )
        button, said = W.Button(description="I predict this", button_style="info"), W.Label()

        def press(_: Any) -> None:
            self.committed = answer.value
            said.value = f"committed: {_text(answer.value, self.unit)}"

        button.on_click(press)
        return W.VBox(
            [W.HTML(f"<b>Predict:</b> {html.escape(self.question)}"), W.HBox([answer, button, said])]
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        if self._widget is None:
            self._widget = self._build()
        bundle = dict(self._widget._repr_mimebundle_(**kwargs) or {})
        bundle["text/plain"] = f"Predict: {self.question}"
        bundle["text/html"] = f"<p><b>Predict:</b> {html.escape(self.question)}</p>"
        return bundle


def predict(
    question: str, *, low: float = 0, high: float = 100, options: Sequence[str] | None = None, unit: str = ""
) -> Prediction:
    """A question to put last in a cell; see the module's docstring."""
    return Prediction(question, low=low, high=high, options=options, unit=unit)


def _text(value: Any, unit: str) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        number = f"{value:,}"
    else:  # three digits, all of them from 1,000 on: no exponent
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{float(value):,.3g}"
    return f"{number} {unit}".strip()
