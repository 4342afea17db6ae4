"""Judging: every sentence is said when it is true and only then, and the status follows from the fatal ones."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.check.judging import Evidence, judge
from orchestrator.verdicts import ConfigReport, PipelinedBuffer, Sentence
from tests.support.config_reports import report, seed_config, seed_report

SEED = [seed_report(0, 2), seed_report(1, 2, 8), seed_report(2, 2, 4, 32)]
"""The seed's baseline: of three configs the last, with BLOCK_T 32, does not fit on sm_120."""


def judged(*reports: ConfigReport, **facts: Any) -> tuple[list[str], str]:
    """The texts by kind, fatal ones marked, and the status."""
    facts.setdefault("n_configs", len({one.index for one in reports}))
    facts.setdefault("n_baseline_configs", len({one.index for one in facts.get("baseline_reports", ())}))
    sentences, status = judge(Evidence(variant="V2", reports=reports, **facts))
    return [_shown(sentence) for sentence in sentences], status


def _shown(sentence: Sentence) -> str:
    return f"{'FATAL ' if sentence.is_fatal else ''}{sentence.kind}: {sentence.text}"


# ---- compiles and launches


def test_a_config_that_does_not_compile_is_named_with_its_error() -> None:
    """One of two is no end; all of them are, and a common error is told once."""
    broken = [seed_report(n, 2 + n, error="line 3: no such name 'x'") for n in range(2)]
    assert judged(broken[0], seed_report(1, 2)) == (
        [
            "does-not-compile: config 0 (BLOCK_T=16 num_warps=4 num_stages=2) of V2 does not compile for sm_120: "
            "line 3: no such name 'x'"
        ],
        "ok",
    )
    assert judged(*broken) == (
        ["FATAL does-not-compile: configs 0 and 1 of V2 do not compile for sm_120: line 3: no such name 'x'"],
        "does-not-compile",
    )


def test_a_config_that_cannot_launch_is_skipped_without_a_word() -> None:
    """Its need and the limit are named; the other configs can still be used."""
    texts, status = judged(*SEED, is_baseline=True)
    assert texts[0] == (
        "cannot-launch: config 2 (BLOCK_T=32 num_warps=4 num_stages=2) of the baseline cannot launch on sm_120: a "
        "block needs 112,704 B of shared memory and is allowed 101,376 B; the autotuner skips it without a word"
    )
    assert status == "ok"


def test_several_that_cannot_launch_are_one_sentence() -> None:
    """With the reason of the one that needs least."""
    texts, _ = judged(seed_report(0, 5, 4, 32), seed_report(1, 2, 4, 32), seed_report(2, 2))
    assert texts[0].startswith("cannot-launch: configs 0 and 1 of V2 cannot launch on sm_120: in config 1 (BLOCK_T=32 ")


def test_a_variant_that_cannot_launch_at_all_is_fatal() -> None:
    """Alone or with every config of its list; on another architecture it may fit."""
    texts, status = judged(seed_report(0, 2, 4, 32), baseline_reports=SEED)
    need = "a block needs 112,704 B of shared memory and is allowed 101,376 B"
    assert texts == [f"FATAL cannot-launch: V2 cannot launch on sm_120: {need}"]
    assert status == "cannot-launch"
    texts, status = judged(seed_report(0, 2, 4, 32), seed_report(1, 5, 4, 32))
    assert texts[0].startswith("FATAL cannot-launch: no config of V2 can launch on sm_120: in config 0 (BLOCK_T=32 ")
    assert status == "cannot-launch"
    texts, status = judged(seed_report(0, 2, 4, 32, arch=90), seed_report(0, 2, 4, 32))
    assert [text.split(":")[0] for text in texts] == ["FATAL cannot-launch"]
    assert status == "cannot-launch"


def test_without_reports_nothing_was_checked() -> None:
    """The facts of the edit are told all the same."""
    texts, status = judged(moved_line=(120, 124), same_size_files=("decode.py",))
    assert [text.split(":")[0] for text in texts] == ["same-size", "moved-function"]
    assert "line 120 to 124" in texts[1]
    assert "decode.py" in texts[0]
    assert status == "not-checked"


