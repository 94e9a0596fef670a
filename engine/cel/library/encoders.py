"""Base64: cel-go's encoders extension (cel-go `ext/encoders.go`)."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from ..check.environment import Cost, Function, Overload
from ..values.types import BYTES, STRING
from ..values.values import EvaluationError

_COST: Final = Cost(0, ((0, 0.1),))


def _decode(text: str) -> bytes:
    try:
        # Padding may be left out.
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise EvaluationError("illegal base64 data") from None


ENCODERS: Final = (
    Function(
        "base64.encode",
        (Overload("base64_encode_bytes", (BYTES,), STRING, lambda a: base64.b64encode(a).decode("ascii"), cost=_COST),),
        "Octets as base64.", "base64.encode(b'hello') == 'aGVsbG8='",
    ),
    Function(
        "base64.decode", (Overload("base64_decode_string", (STRING,), BYTES, _decode, cost=_COST),),
        "The octets of a base64 string; padding may be left out.", "base64.decode('aGVsbG8') == b'hello'",
    ),
)
