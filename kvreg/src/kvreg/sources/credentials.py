"""Credentials from the config files that container tools keep, read and never written.

Looked at in this order: ``$REGISTRY_AUTH_FILE``, ``$DOCKER_CONFIG/config.json``,
``~/.docker/config.json``, ``$XDG_RUNTIME_DIR/containers/auth.json``.
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.errors import NetworkError

_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 30


@dataclass(frozen=True)
class Credentials:
    """A login for one registry; the secrets stay out of ``repr``."""

    username: str
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def basic(self) -> str:
        """The value of a Basic ``Authorization`` header."""
        raw = f"{self.username}:{self.password}".encode()
        return "Basic " + base64.b64encode(raw).decode("ascii")


def config_files() -> Iterator[Path]:
    """The files that may hold credentials, most important first."""
    if path := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(path)
    if path := os.environ.get("DOCKER_CONFIG"):
        yield Path(path) / "config.json"
    yield Path.home() / ".docker" / "config.json"
    if path := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(path) / "containers" / "auth.json"


def find_credentials(host: str, repository: str) -> Credentials | None:
    """The credentials for a repository, None when no config file has any for it."""
    for path in config_files():
        try:
            config = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except ValueError:
            raise NetworkError(f"{path} is not valid JSON", remedy="repair it or log in") from None
        found = _from_config(config if isinstance(config, dict) else {}, host, repository)
        if found is not None:
            return found
    return None


def _from_config(config: Mapping[str, Any], host: str, repository: str) -> Credentials | None:
    helpers = config.get("credHelpers")
    helper = helpers.get(host) if isinstance(helpers, dict) else None
    helper = helper or config.get("credsStore")
    if isinstance(helper, str) and (found := _from_helper(helper, host)) is not None:
        return found
    auths = config.get("auths")
    if not isinstance(auths, dict):
        return None
    # Some tools write one entry for each namespace, some a URL instead of a host.
    parts = repository.split("/")
    names = ["/".join([host, *parts[:count]]) for count in range(len(parts), -1, -1)]
    names += [f"https://{host}", f"https://{host}/", f"https://{host}/v2/", f"http://{host}"]
    for name in names:
        if isinstance(auths.get(name), dict) and (found := _from_entry(auths[name])) is not None:
            return found
    return None


def _from_entry(entry: Mapping[str, Any]) -> Credentials | None:
    username, password = entry.get("username"), entry.get("password")
    if isinstance(auth := entry.get("auth"), str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            return None
        username, _, password = text.partition(":")
    token = entry.get("identitytoken")
    if not isinstance(username, str) and not token:
        return None
    return Credentials(str(username or ""), str(password or ""), str(token or ""))


def _from_helper(helper: str, host: str) -> Credentials | None:
    if _HELPER.fullmatch(helper) is None:
        return None
    import subprocess  # few have a helper

    try:
        result = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=host.encode(),
            capture_output=True,
            timeout=_HELPER_SECONDS,
            check=False,
        )
        answer = json.loads(result.stdout) if result.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError):
        # A helper that is not installed or knows nothing of this host: go on as anonymous.
        return None
    if not isinstance(answer, dict):
        return None
    username, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
    if username == "<token>":
        return Credentials("", identity_token=secret)
    return Credentials(username, secret)
