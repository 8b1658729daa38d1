"""Definitions whose builds are judged by the accuracy gate."""

from __future__ import annotations

from tests.conftest import LENIENT, PRECISIONS

INT8_RECIPE = {"self_check_relative_error": 0.5, "canary_relative": 0.5, "canary_absolute": 0.2}


def with_int8(raw: dict, *, agreement: float = LENIENT["agreement"]) -> dict:
    return {
        **raw,
        "accuracy_gate": {"agreement": agreement},
        "precisions": {**PRECISIONS, "int8": INT8_RECIPE},
        "worker_memory_mib": {"fp32": 500, "bf16": 500, "int8": 500},
    }
