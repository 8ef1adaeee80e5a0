"""Figures of GPT-2 XL with a gated feed-forward layer that every correct planner arrives at."""

import pytest

from groundup.model.config import PRESETS
from groundup.planner import count_parameters, forward_flops, get_accelerator, make_plan
from groundup.planner.duration import estimate_duration
from groundup.planner.flops import layer_flops, update_flops
from groundup.planner.shares import shares_by_context, shares_by_size
from groundup.planner.textbook_memory import textbook_memory

XL = PRESETS["gpt2-xl"]


def test_parameters_and_their_bytes() -> None:
    assert sum(count_parameters(XL).values()) == 2_127_057_600
    assert textbook_memory(XL).weights == 8_508_230_400


def test_operations_of_a_forward_pass() -> None:
    assert layer_flops(XL, 1_024) == {
        "projections": 20_971_520_000,
        "attention": 6_710_886_400,
        "feed_forward": 62_914_560_000,
    }
    assert forward_flops(XL)["output_head"] == 164_682_137_600
    assert sum(forward_flops(XL).values()) == 4_513_336_524_800


def test_feed_forward_gains_and_the_head_loses_from_small_to_xl() -> None:
    by_size = list(shares_by_size().values())
    for part, falls in (("feed_forward", False), ("projections", False), ("output_head", True)):
        shares = [one[part] for one in by_size]
        assert shares == sorted(shares, reverse=falls)
    assert by_size[0]["output_head"] > 0.2 > 0.04 > by_size[-1]["output_head"]


def test_attention_takes_over_from_context_1024_to_16384() -> None:
    by_context = shares_by_context(XL)
    assert list(by_context) == [1_024, 2_048, 4_096, 8_192, 16_384]
    shares = [one["attention"] for one in by_context.values()]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.0714, abs=1e-4)
    assert shares[-1] == pytest.approx(0.5515, abs=1e-4)
    for one in by_context.values():
        assert sum(one.values()) == pytest.approx(1.0)


def test_sixteen_times_the_context_is_33_times_the_operations() -> None:
    assert sum(forward_flops(XL, 16_384).values()) == 149_522_795_724_800


def test_days_on_one_a100_in_float32() -> None:
    a100 = get_accelerator("A100 80GB")
    duration = estimate_duration(
        XL,
        batch_size=1_024,
        num_steps=400_000,
        peak_flops_per_second=a100.float32_flops_per_second,
        mfu=0.5,
        device=a100.name,
        precision="float32",
    )
    assert duration.flops_per_step == 13_864_969_804_185_600
    assert duration.total_flops == 13_864_969_804_185_600 * 400_000
    assert duration.days == pytest.approx(6_583.55, abs=0.01)
    derivation = "\n".join(duration.derivation())
    for text in ("4,513,336,524,800", "19.5 TFLOP/s", "9.75 TFLOP/s", "6,583.6 days"):
        assert text in derivation


def test_an_update_by_adamw_is_fourteen_operations_a_weight() -> None:
    assert update_flops(XL) == 14 * 2_127_057_600


def test_textbook_memory_is_a_line_whose_largest_batch_in_80_gb_is_2() -> None:
    memory = textbook_memory(XL)
    assert memory.fixed_bytes == 16 * 2_127_057_600 == 34_032_921_600
    # A token keeps in each block 8 vectors, 25 heads' scores twice and 4 inner vectors.
    per_block = 8 * 1_600 + 2 * 25 * 1_024 + 4 * 6_400
    per_token = 48 * per_block + 1_600 + 2 * 50_257
    assert memory.bytes_per_sequence == 4 * 1_024 * per_token == 18_034_335_744
    assert memory.bytes_at(3) == 3 * 18_034_335_744 + 34_032_921_600
    assert memory.largest_batch(80 * 10**9) == memory.largest_batch(80 * 2**30) == 2
    assert memory.largest_batch(30 * 10**9) == 0


def test_a_plan_has_all_of_it_as_integers() -> None:
    a100 = get_accelerator("A100 80GB")
    plan = make_plan(XL, a100, batch_size=1_024, num_steps=400_000, precision="float32")
    figures = plan.to_json()
    assert figures["parameters"]["total"] == 2_127_057_600
    assert figures["weight_bytes"] == 8_508_230_400
    assert figures["forward_flops"]["total"] == 4_513_336_524_800
    assert figures["textbook_memory"]["largest_batch"] == 2
    for part in ("parameters", "weight_bytes", "forward_flops", "flops_per_step", "memory"):
        assert all(is_whole(value) for value in leaves(figures[part]))


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    return [value]


def is_whole(value: object) -> bool:
    return value is None or isinstance(value, int | str)
