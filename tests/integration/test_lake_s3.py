"""A lake in an object store: commits, reorgs, kills, two drivers and upkeep over the S3 API, and what they cost."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.error import HTTPError

import pytest
from object_store import BUCKET, ObjectStore

from cardinal_spark.errors import LakeError
from cardinal_spark.lake import Snapshot, last_committed
from cardinal_spark.lake.commit import LakeCommitter
from cardinal_spark.lake.decode import write_task
from cardinal_spark.lake.location import LakeLocation
from cardinal_spark.lake.maintenance import clean, compact
from cardinal_spark.lake.tables import LakeSettings
from cardinal_spark.rows import raw_batch
from cardinal_spark.testing import Script, block_hash, commit_batch, image, image_of, script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardinal_spark.rows import RawRow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(find_spec, ("moto", "flask", "flask_cors"))),
        reason="needs moto[s3], flask and flask-cors, of the extra dev",
    ),
]

REQUESTS: Final = 40
"""Of a batch with one task and one appended table beside the ledger. 34 were measured:

- the task finds the newest state of ``canonical`` (3) and writes a file (3);
- the driver looks at ``canonical`` once (2), and writes the ledger's file (3);
- a commit of an appended table (5, delta-rs reads back what it wrote) and its version (3), twice;
- a MERGE of two small files (2) and its commit (5), for ``canonical``.

A further task costs 6 and a further table 11. A checkpoint costs a few requests for each of the 50 commits before it.
"""


class Killed(Exception):  # noqa: N818 - what stands for a kill is no error of the lake
    """The driver dies after a transaction."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


lakes = itertools.count()


@pytest.fixture
def place(store: ObjectStore) -> LakeLocation:
    return place_of(store)


def place_of(store: ObjectStore, **settings: str) -> LakeLocation:
    return LakeLocation.at(f"s3://{BUCKET}/lake{next(lakes)}", {**store.storage, **settings})


def commit(committer: LakeCommitter, rows: Sequence[RawRow]) -> None:
    committer.commit([write_task([raw_batch(rows)], committer.location, committer.settings)])


@pytest.mark.process
def test_a_lake_in_a_bucket_follows_the_chain_through_kills_and_replays(place: LakeLocation) -> None:
    first, second, third = script("1a 2a 3a | -3a -2a 2b 3b | 4b")
    commit_batch(place, [first])
    for last in ("payload", "events"):

        def die(table: str, last: str = last) -> None:
            if table == last:
                raise Killed

        with pytest.raises(Killed):
            commit_batch(place, [second[:2], second[2:]], on_commit=die)
        assert image(place.root, storage=place.storage) == image_of(first)
    for rows in (second, second, third):
        commit_batch(place, [rows])
    assert image(place.root, storage=place.storage) == image_of(first + second + third)
    held = last_committed(place.root, storage=place.storage)
    assert held is not None
    assert (held.seq, held.head.hash) == (8, block_hash("4b"))


def test_compaction_and_clean_up_leave_what_is_read(place: LakeLocation) -> None:
    stream = Script()
    rows = [stream.update(f"{number}a") for number in range(4)]
    committer = LakeCommitter(place)
    for update in rows[:3]:
        commit(committer, update)
    before = Snapshot.of(place)
    assert {done.table: (done.removed, done.added) for done in compact(place, min_files=3)} == {
        "payload": (3, 1),
        "events": (3, 1),
    }
    assert before.scan("payload").read_all().num_rows == 3 * 5
    assert clean(place, retention_hours=1) == 0
    assert clean(place, retention_hours=0) >= 6
    commit(committer, rows[3])
    assert image(place.root, storage=place.storage) == image_of(list(itertools.chain(*rows)))


def test_of_two_drivers_that_commit_the_same_version_one_is_refused(store: ObjectStore, place: LakeLocation) -> None:
    """Both put the same commit at the same time; the store's condition decides, and nothing is overwritten."""
    [first, *_], *forks = (script(f"1a | 2{fork} 3{fork}") for fork in "abc")
    commit_batch(place, [first])
    drivers = [LakeCommitter(place) for _ in forks]
    batches = [write_task([raw_batch(fork[1])], place, LakeSettings()) for fork in forks]
    refused: list[LakeError] = []

    def drive(driver: LakeCommitter, number: int) -> None:
        try:
            driver.commit([batches[number]])
        except LakeError as error:
            refused.append(error)

    store.race()
    start = len(store.requests)
    threads = [threading.Thread(target=drive, args=(driver, number)) for number, driver in enumerate(drivers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [str(error) for error in refused] == [
        "another query committed to payload at the same time: stop one of them, a lake has one writer"
    ]
    commits = [noted for noted in store.requests[start:] if noted.method == "PUT" and noted.path.endswith(".json")]
    assert {noted.condition for noted in commits} == {"*"}
    assert Counter(noted.status for noted in commits if "/payload/" in noted.path) == {200: 1, 412: 1}
    assert image(place.root, storage=place.storage) in [image_of(first + fork[1]) for fork in forks]


def test_every_commit_is_conditional_whatever_the_settings_say(store: ObjectStore) -> None:
    """Without conditions delta-rs commits nothing, and ``allow_unsafe_rename`` changes nothing."""
    [rows] = script("1a")
    with pytest.raises(LakeError, match="conditional put is disabled") as caught:
        commit_batch(place_of(store, aws_conditional_put="disabled"), [rows])
    assert "\n" not in str(caught.value)
    start = len(store.requests)
    unsafe = place_of(store, allow_unsafe_rename="true")
    commit_batch(unsafe, [rows])
    commits = [noted for noted in store.requests[start:] if noted.method == "PUT" and noted.path.endswith(".json")]
    assert len(commits) == 6  # three tables that are created, and a commit to each
    assert {noted.condition for noted in commits} == {"*"}


def test_the_server_refuses_what_exists(store: ObjectStore) -> None:
    """It decides as the real one does, or the tests here would show nothing."""
    conditional = {"If-None-Match": "*"}
    store.put(f"{BUCKET}/once", b"first", **conditional)
    with pytest.raises(HTTPError, match="412") as caught:
        store.put(f"{BUCKET}/once", b"second", **conditional)
    caught.value.close()


@pytest.mark.slow
def test_a_batch_costs_few_requests_however_many_came_before(
    store: ObjectStore, place: LakeLocation, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, committer, costs = Script(), LakeCommitter(place), []
    for number in range(7):
        start = len(store.requests)
        commit(committer, stream.update(f"{number}a"))
        costs.append(Counter(noted.method for noted in store.requests[start:]))
    with capsys.disabled():
        print(f"\nrequests of the first batch {costs[0].total()}, of each that followed {dict(costs[-1])}")  # noqa: T201 - a figure
    assert [cost.total() for cost in costs[1:]] == [costs[-1].total()] * 6
    assert costs[-1].total() <= REQUESTS
