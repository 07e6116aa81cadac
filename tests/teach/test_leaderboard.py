"""Everything that is built in is scored, honest entries are ranked, cheats are named, and what breaks ends in a sentence."""

import dataclasses
import inspect
import json
import re
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit.cli.main import build
from labkit.errors import LabError
from labkit.kv.eviction import EVICTION
from labkit.memory import ALLOCATORS
from labkit.serving.order import ORDERS
from labkit.serving.request import Request
from labkit.teach import leaderboard_eviction, leaderboard_scheduler
from labkit.teach.leaderboard import KINDS, Board, Result, Row, run_board
from labkit.teach.leaderboard_allocator import record
from labkit.teach.leaderboard_check import check_entry
from labkit.teach.leaderboard_columns import COLUMNS
from labkit.teach.leaderboard_entry import Disqualified
from labkit.teach.leaderboard_serving import Contest, another_future, play
from labkit.teach.leaderboard_traces import serving_loads
from labkit.workload.base import RequestSpec

ENTRIES = Path(__file__).with_name("leaderboard_entries.py")
NUM = {"allocator": 80, "scheduler": 60, "eviction": 60}


@pytest.fixture(scope="module")
def boards():
    """Each board's rows of what is built in, and the function that scores an entry."""
    judges = {}
    for kind in KINDS:
        module = __import__(f"labkit.teach.leaderboard_{kind}", fromlist=["judge"])
        judges[kind] = module.judge(NUM[kind], 0)
    return judges


def entry(name):
    return f"{ENTRIES}:{name}"


def test_every_built_in_and_every_system_has_a_row(boards):
    names = {kind: [row.name for row in board.rows] for kind, (board, _) in boards.items()}
    assert set(ALLOCATORS) <= set(names["allocator"])
    assert set(EVICTION) <= set(names["eviction"])
    assert set(leaderboard_scheduler.BUILT_IN) <= set(names["scheduler"])
    for kind, (board, _) in boards.items():
        systems = [row.name for row in board.rows if row.kind == "system"]
        assert [name.split(",")[0] for name in systems if "vllm" in name] == ["vllm"], kind
        assert len(systems) == 3
        for row in board.rows:
            assert len(row.results) == 3
            assert not row.problem
            for result in row.results:
                assert set(board.columns) <= set(result.figures)
                assert all(0 <= result.figures[c] <= 1 for c in board.columns if c.endswith("share"))


def test_the_table_is_ranked(boards):
    for board, _ in boards.values():
        scores = [row.mean(board.columns[0]) for row in board.ranking()]
        assert scores == sorted(scores, reverse=True)
        frame = board.frame()
        assert list(frame["name"]) == [row.name for row in board.ranking()]
        assert board.text().count("\n") >= len(board.rows)
    assert boards["allocator"][0].ranking()[0].kind == "system"  # blocks do not fragment


def test_blocks_refuse_least_and_move_nothing(boards):
    board = boards["allocator"][0]
    by_name = {row.name: row for row in board.rows}
    for row in board.rows:
        assert row.mean("served") <= by_name["sglang, pages of 1"].mean("served")
        assert (row.mean("moved_gib") == 0) == (row.kind == "system")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("allocator", "HonestFit"),
        ("scheduler", "ShortFirst"),
        ("scheduler", "TenPercent"),
        ("scheduler", "Whole"),
        ("eviction", "NewestFirst"),
    ],
)
def test_an_honest_entry_is_scored(boards, kind, name):
    board, score = boards[kind]
    results = score(entry(name))
    assert [result.load for result in results] == [result.load for result in board.rows[0].results]
    assert all(result.num_decisions > 0 for result in results)
    if name == "HonestFit":
        best = next(row for row in board.rows if row.name == "best-fit")
        assert [r.figures for r in results] == [r.figures for r in best.results]


