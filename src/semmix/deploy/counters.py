"""What a server has done, in the text format that Prometheus reads."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the histogram's bars, in seconds."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counters:
    """Requests by path and status, their times, and images by what became of them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.images: Counter[str] = Counter()
        self.buckets: Counter[float] = Counter()
        self.seconds = 0.0

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Take note of one request."""
        self.requests[path, status] += 1
        self.seconds += seconds
        self.buckets[next((end for end in BUCKETS if seconds <= end), float("inf"))] += 1

    def render(self, gauges: Mapping[str, float]) -> str:
        """Return all numbers, and `gauges` as they stand now."""
        return "\n".join([*self._counts(), *self._histogram(), *_gauges(gauges)]) + "\n"

    def _counts(self) -> Iterator[str]:
        yield "# TYPE semmix_requests_total counter"
        for (path, status), num in sorted(self.requests.items()):
            yield f'semmix_requests_total{{path="{path}",status="{status}"}} {num}'
        yield "# TYPE semmix_images_total counter"
        for outcome in ("answered", "asked", "failed"):
            yield f'semmix_images_total{{outcome="{outcome}"}} {self.images[outcome]}'
        yield "# TYPE semmix_ood_warnings_total counter"
        yield f"semmix_ood_warnings_total {self.images['warned']}"

    def _histogram(self) -> Iterator[str]:
        yield "# TYPE semmix_request_seconds histogram"
        so_far = 0
        for end in (*BUCKETS, float("inf")):
            so_far += self.buckets[end]
            name = "+Inf" if end == float("inf") else f"{end:g}"
            yield f'semmix_request_seconds_bucket{{le="{name}"}} {so_far}'
        yield f"semmix_request_seconds_sum {self.seconds:.6f}"
        yield f"semmix_request_seconds_count {so_far}"


def _gauges(values: Mapping[str, float]) -> Iterator[str]:
    for name, value in values.items():
        yield f"# TYPE {name} gauge"
        yield f"{name} {value}"


def resident_bytes() -> dict[str, int]:
    """Return this process's memory under Prometheus' usual name, where it can be told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return {}
    return {"process_resident_memory_bytes": pages * os.sysconf("SC_PAGE_SIZE")}
