"""INT8 from calibration at build to answers over REST, with ResNet50 as shipped."""

from __future__ import annotations

import json

from tests.end_to_end.kit import Kit, find_port, running


def test_int8_is_really_served_and_answers_as_fp32_does(store, tmp_path, photo):
    kit = Kit(run_dir=tmp_path / "run", store=store, port=find_port())
    kit.plan("resnet50", PRECISION="int8")
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        described = kit.request("models/resnet50?customized=true", management=True).json[0][
            "customizedMetadata"
        ]
        described = json.loads(described) if isinstance(described, str) else described
        assert described["precision"] == "int8"
        assert described["graph"]["operators"]["ipex::LlgaFusionGroup"] > 0
        assert described["accuracy"]["agreement"] >= 0.99
        assert kit.predict("resnet50", photo).status == 200