@pytest.mark.parametrize(
    ("kind", "name", "cheat"),
    [
        ("allocator", "Overlaps", "corrupts memory.*overlaps"),
        ("allocator", "TooShort", "corrupts memory.*asked for"),
        ("allocator", "BeyondTheEnd", "corrupts memory.*of a memory of"),
        ("allocator", "SeesWhatComes", "reads the future"),
        ("allocator", "Coin", "is not deterministic"),
        ("scheduler", "KnowsTheAnswer", "reads the future"),
        ("scheduler", "ShortensTheTrace", "mutates the trace: num_output_tokens of request r0"),
        ("scheduler", "StealsBlocks", "corrupts memory"),
        ("scheduler", "InventsTokens", "corrupts memory"),
        ("scheduler", "Dice", "is not deterministic"),
        ("eviction", "WrongBlock", "corrupts memory|fails"),
    ],
)
def test_a_cheat_is_named(boards, kind, name, cheat):
    score = boards[kind][1]
    if name == "KnowsTheAnswer":  # it needs a queue to show
        loads = serving_loads(120)[2:]

        def score(it):
            return leaderboard_scheduler._contest(loads, it)

    with pytest.raises(Disqualified, match=cheat):
        score(entry(name))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Loops", "fails: stopped after"),
        ("Exits", "fails: the code ended its process"),
        ("Eats", "fails: stopped: the code asked for more memory"),
        ("Breaks", r"fails: it raised AttributeError: .*\(key, line"),
    ],
)
def test_what_breaks_ends_in_a_sentence(name, says):
    load = serving_loads(40)[0]
    build_it = partial(leaderboard_scheduler.entry_scheduler, entry(name), load)
    with pytest.raises(Disqualified, match=says):
        Contest(load, build_it, time_s=1.0).result()


def test_a_file_that_is_not_python(boards, tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("class X(:\n")
    with pytest.raises(Disqualified, match=r"it is not Python: .*line 1"):
        boards["allocator"][1](f"{bad}:X")
    with pytest.raises(Disqualified, match=r"is not a labkit\.memory\.Allocator"):
        boards["allocator"][1](entry("NoAllocator"))
    with pytest.raises(Disqualified, match="has no class 'Nobody'"):
        boards["allocator"][1](entry("Nobody"))
    with pytest.raises(Disqualified, match=r"is not a labkit\.kv\.eviction\.EvictionQueue"):
        boards["eviction"][1](entry("NoAllocator"))
    with pytest.raises(Disqualified, match="is none of QueueOrder"):
        boards["scheduler"][1](entry("NoAllocator"))


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("scheduler", "NoKey", r"NoKey: it has no key; write def key\(self, request, space\)$"),
        (
            "scheduler",
            "ForgetsSuper",
            r"does not call super\(\).__init__\(\), so it has no blocked, max_skips",
        ),
        ("scheduler", "ReturnsNothing", "key returned None; it has to return"),
        ("scheduler", "ReturnsTuple", "key returned a tuple; an order's key is a number"),
        (
            "scheduler",
            "OtherArguments",
            r"key\(self, request\) cannot be called.*def key\(self, request, space\)",
        ),
        ("scheduler", "AsksForMore", r"it is made as Class\(\), which its __init__ refuses"),
        ("scheduler", "Nobody", "has no class 'Nobody'; it has: HonestFit, "),
        ("scheduler", "NewestFirst", r"not a subclass of labkit\.serving\.order\.QueueOrder"),
        ("eviction", "EvictsNothing", "key returned None"),
        ("eviction", "NoEvictionKey", r"it has no key; write def key\(self, entry\)"),
        ("allocator", "NoAllocator", r"not a subclass of labkit\.memory\.base\.Allocator"),
    ],
)
def test_what_cannot_be_an_entry_is_said_before_the_run(monkeypatch, kind, name, says):
    monkeypatch.setattr("labkit.teach.leaderboard._judge", lambda kind: None)  # nothing is run
    with pytest.raises(LabError, match=says):
        run_board(kind, entry(name))


def test_what_is_an_entry_passes_the_look():
    for kind, names in (
        ("allocator", ["HonestFit", "Overlaps", "Coin"]),
        ("scheduler", ["ShortFirst", "TenPercent", "Whole", "Breaks"]),
        ("eviction", ["NewestFirst", "WrongBlock"]),
    ):
        for name in names:
            check_entry(kind, entry(name))
    from labkit.serving.admission import ADMISSIONS
    from labkit.serving.batching import BATCHINGS
    from labkit.serving.pressure import PRESSURES

    for registry in (EVICTION, ORDERS, ADMISSIONS, BATCHINGS, PRESSURES):
        for name in registry:
            check_entry("eviction" if registry is EVICTION else "scheduler", registry[name])


