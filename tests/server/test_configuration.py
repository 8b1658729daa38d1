"""TorchServe's own words on its configuration are read from the log of its start."""

from __future__ import annotations

from server.logs import read_configuration

DUMP = """\
2026-01-01T00:00:00,000 [INFO ] main org.pytorch.serve.servingsdk.impl.PluginsManager - Initializing plugins
2026-01-01T00:00:01,000 [INFO ] main org.pytorch.serve.ModelServer - 
Torchserve version: 0.12.0
Config file: /kit/run/config.properties
Maximum Response Size: 6553500
Allowed Urls: [(?-i)file:///kit/model-store/[^/]*\\.mar]
Model config: {"a":{"1.0":{"batchSize":8}}}
Model API enabled: false
2026-01-01T00:00:02,000 [INFO ] main org.pytorch.serve.ModelServer - Loading initial models: a.mar
"""  # noqa: W291 - TorchServe prints the blank


def test_the_configuration_is_read_from_the_log_of_the_start(tmp_path):
    log = tmp_path / "ts_log.log"
    assert read_configuration(log) == {}
    log.write_text(DUMP)
    assert read_configuration(log) == {
        "Torchserve version": "0.12.0",
        "Config file": "/kit/run/config.properties",
        "Maximum Response Size": "6553500",
        "Allowed Urls": r"[(?-i)file:///kit/model-store/[^/]*\.mar]",
        "Model config": '{"a":{"1.0":{"batchSize":8}}}',
        "Model API enabled": "false",
    }
