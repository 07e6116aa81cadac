"""`labkit`: one command a room. Each module of this package is a subcommand; only the one that is called is imported."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import typer

import labkit.cli
from labkit.errors import LabError

#: what Typer raises for an option it does not know; Typer brings its own copy of Click, and this is public of it
ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


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
        code = build(called)(args, prog_name="labkit", standalone_mode=False)
    except LabError as error:
        print(f"labkit: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except ClickException as error:
        raise SystemExit(_usage(error)) from None
    except typer.Abort:
        print("labkit: stopped", file=sys.stderr)
        raise SystemExit(1) from None
    except BrokenPipeError:
        raise SystemExit(141) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> int:
    """An option or argument that cannot be: one sentence. A group that was called without a command shows its help."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help(), end="")  # Typer prints it itself and returns nothing
        return 2
    command = context.command_path if context is not None else "labkit"
    said = " ".join(error.format_message().split()).rstrip(".")
    print(f"labkit: {said[:1].lower() + said[1:]}; see {command} --help", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
