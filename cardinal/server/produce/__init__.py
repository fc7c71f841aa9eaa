"""The producing service, and the repair of a range by hand."""

from __future__ import annotations

from cardinal.server.produce.conditions import Conditions
from cardinal.server.produce.progress import Progress
from cardinal.server.produce.repair import Repaired, RepairRange, repair
from cardinal.server.produce.service import ProduceService
from cardinal.server.produce.settings import Observer, ProduceSettings
from cardinal.server.produce.start import Start

__all__ = [
    "Conditions",
    "Observer",
    "ProduceService",
    "ProduceSettings",
    "Progress",
    "RepairRange",
    "Repaired",
    "Start",
    "repair",
]
