"""The command line: what cannot be is one sentence on stderr and exit code 2, whoever noticed it."""

from __future__ import annotations

import pytest

from labkit.cli.main import main


def call(capsys, *args):
    with pytest.raises(SystemExit) as done:
        main(list(args))
    out = capsys.readouterr()
    return done.value.code, out.out, out.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["plan", "Llama-3.1-8B", "--foo"], "no such option: --foo"),
        (["plan", "Llama-3.1-8B", "--tp", "two"], "'--tp'"),
        (["plan", "check"], "missing argument"),
        (["replay"], "missing argument"),
        (["replay", "x.csv", "--limit", "abc"], "'--limit'"),
        (["replay", ""], "TRACE is empty"),
        (["verify"], "missing argument"),
        (["bogus"], "no such command 'bogus'"),
        (["plan", "Llama-3.1-8B", "--max-num-batched-tokens", "0"], "--max-num-batched-tokens is 0"),
        (["plan", "x" * 5000], "unknown model"),
    ],
)
def test_usage_errors_are_one_sentence(capsys, args, said):
    code, out, err = call(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("labkit: ")
    assert said in err
    assert "x" * 100 not in err


def test_help_is_help(capsys):
    code, out, err = call(capsys, "plan", "--help")
    assert (code, err) == (0, "")
    assert "Usage: labkit plan" in out
    code, out, err = call(capsys, "plan")
    assert (code, err) == (2, "")
    assert "Usage: labkit plan" in out


def test_exit_codes_of_commands_are_kept(capsys, tmp_path):
    assert call(capsys, "plan", "Llama-3.1-8B", "--json")[0] == 0
    path = tmp_path / "wrong.json"
    path.write_text('[{"model": "DeepSeek-V3", "per_token_bytes": 124928}]')
    assert call(capsys, "plan", "check", str(path))[0] == 1
