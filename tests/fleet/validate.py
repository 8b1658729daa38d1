"""Manifests against the schemas of several Kubernetes versions, and KServe's against its SDK; run in an
environment of its own.

validate.py VERSION… < manifests: prints a JSON list of what is wrong.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import kserve
import kubernetes.client
import kubernetes_validate
import yaml

OPERATOR = "monitoring.coreos.com"
"""Of which there is no schema in a package: Prometheus itself checks its rules."""
KSERVE = {"ServingRuntime": kserve.V1alpha1ServingRuntime, "InferenceService": kserve.V1beta1InferenceService}


def find_unknown(value: Any, kind: type, place: str) -> Iterator[str]:
    """Fields that a class of the SDK does not have, and required ones that are missing."""
    names = {json_name: attribute for attribute, json_name in kind.attribute_map.items()}
    for name, own in value.items():
        if name not in names:
            yield f"{place}.{name} is not known"
        else:
            yield from _find_within(own, kind.openapi_types[names[name]], f"{place}.{name}")


def _find_within(value: Any, kind: str, place: str) -> Iterator[str]:
    """`kind` as the SDK writes it: a name of a class, list[…], dict(…)."""
    if inner := re.fullmatch(r"list\[(.*)\]", kind, re.IGNORECASE):
        if not isinstance(value, list):
            yield f"{place} must be a list"
            return
        for number, one in enumerate(value):
            yield from _find_within(one, inner[1], f"{place}[{number}]")
        return
    known = getattr(kserve, kind, None) or getattr(kubernetes.client, kind, None)
    if known is not None and hasattr(known, "attribute_map"):
        if isinstance(value, dict):
            yield from find_unknown(value, known, place)
        else:
            yield f"{place} must be an object"


def check(document: dict[str, Any], versions: list[str]) -> Iterator[str]:
    kind, name = document["kind"], document["metadata"]["name"]
    if kind in KSERVE:
        yield from find_unknown(document, KSERVE[kind], f"{kind} {name}")
    elif OPERATOR not in document["apiVersion"]:
        for version in versions:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except Exception as problem:
                yield f"{kind} {name} in {version}: {str(problem).splitlines()[0]}"


documents = list(yaml.safe_load_all(sys.stdin))
print(json.dumps([problem for one in documents for problem in check(one, sys.argv[1:])]))
