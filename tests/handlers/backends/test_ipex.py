"""IPEX is imported only where it can live, and its graph is told from others."""

from __future__ import annotations

import pytest

from handlers.backends import ipex_runtime as ipex_module
from handlers.shared.errors import LoadError


@pytest.mark.parametrize(
    ("versions", "cause"),
    [
        ({"torch": "2.8.0+cpu", "intel_extension_for_pytorch": "2.7.0"}, "must share their minor version"),
        ({"torch": "2.8.0+cpu"}, "is not installed"),
    ],
)
def test_ipex_that_cannot_live_here_is_not_imported(monkeypatch, versions, cause):
    def version(name):
        if name not in versions:
            raise ipex_module.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(ipex_module, "version", version)
    with pytest.raises(LoadError, match=cause):
        ipex_module.import_ipex()


def test_a_cpu_without_avx2_is_rejected_before_the_import(monkeypatch, tmp_path):
    monkeypatch.setattr(ipex_module, "version", lambda name: "2.8.0")
    (tmp_path / "cpuinfo").write_text("flags : fpu sse2 avx\n")
    with pytest.raises(LoadError, match="needs a CPU with AVX2"):
        ipex_module.import_ipex(tmp_path / "cpuinfo")