# ---- differs

FATAL_SAME = "FATAL same-binary: V2 compiles to the same binary as the baseline: this experiment cannot change anything"


def test_the_same_binary_as_the_baseline_is_fatal() -> None:
    """num_stages 3 and 4 are one binary: an experiment with them measures noise."""
    texts, status = judged(seed_report(0, 4), baseline_reports=[seed_report(0, 3)])
    assert texts[0] == FATAL_SAME
    assert status == "same-binary"


def test_the_same_list_as_the_baseline_is_fatal() -> None:
    """In any order; what cannot launch does not count, on either side."""
    texts, status = judged(SEED[1], SEED[0], baseline_reports=SEED)
    assert texts[0] == (
        "FATAL same-binary: V2 compiles to the same 2 binaries as the baseline, whose config 2 (BLOCK_T=32 num_warps=4 "
        "num_stages=2) cannot launch: this experiment cannot change anything"
    )
    assert status == "same-binary"


def test_a_baseline_config_that_was_not_compiled_differs() -> None:
    """With one more config than is known the baseline may run something else."""
    texts, status = judged(SEED[0], baseline_reports=[SEED[0]], n_baseline_configs=2)
    assert texts == [
        "same-binary: V2 is the baseline's config 0 (BLOCK_T=16 num_warps=4 num_stages=2) alone: it can only show what "
        "the autotuner's choice costs"
    ]
    assert status == "ok"


@pytest.mark.parametrize("unknown", [{"n_configs": None}, {"n_baseline_configs": None}])
def test_lists_that_cannot_be_told_give_no_fatal_verdict(unknown: dict[str, None]) -> None:
    """Only the equal binary is told."""
    texts, status = judged(SEED[0], baseline_reports=[SEED[0]], **unknown)
    assert texts == [
        "same-binary: V2 compiles to the binary of the baseline's config 0 (BLOCK_T=16 num_warps=4 num_stages=2)"
    ]
    assert status == "ok"


def test_an_edited_launcher_may_still_differ() -> None:
    """The same binary with another launcher can change something, whole list or part."""
    texts, status = judged(SEED[0], baseline_reports=[SEED[0]], may_change_launch=True)
    assert texts == ["same-binary: V2 has the same binary as the baseline: only the launcher differs"]
    assert status == "ok"
    texts, _ = judged(SEED[0], baseline_reports=SEED, may_change_launch=True)
    assert texts[0].endswith("alone: beside the choice only the launcher differs")


@pytest.mark.parametrize(
    "other",
    [seed_report(0, 3, code="new"), seed_report(0, 2, 8), seed_report(0, 2, error="boom"), seed_report(0, 3)],
)
def test_another_binary_is_not_the_same(other: ConfigReport) -> None:
    """Other code, another block size, no code at all, another num_stages that matters."""
    texts, status = judged(other, baseline_reports=[seed_report(0, 2)])
    assert not any("same-binary" in text for text in texts)
    assert status != "same-binary"


def test_a_list_with_a_config_that_does_not_compile_is_not_the_same() -> None:
    """The engine may end at it, where the baseline's does not."""
    _, status = judged(seed_report(0, 2), seed_report(1, 3, error="boom"), baseline_reports=[seed_report(0, 2)])
    assert status == "ok"


def test_equal_code_with_other_meta_parameters_is_not_the_same() -> None:
    """A launcher may size its grid by them."""
    facts: dict[str, Any] = {"binary_digest": "sha256:1", "shared_bytes": 1_024, "n_registers": 32}
    small, large = (report(0, seed_config(2, 4, block_t), **facts) for block_t in (16, 32))
    assert judged(small, baseline_reports=[large]) == ([], "ok")


def test_the_same_on_one_architecture_alone_is_not_fatal() -> None:
    """It is said for that architecture; the same on both is said once."""
    base = [seed_report(0, 2, arch=arch) for arch in (90, 120)]
    texts, status = judged(seed_report(0, 2, arch=90, code="new"), base[1], baseline_reports=base)
    assert texts == [
        "same-binary: on sm_120, V2 compiles to the same binary as the baseline: this experiment cannot change anything"
    ]
    assert status == "ok"
    assert judged(*base, baseline_reports=base) == ([FATAL_SAME], "same-binary")


