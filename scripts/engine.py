"""Does a container engine answer? Standard library only: runs before anything is installed.

usage: python3 scripts/engine.py ping    exit status 0 when one does
"""

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

SOCKETS = (
    "/var/run/docker.sock",
    "/run/podman/podman.sock",
    f"{os.environ.get('XDG_RUNTIME_DIR', '/run/user/0')}/podman/podman.sock",
)


def addresses():
    """DOCKER_HOST when it is set, else the sockets that engines listen on."""
    host = urlsplit(os.environ.get("DOCKER_HOST", ""))
    if host.scheme == "unix":
        return [(socket.AF_UNIX, host.path)]
    if host.scheme == "tcp" and host.hostname:
        return [(socket.AF_INET, (host.hostname, host.port or 2375))]
    return [(socket.AF_UNIX, path) for path in SOCKETS if Path(path).exists()]


def answers(family, address):
    """Whether `GET /_ping` there gets status 200 within two seconds."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        try:
            connection.connect(address)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False


if __name__ == "__main__":
    if sys.argv[1:] != ["ping"]:
        sys.exit(__doc__)
    sys.exit(not any(answers(*address) for address in addresses()))
