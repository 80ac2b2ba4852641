"""Who we are to a registry: environment variables, Docker's config file, credential helpers.

Order: ``KVREG_REGISTRY_USERNAME`` and ``KVREG_REGISTRY_PASSWORD`` (for the host in
``KVREG_REGISTRY_HOST`` alone when that is set), then the ``credHelpers``, ``auths`` and
``credsStore`` of the files ``$REGISTRY_AUTH_FILE`` and ``$DOCKER_CONFIG/config.json`` (default
``~/.docker/config.json``). None of them: anonymous.

A secret is never part of a repr, a log line or an error.
"""

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.errors import UsageError

_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HELPER_SECONDS = 60
_DOCKER_HUB_KEY = "https://index.docker.io/v1/"
_DOCKER_HUB_HOSTS = ("docker.io", "index.docker.io", "registry-1.docker.io")


@dataclass(frozen=True)
class Credentials:
    """A user name with a password, or an identity token that is exchanged for access tokens."""

    username: str
    secret: str = field(repr=False)
    is_identity_token: bool = False
    origin: str = "environment"
    """Where they were found, for error texts."""

    @property
    def basic(self) -> str:
        """The value of a Basic ``Authorization`` header."""
        pair = f"{self.username}:{self.secret}".encode()
        return "Basic " + base64.b64encode(pair).decode("ascii")


def find_credentials(
    host: str, repository: str = "", environment: Mapping[str, str] | None = None
) -> Credentials | None:
    """The credentials for a repository of `host` (with its port), or None.

    `UsageError` when a config file or a helper is there but cannot be used: going on as nobody
    would end in a refusal that says nothing about the cause.
    """
    environment = os.environ if environment is None else environment
    if found := _from_environment(host, environment):
        return found
    for path in _config_files(environment):
        if found := _from_config(path, host, repository, environment):
            return found
    return None


def environment_is_ambiguous(hosts: set[str], environment: Mapping[str, str]) -> bool:
    """Whether credentials in the environment would go to several hosts, and so to a wrong one."""
    return (
        len(hosts) > 1
        and bool(environment.get("KVREG_REGISTRY_PASSWORD"))
        and not environment.get("KVREG_REGISTRY_HOST")
    )


def _from_environment(host: str, environment: Mapping[str, str]) -> Credentials | None:
    username = environment.get("KVREG_REGISTRY_USERNAME", "")
    secret = environment.get("KVREG_REGISTRY_PASSWORD", "")
    if environment.get("KVREG_REGISTRY_HOST", host) != host or not (username or secret):
        return None
    if not (username and secret):
        raise UsageError(
            "only one half of the registry credentials is in the environment",
            expected="both KVREG_REGISTRY_USERNAME and KVREG_REGISTRY_PASSWORD, or neither",
        )
    return Credentials(username, secret, origin="KVREG_REGISTRY_USERNAME")


def _config_files(environment: Mapping[str, str]) -> Iterator[Path]:
    if named := environment.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if folder := environment.get("DOCKER_CONFIG"):
        yield Path(folder) / "config.json"
    elif home := environment.get("HOME"):
        yield Path(home) / ".docker" / "config.json"


def _from_config(
    path: Path, host: str, repository: str, environment: Mapping[str, str]
) -> Credentials | None:
    try:
        config = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unusable(path, type(error).__name__) from None
    if not isinstance(config, dict):
        raise _unusable(path, "it holds no JSON object")
    helpers = config.get("credHelpers") or {}
    keys = _keys(host, repository)
    for key in keys:
        if isinstance(helpers, dict) and isinstance(name := helpers.get(key), str):
            return _from_helper(name, key, environment)
    if found := _from_auths(config.get("auths"), keys, path):
        return found
    if isinstance(store := config.get("credsStore"), str) and store:
        key = _DOCKER_HUB_KEY if host in _DOCKER_HUB_HOSTS else host
        return _from_helper(store, key, environment)
    return None


def _keys(host: str, repository: str) -> list[str]:
    """What a config file may call the repository, the most exact name first."""
    parts = [part for part in repository.split("/") if part]
    keys = ["/".join((host, *parts[:count])) for count in range(len(parts), 0, -1)]
    keys += [
        host,
        f"https://{host}",
        f"http://{host}",
        f"https://{host}/v1/",
        f"https://{host}/v2/",
    ]
    if host in _DOCKER_HUB_HOSTS:
        keys += ["docker.io", "index.docker.io", _DOCKER_HUB_KEY]
    return keys


def _from_auths(auths: Any, keys: list[str], path: Path) -> Credentials | None:
    if not isinstance(auths, dict):
        return None
    for key in keys:
        if isinstance(entry := auths.get(key), dict) and (found := _from_entry(entry, path)):
            return found
    return None


def _from_entry(entry: Mapping[str, Any], path: Path) -> Credentials | None:
    username, secret = entry.get("username"), entry.get("password")
    if encoded := entry.get("auth"):
        try:
            pair = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError, ValueError):
            raise _unusable(path, "an auth entry is not base64") from None
        username, _, secret = pair.partition(":")
        secret = secret.rstrip("\0")
    if token := entry.get("identitytoken"):
        return Credentials(username or "", str(token), True, origin=str(path))
    if username and secret:
        return Credentials(str(username), str(secret), origin=str(path))
    # An empty entry is what Docker leaves beside a credential store.
    return None


def _from_helper(name: str, key: str, environment: Mapping[str, str]) -> Credentials | None:
    if _HELPER_NAME.fullmatch(name) is None:
        raise UsageError(f"the credential helper {name!r} has a name that cannot be meant")
    program = f"docker-credential-{name}"
    try:
        done = subprocess.run(
            [program, "get"],
            input=key.encode(),
            capture_output=True,
            timeout=_HELPER_SECONDS,
            env=dict(environment),
        )
    except FileNotFoundError:
        raise UsageError(
            f"the credential helper {program} is configured but not installed",
            remedy="install it, or log in again without it",
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{program} failed: {type(error).__name__}") from None
    if done.returncode != 0:
        # "credentials not found" is the helpers' way to say that they have none.
        if b"not found" in done.stdout + done.stderr:
            return None
        raise UsageError(f"{program} failed with exit code {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{program} answered what makes no sense") from None
    return Credentials(username, secret, username == "<token>", origin=program)


def _unusable(path: Path, found: str) -> UsageError:
    return UsageError(
        f"the credentials file {path} cannot be used",
        expected="the JSON file that `docker login` writes",
        found=found,
    )