def test_the_same_binary_as_another_variant_is_told() -> None:
    """V2 and V2b measure one kernel twice; that is no verdict on either."""
    texts, status = judged(
        seed_report(0, 4), baseline_reports=SEED, others={"V2b": [seed_report(0, 3)], "V3": [seed_report(0, 5)]}
    )
    assert "same-binary: V2 and V2b are the same binary: measure one of them" in texts
    assert not any("V3" in text for text in texts)
    assert status == "ok"


def test_two_configs_of_one_list_that_are_one_binary_are_told() -> None:
    """The autotuner measures one kernel twice."""
    texts, _ = judged(seed_report(0, 3), seed_report(1, 4), seed_report(2, 5))
    assert "same-binary: configs 0 and 1 are the same binary: num_stages=3 and 4 make no difference" in texts


def test_the_baseline_is_not_compared_with_itself() -> None:
    """Its verdict has no sentence on being the same."""
    texts, status = judged(SEED[0], is_baseline=True, baseline_reports=[SEED[0]], others={"V2": [SEED[0]]})
    assert texts == []
    assert status == "ok"


# ---- num_stages and num_warps


def test_what_num_stages_3_really_changes() -> None:
    """One tile stays in flight, as with 2; what changes is a small buffer of the index; 5 is the first with two."""
    texts, _ = judged(seed_report(0, 3), baseline_reports=SEED)
    assert texts == [
        "stages-keep-buffers: num_stages=3 keeps one buffer for the largest load (16×512 fp8e4nv, 8,192 B), as "
        "num_stages=2 does; 5 is the first with two; what changes is one more small buffer (16 i32, 64 B), which lets "
        "the index load start earlier"
    ]


def test_fewer_stages_that_keep_as_many_tiles() -> None:
    """What goes is told as such, and nothing of an earlier start."""
    texts, _ = judged(seed_report(0, 2, stages_buffers={}), baseline_reports=[seed_report(0, 3)])
    assert texts[0].endswith("as num_stages=3 does; what changes is one fewer small buffer (16 i32, 64 B)")


def test_more_tiles_than_before_and_fewer_than_the_number_says() -> None:
    """num_stages 5 keeps two; without a baseline nothing is compared; a search that found nothing says how far."""
    tile = "16×512 fp8e4nv, 8,192 B each"
    texts, _ = judged(seed_report(0, 5), baseline_reports=SEED)
    assert texts == [
        f"stages-keep-buffers: num_stages=5 keeps two buffers for the largest load ({tile}), where num_stages=2 keeps "
        "one; 7 is the first with three"
    ]
    texts, _ = judged(seed_report(0, 7))
    kept = f"num_stages=7 keeps three buffers for the largest load ({tile})"
    assert texts == [f"stages-keep-buffers: {kept}; no value up to 8 adds one"]


def test_a_gap_in_the_search_is_not_called_the_first() -> None:
    """Only what was looked at is told."""
    two = (PipelinedBuffer((16, 512), "fp8e4nv", 2, 8_192),)
    texts, _ = judged(seed_report(0, 3, stages_buffers={6: two}))
    assert texts[0].endswith("(16×512 fp8e4nv, 8,192 B); 6 has two")
    texts, _ = judged(seed_report(0, 3, stages_buffers={}))
    assert texts[0].endswith("(16×512 fp8e4nv, 8,192 B)")


def test_enough_tiles_need_no_sentence() -> None:
    """num_stages 2 with one tile in flight is what it says."""
    assert judged(seed_report(0, 2)) == ([], "ok")


def test_another_load_that_changes_is_not_called_an_index() -> None:
    """Of a load with two dimensions only the buffers are told."""
    tile, rope = PipelinedBuffer((16, 512), "bf16", 1, 16_384), PipelinedBuffer((16, 64), "bf16", 1, 2_048)
    texts, _ = judged(
        seed_report(0, 3, buffers=(tile,), stages_buffers={}),
        baseline_reports=[seed_report(0, 2, buffers=(tile, rope))],
    )
    assert texts[0].endswith("as num_stages=2 does; what changes is one fewer small buffer (16×64 bf16, 2,048 B)")


