"""The image of the other stack serves by that stack's own engine, and nothing archived is in it."""

from __future__ import annotations

from tests.image.conftest import build
from tests.image.containers import own_port, read_canary, start_container

TAG = "cpu-kit:test-current"


def test_the_image_of_the_current_stack_serves_int8_without_ipex(builder, engine, store, tmp_path):
    print(build(TAG, builder, "--stack", "current", "--models", "resnet50", "--weights", "random"))
    arguments = ["--store", str(tmp_path), "--precision", "int8", "--workers", "1"]
    with start_container(engine, TAG, "cpu-kit-test-current", own_port(), arguments) as container:
        container.wait_until_healthy()
        assert container.predict("resnet50", read_canary(store), container.read_token())[0] == 200
        assert "verify: all " in container.run_inside("kit", "verify")
        packages = container.run_inside("ls", "/opt/kit/.venv/lib/python3.11/site-packages")
        assert "openvino" in packages
        assert "intel_extension_for_pytorch" not in packages
        assert container.plan["inputs"]["stack"] == "current"
