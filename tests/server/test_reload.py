"""What a reload cannot change."""

from __future__ import annotations

import dataclasses

import pytest

from server.errors import ServerError
from server.reload import FIXED, check_same_door


@pytest.mark.parametrize("name", FIXED)
def test_what_the_running_server_has_for_good_is_refused(plan, name):
    asked = dataclasses.replace(plan.inputs, **{name: "other"})
    check_same_door(plan.inputs, plan.inputs)
    with pytest.raises(ServerError, match=f"a reload cannot change {name}: got other, running with"):
        check_same_door(plan.inputs, asked)
