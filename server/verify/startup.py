"""Checks what TorchServe was started with: config.properties, the JVM's flags, and what it made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from config.plan import Plan
from config.render import render_properties
from server.verify.evidence import FrontendEvidence
from server.verify.findings import RECONFIGURE, RESTART, Finding, cannot_check, compare

# The JVM reads them besides its command line (the java launcher's documentation); the last one wins over it.
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_TORCHSERVES_RESPONSE_BYTES = 6553500


def check_properties(plan: Plan, seen: FrontendEvidence) -> Finding:
    """config.properties is what the plan renders: when TorchServe read it, and now."""
    planned = hashlib.sha256(render_properties(plan).encode("utf-8")).hexdigest()
    evidence = "digests: of plan.json's rendering, in server.json, of the file"
    asked = "as planned"
    if seen.properties_at_start is None:
        reason = "server.json does not say what TorchServe read"
        return cannot_check("config.properties", asked, reason, evidence=evidence, cure=RESTART)
    wrong = []
    if seen.properties_at_start != planned:
        wrong.append("not the plan's when TorchServe read it")
    if seen.properties_now != seen.properties_at_start:
        wrong.append("gone" if seen.properties_now is None else "changed since the start")
    return compare("config.properties", asked, "; ".join(wrong) or asked, evidence=evidence, cure=RECONFIGURE)


def check_jvm_flags(plan: Plan, seen: FrontendEvidence) -> Finding:
    """The JVM has the plan's flags and no others, from its command line or its environment."""
    asked = str(plan.java.vmargs.value).split()
    live = seen.flags
    evidence = f"/proc/PID/cmdline and environ ({', '.join(JAVA_VARIABLES)}) of java"
    cure = f"{RECONFIGURE}; and unset {', '.join(JAVA_VARIABLES)}"
    if seen.environment is None:
        return compare(
            "JVM flags", " ".join(asked), "cannot be read", evidence=evidence, cure="run as its user"
        )
    beside = find_java_options(seen.environment)
    got = " ".join(asked) if sorted(live) == sorted(asked) else " ".join(live) or "none"
    got = "; ".join([got, *(f"{name}={value}" for name, value in beside.items())])
    return compare("JVM flags", " ".join(asked), got, evidence=evidence, cure=cure)


def find_java_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Variable → the flags it gives the JVM beside those of the command line."""
    return {name: environment[name] for name in JAVA_VARIABLES if environment.get(name)}


def check_allowed_urls(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Archives come from where the plan says; a call cannot try it while the model API is off."""
    asked = str(plan.properties["allowed_urls"].value)
    # A Java list of what stood between the commas.
    return _compare_configured("allowed_urls", "Allowed Urls", asked, f"[{asked.replace(',', ', ')}]", seen)


def check_installing(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Whether an archive may install packages of its own."""
    asked = str(plan.properties["install_py_dep_per_model"].value)
    name = "Custom python dependency for model allowed"
    return _compare_configured("archives install", name, asked, asked, seen)


def check_response_size(plan: Plan, seen: FrontendEvidence) -> Finding:
    """The largest answer a worker may give."""
    setting = plan.properties.get("max_response_size")
    asked = str(setting.value if setting else _TORCHSERVES_RESPONSE_BYTES)
    return _compare_configured("response size", "Maximum Response Size", asked, asked, seen)


def _compare_configured(item: str, name: str, asked: str, printed: str, seen: FrontendEvidence) -> Finding:
    evidence = f"`{name}`, as TorchServe logged at its start (server.json)"
    if not seen.configuration:
        reason = "server.json does not say what TorchServe logged"
        return cannot_check(item, asked, reason, evidence=evidence, cure=RESTART)
    live = seen.configuration.get(name, "not logged")
    got = asked if live == printed else live
    return compare(item, asked, got, evidence=evidence, cure=RECONFIGURE)
