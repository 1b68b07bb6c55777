"""Scopes of generated decode timelines: layers, modules, cuts, refusals, gains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from decode_timelines import (
    ATTENTION_KERNELS,
    MOE_LAYER,
    QWEN3_LAYER,
    TimelineKernel,
    collective,
    decode_steps,
    write_timeline,
)
from hypothesis import given, settings, strategies as st

from opatlas.errors import OpAtlasError, TableError
from opatlas.outer.superkernel.advice import advise
from opatlas.outer.superkernel.scopes import CutReason, ScopeAnalysis, ScopeGain, ScopeVerdict, analyse
from opatlas.outer.superkernel.scopes_command import read_timeline
from opatlas.outer.superkernel.structure import Module, ScopeKind, StepPhase, StepSource

REAL = Path(__file__).parents[3] / "shared/data/ascend_profiler"
LAYER = len(QWEN3_LAYER)


def analysis_of(folder: Path, kernels: list[TimelineKernel], **settings: object) -> ScopeAnalysis:
    without = settings.pop("without", ())
    path = write_timeline(folder / "kernel_details.csv", kernels, without=without)  # type: ignore[arg-type]
    return analyse(read_timeline(path), **settings)  # type: ignore[arg-type]


def scope_of(analysis: ScopeAnalysis, kind: ScopeKind) -> ScopeGain:
    found = analysis.scope(kind)
    assert found is not None
    return found


def counts_of(analysis: ScopeAnalysis) -> dict[CutReason, int]:
    return {cut.reason: cut.count for cut in analysis.cuts}


def test_layers_modules_and_steps_of_a_dense_model(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, decode_steps(layers=8, steps=3))
    assert (analysis.steps, analysis.steps_by, analysis.phases) == (3, StepSource.STEP_ID, {StepPhase.DECODE: 3})
    assert [(len(kind.kernel_types), kind.layers) for kind in analysis.layers] == [(LAYER, 24)]
    shape = {gain.kind: (gain.occurrences, gain.kernels, gain.super_kernels) for gain in analysis.scopes}
    assert shape == {
        ScopeKind.ATTENTION: (8, 8 * ATTENTION_KERNELS, 8),
        ScopeKind.FFN: (8, 8 * (LAYER - ATTENTION_KERNELS), 8),
        ScopeKind.LAYER: (8, 8 * LAYER, 8),
        ScopeKind.ALL_LAYERS: (1, 8 * LAYER, 1),
    }
    everything = scope_of(analysis, ScopeKind.ALL_LAYERS)
    assert everything.fused_kernels == everything.kernels
    assert (analysis.refusals, analysis.notes) == ([], [])
    assert counts_of(analysis) == {CutReason.STEP: 2}


def test_savings_are_the_capped_gaps_less_a_synchronization_at_each(tmp_path: Path) -> None:
    gaps = iter([2.0, 9.0] * 10_000)
    kernels = decode_steps(layers=4, steps=1, gap=lambda: next(gaps))
    analysis = analysis_of(tmp_path, kernels)
    gain = scope_of(analysis, ScopeKind.ALL_LAYERS)
    inner = 4 * LAYER - 1
    assert gain.gaps_us == pytest.approx(sum(each.gap_us for each in kernels[2 : 2 + inner]))
    assert gain.capped_us == pytest.approx(sum(min(each.gap_us, 5) for each in kernels[2 : 2 + inner]))
    assert gain.saved_us == pytest.approx(gain.capped_us - 0.5 * inner)
    assert gain.duration_us == pytest.approx(4 * sum(us for _, _, us in QWEN3_LAYER))
    assert gain.ceiling == pytest.approx(gain.saved_us / (gain.duration_us + gain.capped_us))
    assert gain.host_us == pytest.approx(gain.gaps_us - gain.capped_us)
    assert gain.step_share == pytest.approx(gain.saved_us / analysis.step_us)


@pytest.mark.parametrize(
    ("gap_us", "duration", "verdict"),
    [(1.5, 1.0, ScopeVerdict.BELOW_GATE), (4.9, 0.5, ScopeVerdict.WORTH_TRYING), (0.4, 1.0, ScopeVerdict.REFUSED)],
)
def test_the_gate_decides_by_the_share_of_a_step(
    tmp_path: Path, gap_us: float, duration: float, verdict: ScopeVerdict
) -> None:
    kernels = decode_steps(gap=lambda: gap_us)
    kernels = [each.of(duration_us=each.duration_us * duration) for each in kernels]
    assert scope_of(analysis_of(tmp_path, kernels), ScopeKind.ALL_LAYERS).verdict is verdict


def replaced(kernels: list[TimelineKernel], place: int, **changes: object) -> list[TimelineKernel]:
    """One kernel of every layer of every step is another one; `place` counts from the start of a layer."""
    in_step = len(kernels) // 3
    return [
        each.of(**changes)
        if 0 <= (number % in_step) - 1 < 8 * LAYER and (number % in_step - 1) % LAYER == place
        else each
        for number, each in enumerate(kernels)
    ]


def with_collective(name: str) -> Callable[[list[TimelineKernel]], list[TimelineKernel]]:
    def change(kernels: list[TimelineKernel]) -> list[TimelineKernel]:
        found = []
        for number, each in enumerate(kernels):
            found.append(each)
            if each.kernel_type == "MatMulV2" and kernels[number + 1].kernel_type == "AddRmsNorm":
                found.append(collective(name, 20.0, 1.0, each.step))
        return found

    return change


@pytest.mark.parametrize(
    ("change", "reason", "super_kernels"),
    [
        (lambda kernels: replaced(kernels, 5, stream="3"), CutReason.OTHER_STREAM, 2),
        (lambda kernels: replaced(kernels, 5, core="AI_CPU"), CutReason.AI_CPU, 2),
        (lambda kernels: replaced(kernels, 5, core="DSA_SQE", kernel_type="DSARandomNormal"), CutReason.NO_AI_CORE, 2),
        (lambda kernels: replaced(kernels, 12, kernel_type="Cast"), CutReason.UNFUSABLE, 1),
        (lambda kernels: replaced(kernels, 2, kernel_type="StridedSliceD"), CutReason.UNFUSABLE, 2),
        (lambda kernels: replaced(kernels, 2, state="dynamic"), CutReason.DYNAMIC, 2),
        (with_collective("hcom_batchSendRecv_"), CutReason.COLLECTIVE, 1),
        (with_collective("hcom_allReduce_"), None, 1),
    ],
    ids=["stream", "AI_CPU", "DSA", "Cast", "StridedSliceD", "dynamic", "batchSendRecv", "allReduce"],
)
def test_each_cut_splits_and_is_counted(
    tmp_path: Path,
    change: Callable[[list[TimelineKernel]], list[TimelineKernel]],
    reason: CutReason | None,
    super_kernels: int,
) -> None:
    analysis = analysis_of(tmp_path, change(decode_steps(layers=8, steps=3)))
    counts = counts_of(analysis)
    assert counts.pop(CutReason.STEP) == 2
    of_layers = 3 * 8 * (2 if reason is CutReason.COLLECTIVE else 1)
    assert counts == ({} if reason is None else {reason: of_layers})
    assert all(cut.sources for cut in analysis.cuts if cut.reason is CutReason.UNFUSABLE)
    assert scope_of(analysis, ScopeKind.ATTENTION).super_kernels == 8 * super_kernels
    assert analysis.supported_collectives == (3 * 16 if reason is None else 0)


def test_a_concurrent_kernel_splits_nothing_unless_others_wait_for_it(tmp_path: Path) -> None:
    kernels = decode_steps(layers=4, steps=2)
    concurrent = kernels[6].of(kernel_type="Muls", stream="3", duration_us=2.0, gap_us=-4.0)
    alone = analysis_of(tmp_path, kernels)
    # It ends 2 us before the kernel that it runs with, and the next kernel starts as it did.
    meanwhile = [*kernels[:9], concurrent, kernels[9].of(gap_us=kernels[9].gap_us + 2.0), *kernels[10:]]
    analysis = analysis_of(tmp_path, meanwhile)
    assert counts_of(analysis)[CutReason.OTHER_STREAM] == 1
    for kind in (ScopeKind.LAYER, ScopeKind.ALL_LAYERS):
        with_it, without_it = scope_of(analysis, kind), scope_of(alone, kind)
        assert (with_it.super_kernels, with_it.saved_us) == (without_it.super_kernels, without_it.saved_us)
    longer = concurrent.of(duration_us=4.5)
    later = analysis_of(tmp_path, [*kernels[:9], longer, kernels[9].of(gap_us=1.0), *kernels[10:]])
    assert (
        scope_of(later, ScopeKind.ALL_LAYERS).super_kernels == scope_of(alone, ScopeKind.ALL_LAYERS).super_kernels + 0.5
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda kernels: replaced(kernels, 7, kernel_type="FlashAttentionScoreGrad"), "training"),
        (lambda kernels: replaced(kernels, 7, kernel_type="PromptFlashAttention"), "prefill"),
        (lambda kernels: replaced(kernels, 7, cells={"Input Shapes": '"4096,32,128;9,1;9,1;;9,9;3;3"'}), "prefill"),
        (lambda kernels: kernels[:1], "one kernel"),
    ],
    ids=["training", "prefill", "tokens", "one kernel"],
)
def test_a_capture_of_something_else_is_refused(
    tmp_path: Path, change: Callable[[list[TimelineKernel]], list[TimelineKernel]], word: str
) -> None:
    analysis = analysis_of(tmp_path, change(decode_steps(layers=8, steps=3)))
    assert [refusal.partition(":")[0] for refusal in analysis.refusals] == [word]
    assert {gain.verdict for gain in analysis.scopes} == {ScopeVerdict.REFUSED}
    assert advise(analysis).order == ()


def test_an_excerpt_is_refused_and_a_single_odd_wait_is_reported(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "kernel_details.csv", decode_steps())
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *lines[:50], *lines[51:]]) + "\n")
    one_missing = analyse(read_timeline(path))
    assert (read_timeline(path).wait_mismatches, one_missing.refusals) == (1, [])
    assert len(one_missing.notes) == 1
    path.write_text("\n".join([header, *lines[::7]]) + "\n")
    (refusal,) = analyse(read_timeline(path)).refusals
    assert refusal.startswith("excerpt")


def test_steps_of_prefill_are_left_out_where_others_decode(tmp_path: Path) -> None:
    kernels = decode_steps(layers=4, steps=3)
    first = [
        each.of(kernel_type="PromptFlashAttention") if each.kernel_type == "FusedInferAttentionScore" else each
        for each in kernels[: len(kernels) // 3]
    ]
    analysis = analysis_of(tmp_path, [*first, *kernels[len(first) :]])
    assert (analysis.steps, analysis.analysed_steps, analysis.refusals) == (3, 2, [])
    assert scope_of(analysis, ScopeKind.LAYER).occurrences == 4
    assert len(analysis.notes) == 1


def test_without_step_ids_the_layers_determine_the_steps(tmp_path: Path) -> None:
    kernels = decode_steps(layers=6, steps=4)
    with_ids = analysis_of(tmp_path, kernels)
    without_ids = analysis_of(tmp_path, [each.of(step="N/A") for each in kernels])
    assert (without_ids.steps_by, without_ids.steps) == (StepSource.LAYERS, 4)
    assert without_ids.scopes == with_ids.scopes
    one_step = analysis_of(tmp_path, [each.of(step="N/A") for each in kernels[: len(kernels) // 4]])
    assert (one_step.steps_by, one_step.steps) == (StepSource.NOTHING, 1)


def test_streams_come_from_an_op_summary_next_to_the_capture(tmp_path: Path) -> None:
    kernels = replaced(decode_steps(layers=8, steps=3), 5, stream="9")
    write_timeline(tmp_path / "PROF_1/mindstudio_profiler_output/op_summary_20260101000000.csv", kernels, summary=True)
    details = write_timeline(tmp_path / "ASCEND_PROFILER_OUTPUT/kernel_details.csv", kernels, without=["Stream ID"])
    timeline = read_timeline(tmp_path)
    assert (timeline.path, timeline.streams["9"], timeline.main_stream) == (details, 24, "2")
    alone = analysis_of(tmp_path / "alone", kernels, without=["Stream ID", "OP State", "Wait Time(us)"])
    assert len(alone.notes) == 3
    assert alone.refusals == []


def test_a_model_with_experts_and_dense_first_layers(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, decode_steps(layers=10, steps=2, layer=MOE_LAYER, first_layers=[QWEN3_LAYER] * 3))
    assert [(len(kind.kernel_types), kind.layers) for kind in analysis.layers] == [(len(MOE_LAYER), 20), (LAYER, 6)]
    assert scope_of(analysis, ScopeKind.MOE).occurrences == 10
    assert scope_of(analysis, ScopeKind.FFN).occurrences == 3
    assert scope_of(analysis, ScopeKind.ALL_LAYERS).kernels == 10 * len(MOE_LAYER) + 3 * LAYER
    advice = advise(analysis)
    assert advice.order == (ScopeKind.MOE, ScopeKind.LAYER, ScopeKind.ALL_LAYERS)
    assert analysis.module_shares[Module.MOE] > analysis.module_shares[Module.ATTENTION]
    cheap = [(name, core, us / 9 if "oe" in name or "Grouped" in name else us) for name, core, us in MOE_LAYER]
    assert advise(analysis_of(tmp_path, decode_steps(layer=cheap))).order[0] is ScopeKind.ATTENTION


def test_the_advice_for_a_dense_model_and_for_an_unknown_one(tmp_path: Path) -> None:
    advice = advise(analysis_of(tmp_path, decode_steps()))
    assert advice.order == (ScopeKind.ATTENTION, ScopeKind.LAYER, ScopeKind.ALL_LAYERS)
    assert 'with superkernel_scope(enable and not is_prefill, "attention", ""):' in advice.snippet
    other = [("Conv2D", "AI_CORE", 30.0), ("Relu", "AI_VECTOR_CORE", 3.0), ("MaxPoolV3", "AI_VECTOR_CORE", 5.0)]
    unknown = analysis_of(tmp_path, decode_steps(layer=other))
    assert advise(unknown).order == (ScopeKind.LAYER, ScopeKind.ALL_LAYERS)
    assert unknown.module_shares == {}
    two_streams = replaced(decode_steps(), 5, stream="3")
    assert any("stream-fusion=1" in line for line in advise(analysis_of(tmp_path, two_streams)).snippet)


def test_a_run_without_a_static_graph_has_scopes_but_for_kernels_whose_shapes_change(tmp_path: Path) -> None:
    """As eager runs and ACL graphs are: each kernel has the OP State dynamic."""
    kernels = [each.of(state="dynamic") for each in decode_steps(layers=8, steps=3)]
    analysis = analysis_of(tmp_path, kernels)
    assert analysis.needs_graph
    assert analysis.refusals == []
    assert counts_of(analysis) == {CutReason.STEP: 2}
    assert scope_of(analysis, ScopeKind.ALL_LAYERS).super_kernels == 1
    assert "dynamic=False" in advise(analysis).experiments[0]
    # The keys of the attention grow from step to step.
    growing = [
        each.of(cells={"Input Shapes": f'"3,32,128;{each.step}9,128,128;9,128,128;;9,9;3;3"'}) if each.cells else each
        for each in kernels
    ]
    changed = analysis_of(tmp_path, growing)
    assert {cut.reason: cut.kernel_types for cut in changed.cuts}[CutReason.SHAPES] == {"FusedInferAttentionScore": 24}
    assert scope_of(changed, ScopeKind.ATTENTION).super_kernels == 8
    # A branch: two kernels of the fourth layer are missing in the second step. Nothing else changes.
    in_step = len(kernels) // 3
    missing = range(in_step + 3 * LAYER + 1, in_step + 3 * LAYER + 3)
    branch = analysis_of(tmp_path, [each for number, each in enumerate(kernels) if number not in missing])
    assert counts_of(branch) == {CutReason.BRANCH: 4, CutReason.STEP: 2}
    # Beside static kernels a dynamic one is what its state says.
    assert counts_of(analysis_of(tmp_path, [kernels[0].of(state="static"), *kernels[1:]]))[CutReason.DYNAMIC] > 300


def test_the_plan_from_the_top_halves_the_layers_and_families_have_their_source(tmp_path: Path) -> None:
    advice = advise(analysis_of(tmp_path, decode_steps(layers=7, steps=2)))
    begins = [line.partition(": ")[0] for line in advice.top_down[1:-1]]
    assert begins == ["self.layers", "self.layers[:4]", "self.layers[:2]", "layer, each", "attention, each"]
    assert list(advice.families) == ["LLaMA", "Qwen"]
    assert "guide" in advice.families["LLaMA"].told
    experts = advise(analysis_of(tmp_path, decode_steps(layers=4, steps=2, layer=MOE_LAYER)))
    assert list(experts.families) == ["DeepSeek-V3", "Qwen"]


def test_a_path_without_one_timeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpAtlasError, match="nowhere"):
        read_timeline(tmp_path / "nowhere")
    kernels = decode_steps(layers=2, steps=1)
    first = write_timeline(tmp_path / "a/kernel_details.csv", kernels)
    write_timeline(tmp_path / "b/kernel_details.csv", kernels)
    with pytest.raises(OpAtlasError, match=str(first)):
        read_timeline(tmp_path)
    empty = write_timeline(tmp_path / "empty.csv", [])
    with pytest.raises(TableError):
        read_timeline(empty)
    header, *lines = first.read_text().splitlines()
    other = [line.replace(f"{lines[0].split(',')[0]},0,", f"{lines[0].split(',')[0]},1,", 1) for line in lines[:3]]
    first.write_text("\n".join([header, *lines, *other]) + "\n")
    with pytest.raises(TableError, match="0, 1"):
        read_timeline(first)


@settings(max_examples=40)
@given(
    layers=st.integers(2, 6),
    gaps=st.lists(st.floats(0, 30).map(lambda gap: round(gap, 2)), min_size=200, max_size=200),
    odd=st.dictionaries(
        st.integers(0, 60),
        st.sampled_from([{"state": "dynamic"}, {"core": "AI_CPU"}, {"stream": "7"}, {"kernel_type": "Cast"}]),
        max_size=5,
    ),
)
def test_scopes_are_nested_and_save_no_more_than_their_gaps(
    tmp_path: Path, layers: int, gaps: list[float], odd: dict[int, dict[str, str]]
) -> None:
    drawn = iter(gaps * 3)
    kernels = decode_steps(layers=layers, steps=1, gap=lambda: next(drawn))
    kernels = [each.of(**odd.get(number, {})) for number, each in enumerate(kernels)]
    analysis = analysis_of(tmp_path, kernels)
    for gain in analysis.scopes:
        assert gain.saved_us <= gain.capped_us <= gain.gaps_us
        assert gain.fused_kernels <= gain.kernels
        assert gain.ceiling <= 1
    layer, everything = ([analysis.scope(kind)] for kind in (ScopeKind.LAYER, ScopeKind.ALL_LAYERS))
    modules = [analysis.scope(kind) for kind in (ScopeKind.ATTENTION, ScopeKind.FFN)]
    for smaller, larger in ((modules, layer), (layer, everything)):
        for field in ("kernels", "fused_kernels", "duration_us", "gaps_us", "capped_us"):
            inner, outer = (sum(getattr(each, field) for each in found if each) for found in (smaller, larger))
            assert inner <= outer + 1e-6


@pytest.mark.skipif(not REAL.is_dir(), reason="no captures in ../shared/data/ascend_profiler")
def test_real_captures() -> None:
    timeline = read_timeline(REAL / "llm_training_level2_rank0")
    analysis = analyse(timeline)
    assert (timeline.wait_pairs, timeline.wait_mismatches) == (2462, 0)
    assert [refusal.partition(":")[0] for refusal in analysis.refusals] == ["training"]
    assert counts_of(analysis) == {CutReason.COLLECTIVE: 3, CutReason.UNFUSABLE: 744}
    assert sorted(kind.layers for kind in analysis.layers) == [26, 28]
    network = read_timeline(REAL / "cnn_level2_rank0")
    assert network.wait_mismatches == 0
    assert counts_of(analyse(network))[CutReason.OTHER_STREAM] == 6
    with pytest.raises(TableError):
        read_timeline(REAL / "cnn_level0_rank0")
