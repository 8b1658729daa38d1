"""Archives can be part of the image, and any user may run it."""

from __future__ import annotations

from tests.image.conftest import BAKED_TAG, build
from tests.image.containers import own_port, read_canary, start_container


def test_archives_baked_in_need_no_mount_and_no_user_of_the_image(builder, engine, tag, store, tmp_path):
    """Built from the same layers: only the archive is new."""
    print(build(BAKED_TAG, builder, "--models", "resnet50", "--weights", "random"))
    arguments = ["--store", str(tmp_path), "--workers", "1"]
    with start_container(
        engine, BAKED_TAG, "cpu-kit-test-baked", own_port(), arguments, extra=["--user", "12345"]
    ) as container:
        container.wait_until_healthy()
        assert container.predict("resnet50", read_canary(store), container.read_token())[0] == 200
