"""What is sent: photographs and texts of several kinds, or a person's own files."""

from loadtest.payloads.payload import Payload, make_text, read_manifest, write_manifest
from loadtest.payloads.sets import SETS, USUAL, find_usual, make_payloads, pick_each_length

__all__ = [
    "SETS",
    "USUAL",
    "Payload",
    "find_usual",
    "make_payloads",
    "make_text",
    "pick_each_length",
    "read_manifest",
    "write_manifest",
]
