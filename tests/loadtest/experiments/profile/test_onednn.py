"""oneDNN's log is read in all its forms, and what is in none of them is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.experiments.profile.onednn import name_instructions, parse_log
from loadtest.experiments.profile.roofline import (
    Peak,
    break_down,
    count_bytes,
    count_multiply_adds,
)

RECORDED = Path(__file__).parent / "recorded"


def read(name):
    return parse_log((RECORDED / f"onednn-{name}.log").read_text().splitlines())


def test_a_log_of_two_copies_on_amd_is_read_whole():
    """torch 2.8's own and IPEX 2.8's, as they were written here: eager FP32, BF16 and INT8."""
    log = read("amd")
    assert (len(log.calls), log.created, log.unknown) == (14, 0, {})
    assert log.versions == ["oneDNN v3.7.1", "oneDNN v3.7.2"]
    assert log.facts["nthr"] == "1"
    assert "AVX-512" in log.facts["isa"]
    assert set(log.graph_ms) == {"quantized_convolution_post_ops", "quantized_matmul_post_ops"}
    kinds = [(one.kind, one.implementation) for one in log.calls]
    assert ("convolution", "brg_conv_fwd:avx512_core_vnni") in kinds
    assert ("inner_product", "brgemm:avx512_core_bf16") in kinds


def test_fusion_and_reorders_are_seen_on_amd():
    calls = read("amd").calls
    fused = [one.post_ops for one in calls if one.kind == "convolution"]
    assert fused == [(), (), *[("eltwise_relu",)] * 4]
    moved = [one.moves_weights for one in calls if one.kind == "reorder"]
    assert moved == [True, False, False, True, False, False]


def test_the_older_form_amx_and_a_time_stamp_are_read():
    log = read("intel-amx")
    assert (len(log.calls), log.created, log.unknown) == (4, 1, {})
    assert log.facts["nthr"] == "28"
    assert log.calls[0].types == {"src": "u8", "wei": "s8", "bia": "f32", "dst": "u8"}
    assert log.calls[1].post_ops == ("eltwise_gelu_erf", "binary_add")
    assert log.calls[3].post_ops == ("eltwise_relu",)
    assert {name_instructions(one.implementation) for one in log.calls} == {"AMX"}


def test_unknown_lines_are_counted_and_named():
    log = read("arm")
    assert [one.kind for one in log.calls] == ["convolution", "eltwise"]
    assert dict(log.unknown) == {
        "v1,ukernel,exec,cpu": 1, "v1,primitive,exec,cpu": 1, "v1,common,error,cpu": 1,
    }  # fmt: skip
    assert [name_instructions(one.implementation) for one in log.calls] == ["Arm Compute Library", "SVE"]


def test_what_a_logger_writes_before_a_line_is_no_part_of_it():
    line = (RECORDED / "onednn-arm.log").read_text().splitlines()[3]
    said = f"2026-11-22T10:00:00,123 [INFO ] W-9000-resnet50_1.0-stdout MODEL_LOG - {line}"
    log = parse_log([said, "[METRICS]HandlerTime.Milliseconds:9|#ModelName:resnet50", ""])
    assert (len(log.calls), log.unknown) == (1, {})


@pytest.mark.parametrize(
    ("kind", "problem", "sums"),
    [
        (
            "convolution",
            "mb2_ic3oc64_ih224oh112kh7sh2dh0ph3_iw224ow112kw7sw2dw0pw3",
            2 * 64 * 112**2 * 3 * 49,
        ),
        ("convolution", "mb1_g32ic128oc128_ih28oh28kh3sh1dh0ph1_iw28ow28kw3sw1dw0pw1", 128 * 4 * 28**2 * 9),
        ("inner_product", "mb128ic768oc3072", 128 * 768 * 3072),
        ("inner_product", "mb2ic64ih7iw7oc10", 2 * 64 * 49 * 10),
        ("matmul", "2x64:64x1000", 2 * 64 * 1000),
        ("matmul", "12x128x64:12x64x128", 12 * 128 * 64 * 128),
        ("matmul", "4x12x128x64:1x1x64x128", 48 * 128 * 64 * 128),
        ("matmul", "2x64:64x1000:2x1000", 2 * 64 * 1000),
        ("matmul", "any", None),
        ("reorder", "2x64x112x112", None),
        ("convolution", "a new form", None),
    ],
)
def test_operations_come_from_the_shape(kind, problem, sums):
    assert count_multiply_adds(kind, problem) == sums


def test_bytes_are_those_of_the_tensors():
    by_kind = {one.kind: count_bytes(one) for one in read("amd").calls}
    assert by_kind["reorder"] == 2 * 2 * 3 * 224 * 224  # the last one: u8 to u8
    assert by_kind["matmul"] == 2 * 64 + 64 * 1000 + 4 * 2 * 1000
    assert count_bytes(read("arm").calls[1]) is None  # an eltwise names no src


def test_the_share_of_the_peak_and_the_side_of_the_ridge():
    """Of the first AMX line: 64 · 64 · 9 · 56² · 16 multiply-adds in 0.165 ms."""
    line = next(one for one in break_down(read("intel-amx").calls) if one.shape.startswith("mb16"))
    peak = Peak(multiply_adds={"int8": 1e12}, bytes_per_s=1e10)
    assert line.find_share(peak, threads=28) == pytest.approx(1849688064 / 0.165e-3 / 28e12)
    assert (line.precision, line.find_side(peak)) == ("int8", "compute")
    assert line.find_side(Peak(multiply_adds={"int8": 1e14}, bytes_per_s=1e10)) == "memory"
    assert (line.find_share(Peak(multiply_adds={}), 28), line.find_side(Peak(multiply_adds={}))) == (None, "")


def test_equal_calls_are_one_line_and_the_dearest_is_first():
    calls = read("amd").calls
    lines = break_down([*calls, *calls])
    assert sum(one.calls for one in lines) == 28
    assert [one.ms for one in lines] == sorted((one.ms for one in lines), reverse=True)
