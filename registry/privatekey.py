"""Private keys that sign: ECDSA on P-256, in cosign's own key files or as plain PEM.

cosign encrypts the key with a password (scrypt, then NaCl's secretbox) and writes it as PEM with
``ENCRYPTED SIGSTORE PRIVATE KEY``. An empty password is one, too. No error here repeats anything
of a key or a password.
"""

import base64
import binascii
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from kvreg.errors import NotFoundError, StorageError, UsageError
from kvreg.publickey import PublicKey

Password = Callable[[], bytes]
"""Asks for the password of a key file; called only for one that is encrypted."""

_ENCRYPTED = ("ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY")
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\s*([A-Za-z0-9+/=\s]*?)-----END \1-----")
# What cosign has used; anything else could be made to fill the memory.
_COSTS = (32768, 65536, 131072)
_COST = 65536
_MAX_FILE = 1 << 20


@dataclass(frozen=True)
class PrivateKey:
    """A key that signs. Neither its text form nor an error tells its value."""

    public: PublicKey
    _key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        """The signature of `message` as DER; the same each time, where OpenSSL can do that."""
        try:
            return self._key.sign(message, ec.ECDSA(SHA256(), deterministic_signing=True))
        except UnsupportedAlgorithm:
            return self._key.sign(message, ec.ECDSA(SHA256()))


def generate_key() -> PrivateKey:
    """A new key."""
    return _wrapped(ec.generate_private_key(ec.SECP256R1()))


def read_private_key(path: Path, password: Password) -> PrivateKey:
    """Read cosign's key file, or PEM (PKCS #8 or SEC 1) with or without a password.

    `NotFoundError` when there is no such file, `UsageError` when it is no such key or the password
    is wrong.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE)
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no private key {path}", remedy="make one: registry keygen"
        ) from None
    blocks = _BLOCK.findall(raw.decode("ascii", "replace"))
    block = next((item for item in blocks if item[0].endswith("PRIVATE KEY")), None)
    if block is None:
        raise _no_key(path, ", ".join(sorted({kind for kind, _ in blocks})) or "no PEM text")
    try:
        if block[0] in _ENCRYPTED:
            body = base64.b64decode("".join(block[1].split()), validate=True)
            loaded = serialization.load_der_private_key(_decrypt(body, password(), path), None)
        else:
            needs = block[0] == "ENCRYPTED PRIVATE KEY" or b"ENCRYPTED" in raw
            loaded = serialization.load_pem_private_key(raw, password() if needs else None)
    except (ValueError, TypeError, UnsupportedAlgorithm, binascii.Error):
        # Its own words could quote the file.
        raise _no_key(path, f"{block[0]} that cannot be read, or the wrong password") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.curve.name != "secp256r1":
        raise _no_key(path, "a key of another kind")
    return _wrapped(loaded)


def write_key_pair(key: PrivateKey, prefix: Path, password: bytes) -> tuple[Path, Path]:
    """Write ``<prefix>.key`` in cosign's form, encrypted, and ``<prefix>.pub``; both paths.

    `StorageError` when one of them is there already: a key is never written over.
    """
    private, public = prefix.with_name(f"{prefix.name}.key"), prefix.with_name(f"{prefix.name}.pub")
    for path in (private, public):
        if path.exists():
            raise StorageError(
                f"{path} is there already", remedy="choose another prefix; keys are not overwritten"
            )
    der = key._key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    text = base64.b64encode(_encrypt(der, password)).decode("ascii")
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    block = [f"-----BEGIN {_ENCRYPTED[0]}-----", *lines, f"-----END {_ENCRYPTED[0]}-----", ""]
    _write(private, "\n".join(block), 0o600)
    _write(public, key.public.pem, 0o644)
    return private, public


def _write(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _wrapped(key: ec.EllipticCurvePrivateKey) -> PrivateKey:
    der = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return PrivateKey(PublicKey(der), key)


def _encrypt(data: bytes, password: bytes) -> bytes:
    salt, nonce = secrets.token_bytes(32), secrets.token_bytes(SecretBox.NONCE_SIZE)
    box = SecretBox(_derive(password, salt, _COST))
    sealed = {
        "kdf": {
            "name": "scrypt",
            "params": {"N": _COST, "r": 8, "p": 1},
            "salt": base64.b64encode(salt).decode("ascii"),
        },
        "cipher": {
            "name": "nacl/secretbox",
            "nonce": base64.b64encode(nonce).decode("ascii"),
        },
        "ciphertext": base64.b64encode(box.encrypt(data, nonce).ciphertext).decode("ascii"),
    }
    return json.dumps(sealed, separators=(",", ":")).encode("ascii")


def _decrypt(body: bytes, password: bytes, path: Path) -> bytes:
    try:
        sealed: dict[str, Any] = json.loads(body)
        kdf, cipher = sealed["kdf"], sealed["cipher"]
        names = (kdf["name"], cipher["name"])
        cost, r, p = (kdf["params"][name] for name in ("N", "r", "p"))
        salt, nonce, text = (
            base64.b64decode(value, validate=True)
            for value in (kdf["salt"], cipher["nonce"], sealed["ciphertext"])
        )
    except (ValueError, LookupError, TypeError):
        raise _no_key(path, "an encrypted key that is damaged") from None
    if names != ("scrypt", "nacl/secretbox") or (r, p) != (8, 1) or cost not in _COSTS:
        raise _no_key(path, "a key that is encrypted in a way that cosign does not use")
    try:
        return SecretBox(_derive(password, salt, cost)).decrypt(text, nonce)
    except (CryptoError, ValueError):
        raise UsageError(
            f"the password does not open {path}, or the file is damaged",
            remedy="set COSIGN_PASSWORD, or type the password that the key was made with",
        ) from None


def _derive(password: bytes, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        password, salt=salt, n=cost, r=8, p=1, maxmem=256 * cost * 8, dklen=SecretBox.KEY_SIZE
    )


def _no_key(path: Path, found: str) -> UsageError:
    return UsageError(
        f"{path} is not a private key that can sign",
        expected="an ECDSA key on P-256: cosign's key file, or PEM",
        found=found,
    )
