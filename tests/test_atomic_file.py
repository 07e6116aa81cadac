"""Files appear whole or not at all, whoever else writes them at the same time."""

import multiprocessing
import os
import stat

import pytest

from labkit.atomic_file import atomic_path, write_atomic


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_and_bytes_are_written_and_nothing_else_stays(tmp_path):
    target = tmp_path / "table.csv"
    assert write_atomic(target, "größe\r\n") == target
    assert target.read_bytes() == "größe\r\n".encode()
    write_atomic(target, b"\x00\xff")
    assert target.read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["table.csv"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    target = tmp_path / "run.json"
    for before in (None, "old"):
        if before:
            target.write_text(before)
        with pytest.raises(KeyboardInterrupt):
            _stopped_half_way(target)
        assert names(tmp_path) == (["run.json"] if before else [])
    assert target.read_text() == "old"


def _stopped_half_way(target):
    with atomic_path(target) as temporary:
        temporary.write_text("half")
        assert temporary.parent == target.parent, "rename is one step only within a folder"
        raise KeyboardInterrupt


def test_a_reader_sees_the_old_file_until_the_new_one_is_complete(tmp_path):
    target = tmp_path / "run.json"
    write_atomic(target, "old")
    with atomic_path(target) as temporary:
        with temporary.open("w") as file:
            file.write("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_permissions_of_an_existing_file_stay(tmp_path, mode):
    target = tmp_path / "shared.json"
    target.write_text("old")
    target.chmod(mode)
    with atomic_path(target) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) & ~0o200 & ~mode == 0, "never wider than the target"
        temporary.write_text("new")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", mode)


def test_a_new_file_gets_what_the_umask_allows(tmp_path):
    write_atomic(tmp_path / "new", "")
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_two_writers_of_one_target_at_the_same_time(tmp_path):
    target = tmp_path / "x"
    with atomic_path(target) as one, atomic_path(target) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert target.read_text() == "one", "the last to finish stands"
    assert names(tmp_path) == ["x"]


def _write_many(target, letter):
    for _ in range(50):
        write_atomic(target, letter * 20_000)


def test_processes_that_write_one_target_never_mix(tmp_path):
    target = tmp_path / "x"
    spawn = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    writers = [spawn.Process(target=_write_many, args=(target, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        if target.exists():
            seen.add(target.read_bytes())
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen <= {b"a" * 20_000, b"b" * 20_000}
    assert names(tmp_path) == ["x"]


def test_folders_are_made_only_when_asked(tmp_path):
    target = tmp_path / "no" / "such" / "x"
    with pytest.raises(FileNotFoundError):
        write_atomic(target, "")
    write_atomic(target, "", parents=True)
    assert target.exists()


def test_a_folder_or_a_very_long_name_as_target(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder", "")
    write_atomic(tmp_path / ("ß" * 120), "x")
    assert names(tmp_path) == ["folder", "ß" * 120]
