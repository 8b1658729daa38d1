"""The comparison's verdict follows from its figures alone."""

from __future__ import annotations

from loadtest.compare_stock import report

STOCK = [9.0, 9.2, 9.4]


def test_ratios_of_medians_decide(capsys):
    assert (
        report(
            {"stock TorchServe": STOCK, "kit fp32": [23.0, 23.1, 40.0], "kit bf16": [46.0] * 3},
            concurrency=32,
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "2.51×  target ≥ 2.5× met" in printed
    assert "5.00×  target ≥ 5.0× met" in printed


def test_a_missed_target_is_said_and_fails(capsys):
    assert (
        report({"stock TorchServe": STOCK, "kit fp32": [22.0] * 3, "kit bf16": [50.0] * 3}, concurrency=32)
        == 1
    )
    assert "2.39×  target ≥ 2.5× MISSED" in capsys.readouterr().out
