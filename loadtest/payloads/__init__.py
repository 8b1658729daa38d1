"""What is sent: photographs and texts of several kinds, or a person's own files."""

from loadtest.payloads.payload import Payload, make_text
from loadtest.payloads.sets import SETS, make_payloads, name_mix, pick_each_length

__all__ = ["SETS", "Payload", "make_payloads", "make_text", "name_mix", "pick_each_length"]
