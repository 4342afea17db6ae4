"""The CUDA-graph cases of ``kernel.check``, with a stand-in for the capture: which replay is compared with what."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernel import check  # noqa: E402
from kernel import sparse_mla_decode as subject  # noqa: E402

pytestmark = pytest.mark.kernel


def recorded(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """What a graph does: the outputs stay where they are, and a replay reads the inputs where they were."""
    outputs = call()

    def replay() -> None:
        for kept, new in zip(outputs, call(), strict=True):
            kept.copy_(new)

    return outputs, replay


def module_with(choose: Callable[[Any], Any]) -> Any:
    """Our kernel, which is given another q than the caller's."""

    def sparse_mla_decode(q_B1HD: Any, *arguments: Any, **keywords: Any) -> Any:
        return subject.sparse_mla_decode(choose(q_B1HD), *arguments, **keywords)

    return SimpleNamespace(sparse_mla_decode=sparse_mla_decode)


def outcome(module: Any, capture: Any = recorded) -> dict[str, bool]:
    """Whether each replay was right, by its name."""
    return {result.name: result.passed for result in check.check_graphs(module, 1, "cpu", capture)}


def test_two_captures_and_three_replays_pass() -> None:
    """Our kernel keeps nothing from call to call: every replay is that of its own fresh inputs."""
    assert outcome(subject) == {
        "CUDA graph, first capture": True,
        "CUDA graph, second capture": True,
        "CUDA graph, first capture again": True,
    }


def test_inputs_kept_from_the_capture_are_seen() -> None:
    """A kernel that copies its inputs once for each shape replays the old ones."""
    kept: dict[int, Any] = {}
    found = outcome(module_with(lambda q: kept.setdefault(q.shape[0], q.clone())))
    assert list(found.values()) == [False, False, False]


def test_memory_that_a_later_capture_takes_over_is_seen() -> None:
    """A kernel with one buffer for all calls is right until the second capture has replaced it."""
    largest: list[Any] = []

    def choose(q: Any) -> Any:
        if not largest or q.shape[0] > largest[-1].shape[0]:
            largest.append(q)
        return largest[-1][: q.shape[0]]

    assert list(outcome(module_with(choose)).values()) == [True, True, False]


def test_a_capture_that_fails_is_a_finding() -> None:
    """One line with the reason, and the rest is not tried."""

    def refuse(_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    (result,) = check.check_graphs(subject, 1, "cpu", refuse)
    assert (result.name, result.passed) == ("CUDA graph, first capture", False)
    assert result.problem is not None
    assert result.problem.startswith("RuntimeError: operation not permitted when stream is capturing")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_graphs_pass() -> None:
    """The same with real captures."""
    results = check.check_graphs(subject, 1, "cuda", check.capture_graph)
    assert [result.problem for result in results] == [None, None, None]
