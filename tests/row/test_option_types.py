"""Numbers of the command line, and what becomes of other text."""

from __future__ import annotations

import argparse

import pytest

from opatlas.options import ListAction, at_least, between, items_of, one_of, positive, versions
from opatlas.row.versions import Versions


@pytest.mark.parametrize("text", ["1", "-3", "2.0", "two", "", "\uff11\uff12", "\u0663", "1_000", "9" * 5000])
def test_what_is_none_or_too_small_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}': .* 2 "):
        at_least(2)(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "", "\uff11", "1_0"])
def test_no_time_is_endless(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}': .* 0$"):
        positive(text)


@pytest.mark.parametrize("arguments", [["1,2,3"], ["1", "2", "3"], ["1,2", "3,"]])
def test_lists_have_commas_or_blanks_between_their_items(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", nargs="+", action=ListAction, type=items_of(at_least(1)), default=[7])
    assert parser.parse_args(["--sizes", *arguments]).sizes == [1, 2, 3]
    assert parser.parse_args([]).sizes == [7]


@pytest.mark.parametrize("text", ["bench/", "test_collectives.py", "test_a.py::test_b"])
def test_a_path_behind_a_list_is_told_from_a_wrong_item(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        items_of(one_of(["left", "right"]))(text)
    assert "left" not in str(caught.value), "an item was not meant"


def test_names_and_ports() -> None:
    assert (one_of(["left", "right"])("left"), between(1, 65535)("65535")) == ("left", 65535)
    with pytest.raises(argparse.ArgumentTypeError, match=r"'rihgt' .*\bright\b.*: .*left, right"):
        one_of(["left", "right"])("rihgt")
    with pytest.raises(argparse.ArgumentTypeError, match=r"'65536': .* 1 \w+ 65535"):
        between(1, 65535)("65536")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vllm=0.18.0", Versions(vllm="0.18.0")),
        ("vllm=v0.18.0,cann=8.5", Versions(vllm="0.18.0", cann="8.5")),
        ("vllm=0.18.0,torch=2.9.0+cpu,CANN=8.3.RC1", Versions("0.18.0", "2.9.0+cpu", "8.3.RC1")),
        ("vllm-ascend = v0.18.1rc1", Versions(vllm="0.18.1rc1")),
        ("vllm_ascend=0.18.1.dev5+gabc12.d2026", Versions(vllm="0.18.1.dev5+gabc12.d2026")),
        ("torch=2.9.0.post1", Versions(torch="2.9.0.post1")),
        (" cann=9.0.0-beta.1, torch=2.11.0a0+git12ab", Versions(torch="2.11.0a0+git12ab", cann="9.0.0-beta.1")),
        ("cann=8.2.RC1.alpha002", Versions(cann="8.2.RC1.alpha002")),
    ],
)
def test_versions_as_users_spell_them(text: str, found: Versions) -> None:
    assert versions(text) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "vllm=0.18.0"),
        ("8.5", "--versions vllm=0.18.0,torch=2.9.0,cann=8.5"),
        ("tensorflow=2.9.0", "'tensorflow=2.9.0'"),
        ("cann=8.5,cann=8.3", "CANN"),
        *((f"cann={text}", "cann=8.5") for text in ("", "v", "8", "main", "8.5_warm", "8.5/..", "vv8.5", "\uff18.5")),
    ],
)
def test_what_is_no_version_is_refused_with_the_right_spelling(text: str, named: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        versions(text)
    assert named in str(refused.value)