def test_the_example_of_the_text_is_an_entry(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    block = text.split("## An example")[1].split("`labkit leaderboard")[0]
    mine = tmp_path / "mine.py"
    mine.write_text("\n".join(line[4:] for line in block.splitlines()))
    check_entry("scheduler", f"{mine}:ShortThenOld")
    fields = {name for name, _ in inspect.getmembers(Request)} | {
        f.name for f in dataclasses.fields(RequestSpec)
    }
    rows = text.split("| field | what |")[1].split("\n\n")[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`(?:spec\.)?(\w+)`", row.split("|")[1])]
    assert len(named) >= 10
    assert set(named) <= fields


def test_a_none_in_the_middle_is_explained():
    load = serving_loads(40)[0]
    build_it = partial(leaderboard_scheduler.entry_scheduler, entry("NoneLater"), load)
    with pytest.raises(Disqualified, match=r"TypeError.*did a method, key for instance, return None\?"):
        Contest(load, build_it).result()


def test_equals_share_a_place_and_a_table_that_compares_nothing_says_so():
    def row(name, score, second, problem=""):
        return Row(
            name, "built in", (Result("load", {"good_share": score, "lost_tokens": second}, 1, 1.0),), problem
        )

    board = Board("scheduler", ("good_share", "lost_tokens"), ["Load"])
    board.rows = [
        row("d", 0.8, 0),
        row("a", 0.9, 5),
        row("c", 0.9, 5),
        row("b", 0.9, 1234.6),
        row("x", 1, 0, "cheat"),
    ]
    assert {r.name: board.place(r) for r in board.rows} == {"a": 1, "c": 1, "b": 3, "d": 4, "x": None}
    assert [r["place"] for r in board.as_dict()["rows"]] == [1, 1, 3, 4, None]
    assert board.place_of("x") == 5
    assert board.note() == ""
    assert "share the first place" not in board.text()
    assert "1,235 " in board.text()  # no decimals in tokens
    board.rows = [row("a", 0.9, 5), row("b", 0.9, 5), row("c", 0.1, 5)]
    assert "2 of 3 rows share the first place" in board.text()


def test_columns_are_explained_and_loads_shown(boards):
    for board, _ in boards.values():
        text = board.text()
        assert all(says in text for _, says in (COLUMNS[c] for c in board.columns))
        names = [result.load for result in board.rows[0].results]
        assert not any(f"{name} (places" in text for name in names)
        assert all(f"{name} (places" in board.text(loads=True) for name in names)


def test_recorded_ops_are_whole():
    for load in serving_loads(40):
        trace = record(load)
        kinds = [kind for kind, _, _ in trace.ops]
        assert kinds.count("malloc") == kinds.count("free") == trace.num_requests == 40
        assert kinds.count("grow") > 0
        assert len(trace.ops) == len(record(load).ops)


def test_another_future_keeps_the_past():
    load = serving_loads(60)[0]
    played = play(lambda: leaderboard_scheduler.lab(load), load.requests)
    at = len(played.steps) // 2
    changed = another_future(load.requests, played, at)
    again = play(lambda: leaderboard_scheduler.lab(load), changed)
    assert again.steps[:at] == played.steps[:at]
    assert again.steps != played.steps
    assert [r.request_id for r in changed] == [r.request_id for r in load.requests]


def test_every_built_in_policy_is_innocent():
    load = serving_loads(40)[2]
    for name, options in leaderboard_scheduler.BUILT_IN.items():
        played = play(lambda o=options: leaderboard_scheduler.lab(load, **o), load.requests)
        at = len(played.steps) // 2
        again = play(
            lambda o=options: leaderboard_scheduler.lab(load, **o), another_future(load.requests, played, at)
        )
        assert again.steps[:at] == played.steps[:at], name


def test_the_command_line(tmp_path):
    runner = CliRunner()
    made = build(["leaderboard"])
    picture = tmp_path / "board.png"
    good = runner.invoke(
        made, ["leaderboard", "allocator", entry("HonestFit"), "-n", "30", "--json", "--figure", str(picture)]
    )
    assert good.exit_code == 0, good.output
    rows = json.loads(good.output)["rows"]
    assert any(row["kind"] == "entry" and row["place"] for row in rows)
    assert picture.stat().st_size > 10_000
    bad = runner.invoke(made, ["leaderboard", "allocator", entry("Overlaps"), "-n", "30"])
    assert bad.exit_code == 1
    assert "> Overlaps" in bad.output
    assert "corrupts memory" in bad.output
    for arguments, says in (
        (["gossip"], "choose one of: allocator, scheduler, eviction"),
        (["allocator", "mine"], "write FILE.py:Class"),
        (["allocator", "nowhere.py:X"], "no such file"),
        (["allocator", "-n", "3"], "at least 20"),
    ):
        result = runner.invoke(made, ["leaderboard", *arguments])
        assert isinstance(result.exception, LabError)
        assert says in str(result.exception)


def test_a_class_of_ones_own_needs_no_file():
    class Mine(leaderboard_eviction.EvictionQueue):
        name = "mine"

        def key(self, entry):
            return (entry.num_hits > 0, entry.last_used)

    board = run_board("eviction", Mine, num_requests=30)
    assert board.entry is not None
    assert board.entry.name == "Mine"
    assert not board.entry.problem
    assert 1 <= board.place_of("Mine") <= len(board.rows)
    assert "entry" not in EVICTION
