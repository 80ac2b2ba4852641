"""The real cosign, as Debian packages it, unpacked privately: versions 2 (trixie) and 3 (sid).

See `tests.support.debian`.
"""

import functools
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from builder.apt import Package
from kvreg.errors import KvregError
from tests.support.debian import unpacked

PACKAGES = {
    "trixie": Package(
        *("cosign", "2.5.0-2+b5", "amd64", 14892716),
        "3b6eadd27f3c4c00bfa7eab5c2397a6a15a763630c7a1d40d06ff60d24799eef",
    ),
    "sid": Package(
        *("cosign", "3.1.1-2", "amd64", 17676136),
        "d8622ebffce1d69197288fc030ff06a4c247af5507107f85c5a878870b686b23",
    ),
}
PASSWORD = "correct horse"


@dataclass(frozen=True)
class Cosign:
    """One version of cosign. `home` is where it keeps what it keeps; no network but loopback."""

    program: Path
    version: str
    home: Path = field(default=Path("/nonexistent"))

    @property
    def is_old(self) -> bool:
        """Whether bundles are not yet its default."""
        return self.version.startswith("2.")

    def run(self, *arguments: object, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
        """Run it; the caller looks at the exit status."""
        return subprocess.run(
            [str(self.program), *map(str, arguments)],
            env={"HOME": str(self.home), "PATH": os.defpath, "COSIGN_PASSWORD": password},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def must(self, *arguments: object, password: str = PASSWORD) -> str:
        """Its standard output; what it complains of fails the test."""
        done = self.run(*arguments, password=password)
        assert done.returncode == 0, f"{self.version} {arguments}: {done.stderr[-2000:]}"
        return done.stdout

    def sign(self, reference: str, key: Path) -> None:
        """Sign without a transparency log, in this version's own default form."""
        offline = ["--tlog-upload=false", "--yes", "--allow-http-registry"]
        if not self.is_old:
            # Which log and time authority to use would be asked of a server.
            offline.append("--use-signing-config=false")
        self.must("sign", "--key", key, *offline, reference)

    def verify(self, reference: str, key: Path) -> subprocess.CompletedProcess[str]:
        """Verify a signature, with no transparency log."""
        return self.run("verify", "--key", key, "--insecure-ignore-tlog=true", reference)

    def verify_attestation(
        self, reference: str, key: Path, kind: str
    ) -> subprocess.CompletedProcess[str]:
        """Verify a signed statement that is attached as a bundle."""
        more: list[object] = []
        if self.is_old:
            # Asks a server for a root of trust that it does not use, unless it is given one.
            root = self.home / "root.json"
            media_type = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
            root.write_text(json.dumps({"mediaType": media_type}))
            more = ["--new-bundle-format", "--trusted-root", root]
        return self.run(
            *("verify-attestation", "--key", key, "--insecure-ignore-tlog=true", *more),
            *("--type", kind, reference),
        )


@functools.cache
def find_cosign(suite: str) -> Path:
    """The program of a suite, fetched when the cache lacks it. `KvregError` if it cannot be had."""
    return unpacked("cosign", suite, [PACKAGES[suite]]).folder / "usr/bin/cosign"


@pytest.fixture(params=sorted(PACKAGES, reverse=True))
def cosign(request: pytest.FixtureRequest, tmp_path: Path) -> Cosign:
    """Each version of cosign in turn."""
    suite = request.param
    try:
        program = find_cosign(suite)
    except KvregError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    home = tmp_path / "cosign-home"
    home.mkdir()
    return Cosign(program, PACKAGES[suite].version, home)
