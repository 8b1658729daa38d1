"""What this machine's CPU can, for tests that need it."""

from __future__ import annotations

import pytest

from handlers.backends.catalogue import BF16_FLAGS, has_flags

HAS_BF16 = has_flags(BF16_FLAGS)
"""Without it IPEX builds no BF16, and its operators take the place of eager's once it is imported."""
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason=f"this CPU has none of {', '.join(BF16_FLAGS)}")
BF16 = pytest.param("bf16", marks=needs_bf16)
"""For `parametrize`."""
NARROW = ("bf16", "int8") if HAS_BF16 else ("int8",)
"""What IPEX builds here beside FP32."""
