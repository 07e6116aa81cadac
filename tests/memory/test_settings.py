"""The settings string, read like PyTorch reads it: rules, errors, and the installed PyTorch as a judge."""

from __future__ import annotations

import pytest

from labkit.errors import LabError
from labkit.memory.caching.rounding import device_size, round_size
from labkit.memory.caching.settings import UNLIMITED, AllocatorConfError, AllocatorSettings
from labkit.units import MIB

ERRORS = {
    "foo:1": "Unrecognized key 'foo' in Accelerator allocator config.",
    "expandable_segments:true": "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
    "expandable_segments": "Index out of bounds in ConfigTokenizer",
    "max_split_size_mb:19": "CachingAllocator option max_split_size_mb too small, must be >= 20",
    "max_non_split_rounding_mb:19": "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20",
    "large_segment_size_mb:10": "CachingAllocator option large_segment_size_mb must be > 10 MB",
    "large_segment_size_mb:32,max_split_size_mb:31": "CachingAllocator option max_split_size_mb too small, must be >= 32",
    "max_split_size_mb:abc": "stoull",
    "garbage_collection_threshold:0": "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
    "garbage_collection_threshold:1.0": "garbage_collect_threshold is invalid, set it in (0.0, 1.0)",
    "garbage_collection_threshold:x": "stod",
    "roundup_power2_divisions:3": "For roundups, the divisions has to be power of 2",
    "roundup_power2_divisions:0": "For roundups, the divisions has to be power of 2",
    "roundup_power2_divisions:[3:8]": "For roundups, the intervals have to be power of 2",
    "roundup_power2_divisions:[64:3]": "For roundups, the divisions has to be power of 2 or 0 to disable roundup",
    "roundup_power2_divisions:[64:8": "Index out of bounds in ConfigTokenizer",
    "per_process_memory_fraction:1.5": "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
    "backend:other": "Unknown allocator backend, options are native and cudaMallocAsync",
    "pinned_num_register_threads:3": "Number of register threads has to be power of 2, got 3",
    "pinned_reserve_segment_size_mb:0": "Pinned reserve segment size has to be greater than 0",
}


@pytest.mark.parametrize(("conf", "text"), ERRORS.items())
def test_a_bad_value_gets_the_text_of_pytorch(conf, text):
    with pytest.raises(AllocatorConfError) as caught:
        AllocatorSettings.parse(conf)
    assert str(caught.value).startswith(text)
    assert conf in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LabError)


def test_a_list_of_divisions_has_holes():
    divisions = AllocatorSettings.parse("roundup_power2_divisions:[64:8,256:4,512:2,>:1]").divisions
    assert divisions == [8] * 7 + [0, 4, 2] + [1] * 6
    assert round_size(200 * MIB + 1, divisions) == 200 * MIB + 512
    assert round_size(100 * MIB, divisions) == 104 * MIB
    assert AllocatorSettings.parse("roundup_power2_divisions:[>:4]").divisions == [0] + [4] * 15
    assert AllocatorSettings.parse("roundup_power2_divisions:4").divisions == [4] * 16


def test_a_second_string_resets_some_settings_and_keeps_others():
    settings = AllocatorSettings.parse(
        "large_segment_size_mb:40,max_split_size_mb:50,garbage_collection_threshold:0.5,"
        "roundup_power2_divisions:8,expandable_segments:True,max_non_split_rounding_mb:60"
    )
    assert settings.max_non_split_rounding_size == 60 * MIB
    settings.set("")
    assert settings.max_split_size == UNLIMITED
    assert settings.divisions == [0] * 16
    assert settings.garbage_collection_threshold == 0
    assert settings.large_segment_size == settings.max_non_split_rounding_size == 40 * MIB
    assert settings.expandable_segments is True
    with pytest.raises(AllocatorConfError):
        settings.set("large_segment_size_mb:64,foo:1")
    assert settings.large_segment_size == 64 * MIB


@pytest.mark.parametrize(
    ("size", "rounded", "asked"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)
def test_rounding_at_the_boundaries(size, rounded, asked):
    settings = AllocatorSettings()
    assert round_size(size, settings.divisions) == rounded
    assert device_size(rounded, settings) == asked


def test_rounding_to_divisions():
    for size, parts, expected in [
        (1200, 4, 1536),  # not above 512 * 4: to 512 bytes
        (2049, 4, 2560),  # a step of 2048 / 4
        (4096, 4, 4096),  # a power of two stays
        (5 * MIB, 4, 5 * MIB),
        (5 * MIB + 1, 4, 6 * MIB),
        (7 * MIB + 1, 1, 7 * MIB + 512),  # one division is none
    ]:
        assert round_size(size, [parts] * 16) == expected, (size, parts)


def test_the_installed_pytorch_accepts_and_refuses_the_same_common_settings():
    """Its core parser works without a GPU. Only keys of c10/core are tried: a CPU build has no list of all keys, so it refuses no unknown one."""
    torch = pytest.importorskip("torch")
    set_real = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_real is None:
        pytest.skip("this PyTorch has no _accelerator_setAllocatorSettings")
    values = [
        "",
        "0",
        "1",
        "19",
        "20",
        "-5",
        "+21",
        "0x20",
        "20;x",
        "20.5",
        "abc",
        "99999999999999999999999",
        "True",
    ]
    values += [
        "False",
        "true",
        "0.5",
        "1e-5",
        "1e999",
        "nan",
        "inf",
        "[64:8,256:4,>:1]",
        "[3:8]",
        "[>:3]",
        "[",
        "[]",
    ]
    values += ["[64:8", "[64:8][", "[64:8,>:1,128:2]", "4", "3", ".5", "5.", "1e", "[64:0]", "[0:8]"]
    keys = ["large_segment_size_mb", "max_split_size_mb", "max_non_split_rounding_mb", "expandable_segments"]
    keys += ["garbage_collection_threshold", "roundup_power2_divisions", "pinned_use_background_threads"]
    keys += ["pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"]
    confs = [f"{key}:{value}" for key in keys for value in values] + keys + [f"{key}:" for key in keys]
    confs += ["", "max_split_size_mb,25", " max_split_size_mb : \t25 ,expandable_segments:True,"]
    disagreed = []
    try:
        for conf in confs:
            set_real("large_segment_size_mb:20")
            real, ours = _outcome(set_real, conf), _outcome(AllocatorSettings.parse, conf)
            if not (real is ours is None or (real and ours and ours.startswith(real))):
                disagreed.append((conf, real, ours))
    finally:
        set_real("large_segment_size_mb:20,expandable_segments:False,pinned_use_background_threads:False")
    assert not disagreed


def _outcome(parse, conf):
    """None, or the error's own text without PyTorch's file, line and traceback."""
    try:
        parse(conf)
    except (ValueError, RuntimeError, IndexError, LabError) as error:
        text = str(error).split("\n")[0].strip()
        return text.split("please report a bug to PyTorch. ")[-1]
    return None
