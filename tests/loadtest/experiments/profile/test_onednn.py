"""oneDNN's log is read in all its forms, and what is in none of them is named."""

from __future__ import annotations

from pathlib import Path

from loadtest.experiments.profile.onednn import break_down, name_instructions, parse_log

RECORDED = Path(__file__).parent / "recorded"


def read(name):
    return parse_log((RECORDED / f"onednn-{name}.log").read_text().splitlines())


def test_a_log_of_two_copies_on_amd_is_read_whole():
    """torch 2.8's own and IPEX 2.8's, as they were written here: eager FP32, BF16 and INT8."""
    log = read("amd")
    assert (len(log.calls), log.unknown) == (14, {})
    assert log.versions == ["oneDNN v3.7.1", "oneDNN v3.7.2"]
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
    assert (len(log.calls), log.unknown) == (4, {})
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


def test_equal_calls_are_one_line_and_the_dearest_is_first():
    calls = read("amd").calls
    lines = break_down([*calls, *calls])
    assert sum(one.calls for one in lines) == 28
    assert [one.ms for one in lines] == sorted((one.ms for one in lines), reverse=True)
