"""What a cell measures, and which direction is better. One metric, one verdict: never merged."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One measured quantity: its column, unit, and whether more of it is better."""

    name: str
    label: str
    unit: str
    higher_is_better: bool

    def to_dict(self) -> dict[str, object]:
        """The metric as JSON-ready data."""
        return {
            "label": self.label,
            "unit": self.unit,
            "better": "higher" if self.higher_is_better else "lower",
        }


METRICS = {
    metric.name: metric
    for metric in (
        Metric("output_tokens_per_s", "output throughput", "tokens/s", True),
        Metric("requests_per_s", "request throughput", "requests/s", True),
        Metric("ttft_ms", "time to first token", "ms", False),
        Metric("tpot_ms", "time per output token", "ms", False),
        Metric("itl_ms", "inter-token latency", "ms", False),
        Metric("e2e_ms", "end-to-end latency", "ms", False),
    )
}
"""The metrics that are compared, each by itself, in table order."""

PRIMARY = "output_tokens_per_s"
"""The metric of the crossover table; every measured cell has it."""
