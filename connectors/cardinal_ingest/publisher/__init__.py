"""Publishing to ingest nodes: what :class:`cardinal_ingest.publisher.publisher.Publisher` is made of, and the scheme of their URLs."""

from typing import Final

from cardinal.config.schemes import Scheme

INGEST: Final = Scheme(
    "ingest://host:port",
    "cardinal_ingest.publisher.destination",
    40840,
    "what ingest nodes accept is on their Kafka topics, so write kafka://host:port here",
)
