"""What `import semmix` costs, as a ratio to `import torch`, in fresh processes taken in turn.

    python benchmarks/bench_import.py

Target: under 1.3.
"""

import statistics
import subprocess
import sys
import time

ROUNDS = 9


def seconds(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main() -> None:
    times = {"import torch": [], "import semmix": []}
    for statement in times:
        seconds(statement)  # fills the disk cache
    for _ in range(ROUNDS):
        for statement, found in times.items():
            found.append(seconds(statement))
    medians = {statement: statistics.median(found) for statement, found in times.items()}
    for statement, median in medians.items():
        print(f"{statement:15s} {median:.3f} s (median of {ROUNDS})")
    print(f"ratio {medians['import semmix'] / medians['import torch']:.3f}, target under 1.3")


if __name__ == "__main__":
    main()
