"""Common parts of the benchmarks: their command, their lines, and the cost of processes."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from operator import truediv
from pathlib import Path

from cardinal_devkit.kafka import EmbeddedKafka


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_parts(description: str | None, parts: Mapping[str, Callable[..., None]]) -> None:
    """Start a broker, and print the tables that the command line names; all of them without a name."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work or less, one run: whether it works")
    parser.add_argument("parts", nargs="*", help="which tables; default: all")
    given = parser.parse_args()
    if unknown := set(given.parts) - parts.keys():
        parser.error(f"there is no part {unknown.pop()}, only {', '.join(parts)}")
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "data") as broker:
        for name, part in parts.items():
            if not given.parts or name in given.parts:
                part(broker, quick=given.quick)


def print_rates(legs: Mapping[str, Sequence[float]], base: str, of: str) -> None:
    """A line for each leg: the median of its MB/s, and its median ratio to the base in the same runs."""
    for name, found in legs.items():
        ratio = statistics.median(map(truediv, found, legs[base]))
        median = statistics.median(found)
        say(f"  {name:28} {median:7.1f} MB/s {ratio:>7.0%} of {of}   ({min(found):.1f} to {max(found):.1f})")


def print_times(name: str, seconds: Sequence[float]) -> None:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    say(f"  {name:44} p50 {p50 * 1e3:7.1f}   p99 {p99 * 1e3:7.1f}")


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


def resident() -> int:
    """MB that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
