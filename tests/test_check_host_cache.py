"""Which form in the host's Triton cache belongs to which config of the autotune list."""

from __future__ import annotations

from orchestrator.check.host_cache import MAX_FORMS, constants_key, forms_of
from orchestrator.verdicts import CachedKernel, Constant, KernelConfig


def config(block_t: Constant = 16, num_warps: int = 4, num_stages: int = 2) -> KernelConfig:
    """A config with one tile size."""
    return KernelConfig(constants={"BLOCK_T": block_t}, num_warps=num_warps, num_stages=num_stages)


def cached(
    ranges: tuple[int, ...], step: int, *, num_warps: int = 4, num_stages: int = 2, note: str = ""
) -> CachedKernel:
    """A form as Triton writes it, as far as it is read here."""
    lines = [f"%{end} = tt.make_range {{end = {end} : i32, start = 0 : i32}} : tensor<{end}xi32>" for end in ranges]
    ttir = "\n".join(["#loc = loc(unknown)", *lines, f"scf.for %i = %lo to %hi step %c{step}_i32 {{ {note}"])
    metadata = {"num_warps": num_warps, "num_stages": num_stages}
    return CachedKernel(f"{ranges}{step}{num_warps}{note}", "kernel", ttir, metadata, "3.9.0", "sha256:1")


def texts(found: object) -> list[str]:
    """The IR of the forms that were found."""
    return [form.text for form in found]  # type: ignore[attr-defined]


def test_num_warps_alone_can_tell() -> None:
    """Where every config has other launch options, the json beside the IR says which one it is."""
    narrow, wide = cached((16, 512), 16, num_warps=4), cached((32, 512), 32, num_warps=8)
    found = forms_of([narrow, wide], [config(16, 4), config(32, 8)])
    assert texts(found[constants_key(config(16))]) == [narrow.ttir]
    assert texts(found[constants_key(config(32))]) == [wide.ttir]


def test_the_ends_of_ranges_tell_tiles_apart() -> None:
    """Two configs with the same launch options: a form without a range of 32 is the one of 16."""
    narrow = cached((16, 512), 16)
    found = forms_of([narrow], [config(16), config(32)])
    assert list(found) == [constants_key(config(16))]


def test_the_step_of_the_loop_decides_where_ranges_fit_both() -> None:
    """A block of 16 heads and 32 tokens has ranges of both sizes; the loop over the tokens steps by 32."""
    wide = cached((16, 32, 512), 32)
    found = forms_of([wide], [config(16), config(32)])
    assert list(found) == [constants_key(config(32))]


def test_what_cannot_be_told_is_left_out() -> None:
    """Ranges of both sizes and a step of neither: no guess."""
    assert forms_of([cached((16, 32), 64)], [config(16), config(32)]) == {}
    assert forms_of([cached((8,), 8)], [config(16), config(32)]) == {}


def test_a_constant_that_is_no_tile_size_is_not_guessed() -> None:
    """Two configs that differ in a flag cannot be told apart by the IR's ranges."""
    assert forms_of([cached((16,), 16)], [config(True), config(False)]) == {}


def block(block_h: int, block_t: int = 16, num_warps: int = 4) -> KernelConfig:
    """A config with two tile sizes."""
    return KernelConfig(constants={"BLOCK_H": block_h, "BLOCK_T": block_t}, num_warps=num_warps, num_stages=2)


def test_a_size_that_two_knobs_share_tells_nothing() -> None:
    """A block of 32 heads has the range of 16 too, of its tokens: it is not taken for the block of 16 heads."""
    narrow, wide, other = cached((16, 512), 16), cached((16, 32, 512), 16), cached((16, 32, 512), 16, num_warps=8)
    configs = [block(16), block(32), block(32, num_warps=8)]
    found = forms_of([wide, narrow], configs)
    assert {key: texts(forms) for key, forms in found.items()} == {constants_key(block(16)): [narrow.ttir]}
    found = forms_of([wide, narrow, other], configs)
    assert texts(found[constants_key(block(32))]) == [other.ttir]


def test_a_knob_that_is_no_tile_size_does_not_pass_for_one() -> None:
    """Two numbers of splits, one of them equal to a fixed range: one config would have both forms, so neither has."""
    forms = [cached((16, 512), 64, note=note) for note in ("%splits16", "%splits32")]
    assert forms_of(forms, [config(16), config(32)]) == {}


def test_a_form_serves_every_launch_option() -> None:
    """The key has no num_warps and num_stages: these are what a variant may change."""
    found = forms_of([cached((16,), 16)], [config(16)])
    assert constants_key(config(16, num_warps=8, num_stages=7)) in found


def test_forms_of_unknown_launch_options_are_left_out() -> None:
    """A form that no config of the list can have made (an older list, another kernel's cache) is not used."""
    assert forms_of([cached((16,), 16, num_warps=1)], [config(16), config(32)]) == {}


def test_the_same_form_counts_once_whatever_its_locations() -> None:
    """File names and line numbers are no difference; specialisations are, and are bounded."""
    one = cached((16,), 16)
    moved = CachedKernel("other", "kernel", one.ttir.replace("unknown", '"/x/y.py":7:3'), one.metadata, "3.9.0", "d")
    special = [cached((16,), 16, note=f"%c{i}") for i in range(MAX_FORMS + 3)]
    found = forms_of([one, moved, *special], [config(16)])
    forms = found[constants_key(config(16))]
    assert len(forms) == MAX_FORMS
    assert [form.text for form in forms][:2] == [one.ttir, special[0].ttir]
    assert all(form.kind == "host-cache" for form in forms)
