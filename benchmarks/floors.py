"""The least that a pull can cost on this machine: programs that do one part of it, unchecked.

python -m benchmarks.floors download HOST PATH SIZE FILE   ranges over four connections, SHA256
python -m benchmarks.floors unpack WHEEL FOLDER            inflate and write on all cores
python -m benchmarks.floors checked WHEEL FOLDER           the same, hashed as RECORD says
python -m benchmarks.floors hash FOLDER                    SHA256 of all files on all cores
"""

import base64
import csv
import hashlib
import http.client
import os
import struct
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from kvreg.cores import usable_cores
from kvreg.wheel.inflate import fastest

_CONNECTIONS = 4
_CHUNK = 1 << 20
_PIECE = 1 << 18


def download(host: str, path: str, size: int, file: Path) -> None:
    """Receive equal ranges at once, then hash the file."""
    handle = os.open(file, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    os.truncate(handle, size)
    step = -(-size // _CONNECTIONS)

    def receive(start: int) -> None:
        end = min(start + step, size)
        connection = http.client.HTTPConnection(host)
        connection.request("GET", path, headers={"Range": f"bytes={start}-{end - 1}"})
        answer = connection.getresponse()
        assert answer.status == 206, answer.status
        buffer = memoryview(bytearray(_PIECE))
        while count := answer.readinto(buffer):
            start += os.pwrite(handle, buffer[:count], start)
        assert start == end

    _in_threads(receive, range(0, size, step), _CONNECTIONS)
    _sha256(handle)


def unpack(wheel: Path, folder: Path, *, checked: bool = False) -> None:
    """Inflate and write every member, the largest first; `checked` compares with RECORD."""
    source = os.open(wheel, os.O_RDONLY)
    inflate = fastest()
    with zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        record = next(i.filename for i in infos if i.filename.endswith(".dist-info/RECORD"))
        rows = {row[0]: row[1] for row in csv.reader(archive.read(record).decode().splitlines())}
    for parent in {str(Path(info.filename).parent) for info in infos}:
        (folder / parent).mkdir(parents=True, exist_ok=True)

    def pieces(start: int, end: int) -> Iterable[bytes]:
        for position in range(start, end, _PIECE):
            yield os.pread(source, min(_PIECE, end - position), position)

    def write(info: zipfile.ZipInfo) -> None:
        name, extra = struct.unpack("<2H", os.pread(source, 4, info.header_offset + 26))
        start = info.header_offset + 30 + name + extra
        end = start + info.compress_size
        chunks: Iterable[bytes] = pieces(start, end)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            small = info.file_size <= _CHUNK
            chunks = (
                [inflate.whole(os.pread(source, end - start, start), info.file_size)]
                if small
                else inflate.chunks(chunks, info.file_size)
            )
        target = os.open(folder / info.filename, os.O_CREAT | os.O_WRONLY)
        state = hashlib.sha256()
        for chunk in chunks:
            if checked:
                state.update(chunk)
            os.write(target, chunk)
        os.close(target)
        if checked and rows[info.filename]:
            found = base64.urlsafe_b64encode(state.digest()).rstrip(b"=").decode()
            assert rows[info.filename] == f"sha256={found}", info.filename

    _in_threads(write, sorted(infos, key=lambda info: -info.file_size), usable_cores())


def hash_files(folder: Path) -> None:
    """Hash every file, the largest first."""

    def read(path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        _sha256(handle)
        os.close(handle)

    files = [Path(root, name) for root, _, names in os.walk(folder) for name in names]
    files.sort(key=lambda path: -path.stat().st_size)
    _in_threads(read, files, usable_cores())


def _sha256(handle: int) -> str:
    state = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    position = 0
    while count := os.preadv(handle, [buffer], position):
        state.update(buffer[:count])
        position += count
    return state.hexdigest()


def _in_threads(work: Callable[..., None], items: Iterable[object], count: int) -> None:
    pending = iter(list(items))
    lock = threading.Lock()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while True:
                with lock:
                    item = next(pending, None)
                if item is None:
                    return
                work(item)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def main(what: str, *arguments: str) -> None:
    """See the module's text."""
    if what == "download":
        host, path, size, file = arguments
        download(host, path, int(size), Path(file))
    elif what == "unpack":
        unpack(Path(arguments[0]), Path(arguments[1]))
    elif what == "checked":
        unpack(Path(arguments[0]), Path(arguments[1]), checked=True)
    else:
        hash_files(Path(arguments[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
