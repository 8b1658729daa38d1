"""KServe's own server with a model of one line: what passes for its clients there must pass for them here."""

from __future__ import annotations

import sys
from typing import Any

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Lengths(Model):
    """How long each text is."""

    def __init__(self) -> None:
        super().__init__("lengths")
        self.ready = True

    async def get_input_types(self) -> list[dict[str, Any]]:
        return [{"name": "text", "datatype": "BYTES", "shape": [-1]}]

    async def get_output_types(self) -> list[dict[str, Any]]:
        return [{"name": "length", "datatype": "INT64", "shape": [-1]}]

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        if isinstance(payload, dict):
            return {"predictions": [len(one) for one in payload["instances"]]}
        assert isinstance(payload, InferRequest)
        texts = payload.inputs[0].as_numpy()
        output = InferOutput("length", [len(texts)], "INT64", data=[len(one) for one in texts])
        return InferResponse(payload.id, "lengths", [output])


if __name__ == "__main__":
    ModelServer(http_port=int(sys.argv[1]), workers=1, enable_grpc=False).start([Lengths()])
