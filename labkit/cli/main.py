"""`labkit`: one command a room. Each module of this package is a subcommand; only the one that is called is imported."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import typer

import labkit.cli
from labkit.errors import LabError


def command_names() -> list[str]:
    """Modules of `labkit.cli` that do not start with an underscore; `env_` is written `env` on the command line."""
    return sorted(
        m.name for m in pkgutil.iter_modules(labkit.cli.__path__) if m.name != "main" and m.name[0] != "_"
    )


def build(names: list[str]) -> typer.Typer:
    """A module has either `app` (a `typer.Typer` with subcommands) or `run` (a single command)."""
    root = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="A lab for what GPU memory really does in LLM serving.",
    )

    @root.callback()
    def _root() -> None:
        """A lab for what GPU memory really does in LLM serving."""

    for name in names:
        module = importlib.import_module(f"labkit.cli.{name}")
        if hasattr(module, "app"):
            root.add_typer(module.app, name=name)
        else:
            root.command(name)(module.run)
    return root


def main(argv: list[str] | None = None) -> None:
    """Entry point: `LabError` becomes one sentence on stderr and exit code 2."""
    args = sys.argv[1:] if argv is None else argv
    names = command_names()
    called = [args[0]] if args and args[0] in names else names
    if len(called) == 1:
        module = importlib.import_module(f"labkit.cli.{called[0]}")
        args = getattr(module, "rewrite_args", list)(args)
    try:
        build(called)(args, prog_name="labkit")
    except LabError as error:
        print(f"labkit: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        raise SystemExit(141) from None


if __name__ == "__main__":
    main()
