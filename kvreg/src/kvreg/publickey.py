"""Public keys that signatures are checked with: ECDSA on the curve P-256 with SHA-256, as cosign's.

A key is read with nothing but the standard library. Checking a signature takes the `cryptography`
package, which notebook images have, or the program `openssl`; which of the two is there is found
out when the first signature is checked.
"""

import base64
import binascii
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import NotFoundError, UsageError, VerificationError
from kvreg.model.digest import sha256_bytes

_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\s*([A-Za-z0-9+/=\s]*?)-----END \1-----")
# SubjectPublicKeyInfo of an uncompressed point on P-256: all but the point is always the same.
_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
_P256_BYTES = len(_P256) + 64
_SEQUENCE = 0x30
_MAX_FILE = 1 << 20
_TIMEOUT = 30

Check = Callable[["PublicKey", bytes, bytes], bool]


@dataclass(frozen=True)
class PublicKey:
    """A P-256 public key as the DER bytes of its SubjectPublicKeyInfo."""

    der: bytes

    @property
    def fingerprint(self) -> str:
        """``sha256:<hex>`` of the DER bytes: what to call the key by."""
        return sha256_bytes(self.der)

    @property
    def hint(self) -> str:
        """The fingerprint as bundles name it."""
        return base64.b64encode(bytes.fromhex(self.fingerprint.removeprefix("sha256:"))).decode()

    @property
    def pem(self) -> str:
        """The key as PEM text, line for line as cosign and OpenSSL write it."""
        text = base64.b64encode(self.der).decode("ascii")
        lines = [text[start : start + 64] for start in range(0, len(text), 64)]
        return "\n".join(["-----BEGIN PUBLIC KEY-----", *lines, "-----END PUBLIC KEY-----", ""])

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` (DER) is this key's over `message`.

        `VerificationError` when nothing on this host can tell, or the key is no point of the curve.
        """
        return find_checker()(self, message, signature)


def read_public_keys(path: Path) -> tuple[PublicKey, ...]:
    """The keys of a PEM file: one or, while keys are being changed, several.

    `NotFoundError` when there is no such file, `UsageError` when it holds something else.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE)
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no public key {path}", remedy="name the .pub file of the signer"
        ) from None
    return parse_public_keys(raw.decode("ascii", "replace"), str(path))


def parse_public_keys(text: str, where: str) -> tuple[PublicKey, ...]:
    """The keys of PEM text; nothing of it is repeated in an error, as it may be a private key."""
    blocks = _BLOCK.findall(text)
    kinds = sorted({kind for kind, _ in blocks})
    if not blocks or kinds != ["PUBLIC KEY"]:
        private = any("PRIVATE" in kind for kind in kinds)
        raise UsageError(
            f"{where} is not a public key",
            expected="PEM text with PUBLIC KEY",
            found=", ".join(kinds) or "no PEM text",
            remedy="name the public half (.pub), and keep the private one to yourself"
            if private
            else None,
        )
    return tuple(dict.fromkeys(_key(body, where) for _, body in blocks))


def _key(body: str, where: str) -> PublicKey:
    try:
        der = base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        der = b""
    if len(der) != _P256_BYTES or not der.startswith(_P256):
        raise UsageError(
            f"{where} holds a key of a kind that is not supported",
            expected="an ECDSA key on P-256, such as `registry keygen` and cosign make",
        )
    return PublicKey(der)


def find_checker() -> Check:
    """The best way to check signatures that this host has; `VerificationError` if it has none."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ec  # noqa: F401
    except (ImportError, OSError):
        pass
    else:
        return check_with_cryptography
    if shutil.which("openssl") is not None:
        return check_with_openssl
    raise VerificationError(
        "this host cannot check signatures",
        expected="the Python package cryptography, or the program openssl",
        found="neither",
        remedy="install one of them (pip install cryptography), or pull without a key",
    )


def check_with_cryptography(key: PublicKey, message: bytes, signature: bytes) -> bool:
    """`PublicKey.verifies` by the package."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        loaded = load_der_public_key(key.der)
    except ValueError:
        raise _no_point(key) from None
    assert isinstance(loaded, ec.EllipticCurvePublicKey)
    try:
        loaded.verify(signature, message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def check_with_openssl(key: PublicKey, message: bytes, signature: bytes) -> bool:
    """`PublicKey.verifies` by the program."""
    # It reads no more of the file than the longest signature, and so would not see what follows.
    if len(signature) < 2 or signature[0] != _SEQUENCE or signature[1] != len(signature) - 2:
        return False
    import tempfile  # every pull comes by here; few have a key and no `cryptography`

    with tempfile.TemporaryDirectory(prefix="kvreg-") as folder:
        public, signed = Path(folder) / "key.pub", Path(folder) / "signature"
        public.write_text(key.pem)
        signed.write_bytes(signature)
        arguments = ("dgst", "-sha256", "-verify", str(public), "-signature", str(signed))
        if _openssl(*arguments, message=message):
            return True
        # A bad signature and a bad key end alike: ask what it thinks of the key alone.
        if not _openssl("pkey", "-pubin", "-noout", "-in", str(public)):
            raise _no_point(key)
        return False


def _openssl(*arguments: str, message: bytes = b"") -> bool:
    import subprocess

    try:
        done = subprocess.run(
            ["openssl", *arguments], input=message, capture_output=True, timeout=_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VerificationError("openssl could not be run", found=type(error).__name__) from None
    return done.returncode == 0


def _no_point(key: PublicKey) -> VerificationError:
    return VerificationError(
        "the public key is damaged",
        expected="a point on the curve P-256",
        found=key.fingerprint,
        remedy="get the key again from who signs",
    )
