"""How tables name a machine."""

from __future__ import annotations

import pytest

from loadtest.report.words import describe_machine

AVX2 = ["avx2"]
AVX512 = [*AVX2, "avx512f", "avx512_vnni"]
AMX = [*AVX512, "amx_tile", "amx_int8", "amx_bf16"]


@pytest.mark.parametrize(
    ("flags", "named"), [([], "x86-64"), (AVX2, "AVX2"), (AVX512, "AVX-512"), (AMX, "AMX")]
)
def test_a_machine_is_named_by_what_multiplies_the_most(flags, named):
    host = {"flags": flags, "virtual": True, "vendor": "GenuineIntel", "usable_cores": 2, "memory_gib": 24}
    assert describe_machine(host) == f"a 2-core {named} virtual machine (Intel, 24 GiB)"
