"""What a registry says about a request that it refuses."""

import json

from registry.oras_base import requests
from registry.text import printable

_MAX_ERROR_BYTES = 16 * 1024


def error_text(response: requests.Response) -> str:
    """Code and message of an answer in the distribution-spec's error format, or nothing."""
    try:
        body = next(response.iter_content(_MAX_ERROR_BYTES), b"")
        first = json.loads(body)["errors"][0]
        code, message = str(first["code"]), str(first.get("message", ""))
    except (ValueError, LookupError, TypeError, AttributeError, requests.RequestException):
        return ""
    return f" ({printable(code)}: {printable(message)})"
