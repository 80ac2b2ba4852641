"""The host contract: what must be true of a notebook, every part of it a `Fact`."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from kvreg.model.fact import Fact
from kvreg.model.schema import TableReader


@dataclass(frozen=True)
class Gpu:
    """The GPU part of a host contract; every field is a `Fact`."""

    name: Fact
    count: Fact
    compute_capability: Fact
    topology: Fact
    memory_mib: Fact


@dataclass(frozen=True)
class Host:
    """The host contract; every field but `gpu` is a `Fact`."""

    os: Fact
    arch: Fact
    glibc: Fact
    glibcxx: Fact
    cxxabi: Fact
    python: Fact
    python_tag: Fact
    torch: Fact
    torch_cuda: Fact
    cxx11_abi: Fact
    driver: Fact
    cuda_driver: Fact
    nccl: Fact
    gpu: Gpu

    def facts(self) -> Iterator[tuple[str, Fact]]:
        """All facts by dotted key, such as ``("gpu.name", Fact(...))``."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Fact):
                yield item.name, value
        for item in fields(self.gpu):
            yield f"gpu.{item.name}", getattr(self.gpu, item.name)


def read_host(table: TableReader) -> Host:
    """Read ``[host]`` with its table ``gpu``."""
    names = [item.name for item in fields(Host) if item.name != "gpu"]
    facts = {name: table.fact(name) for name in names}
    gpu = table.table("gpu")
    host = Host(**facts, gpu=Gpu(**{item.name: gpu.fact(item.name) for item in fields(Gpu)}))
    gpu.finish()
    table.finish()
    return host