def test_a_loop_without_a_dot_ignores_num_stages() -> None:
    """Said when no config pipelines anything, and then instead of counting buffers; not when a load is pipelined."""
    idle = {"buffers": (), "stages_buffers": {4: ()}, "has_dot_in_loop": False}
    texts, _ = judged(seed_report(0, 3, **idle))
    assert texts == [
        "no-dot-in-loop: there is no tl.dot in the loop and nothing in it is pipelined, so num_stages does nothing"
    ]
    assert judged(seed_report(0, 2, has_dot_in_loop=False)) == ([], "ok")
    texts, _ = judged(seed_report(0, 3, **idle, has_loop=False))
    assert texts == ["no-dot-in-loop: there is no loop, so num_stages does nothing"]
    texts, _ = judged(seed_report(0, 3, **(idle | {"has_dot_in_loop": True})))
    assert texts == [
        "stages-keep-buffers: num_stages=3 keeps no buffer (nothing in the loop is pipelined); no value up to 4 adds "
        "one"
    ]


def test_more_warps_a_block_that_are_no_more_an_sm() -> None:
    """242 registers let 8 warps on an SM, as two blocks of 4 or one of 8; where more do fit nothing is said."""
    small = [seed_report(0, 2, 4, shared_bytes=40_000), seed_report(0, 2, 8, shared_bytes=40_000, n_registers=242)]
    texts, _ = judged(small[1], baseline_reports=[small[0]])
    assert texts == [
        "more-warps-same-occupancy: num_warps=8 puts no more warps on an SM than the baseline's 4: 8 in 1 block "
        "against 8 in 2 blocks, limited by registers (242 a thread)"
    ]
    assert judged(seed_report(0, 2, 8), baseline_reports=[seed_report(0, 2)]) == ([], "ok")
    assert judged(small[0], baseline_reports=[small[1]]) == ([], "ok")


# ---- the autotune list


def test_a_key_that_lacks_what_varies() -> None:
    """An empty key is told as such; a full one, an unknown one, and a list of one config need none."""
    configs = [seed_report(0, 2), seed_report(1, 5)]

    def key_texts(*reports: ConfigReport, **facts: Any) -> list[str]:
        return [text for text in judged(*reports, **facts)[0] if text.startswith("key-lacks-shape")]

    assert key_texts(*configs, key=("topk",), varies=("batch", "topk", "heads")) == [
        "key-lacks-shape: the autotune key lacks batch and heads, which vary: the config is chosen by whichever value "
        "comes first"
    ]
    assert key_texts(*configs, key=())[0].startswith("key-lacks-shape: the autotune key is empty")
    assert key_texts(*configs, key=("batch",), varies=("batch",)) == []
    assert key_texts(*configs, key=None, varies=("batch",)) == []
    assert key_texts(configs[0], key=(), varies=("batch",)) == []


def test_a_list_may_pick_another_kernel_at_each_restart() -> None:
    """Only when at least two of its configs are different kernels that can launch."""

    def may_switch(*reports: ConfigReport) -> bool:
        return any(text.startswith("may-switch-config") for text in judged(*reports)[0])

    assert may_switch(seed_report(0, 2), seed_report(1, 5))
    assert not may_switch(seed_report(0, 3), seed_report(1, 4))
    assert not may_switch(seed_report(0, 2), seed_report(1, 2, 4, 32))
    assert not may_switch(seed_report(0, 2))


def test_fatal_sentences_come_first() -> None:
    """Whatever is said beside them; what a machine reads is in fields of its own."""
    sentences, status = judge(
        Evidence(
            variant="V2",
            reports=[seed_report(0, 3, error="boom"), seed_report(1, 3, 4, 32)],
            n_configs=2,
            same_size_files=("decode.py",),
        )
    )
    assert status == "cannot-launch"
    assert [(sentence.kind, sentence.is_fatal, sentence.arch) for sentence in sentences] == [
        ("cannot-launch", True, 120),
        ("does-not-compile", False, 120),
        ("stages-keep-buffers", False, 120),
        ("same-size", False, None),
    ]
