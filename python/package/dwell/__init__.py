"""What any polling setting of KVM, haltpoll and QEMU would have cost recordings of idle times.

Recordings are Parquet files, written by ``dwell record`` or ``dwell import``. Tables go in and come out over Arrow's
PyCapsule interface: from pyarrow, pandas, polars, DuckDB and others, and to them. All times and costs are nanoseconds, as
64-bit integers, so that sums are exact. The functions are those of the program: ``costs`` and ``rollout`` are
``dwell fleet``, ``tune`` is ``dwell tune``, and the results are the same to the last digit. They release the
interpreter's lock and use all cores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

from . import _dwell
from ._dwell import RecordBatch, Table, __version__

__all__ = ["read", "settings", "costs", "rollout", "tune", "histogram", "Rollout", "Choice", "__version__"]


class ArrowArrayExportable(Protocol):
    """A record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


class ArrowStreamExportable(Protocol):
    """A table, or a stream of record batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Tabular = ArrowArrayExportable | ArrowStreamExportable


class Used(TypedDict):
    """A setting and how many VMs have it."""

    setting: dict[str, int]
    vms: int


# `class` is not a name that Python accepts in the other notation.
Choice = TypedDict(
    "Choice",
    {
        "choice": str,
        "class": str | None,
        "vms": int,
        "settings": list[Used],
        "cost_ns": int,
        "cost_over_optimum": float | None,
        "gain_over_today": float | None,
        "regret": float | None,
        "regret_p50": float | None,
        "regret_p95": float | None,
        "regret_p99": float | None,
        "regret_worst": float | None,
        "worst_vm": str | None,
        "vms_worse_than_today": int,
    },
)
Choice.__doc__ = """What a choice of settings costs some VMs.

``choice`` is ``today``, ``1 setting``, ``2 settings``, ..., ``1 a class``, ``own best`` or ``optimum``; ``class`` is ``None``
for all VMs. ``cost_ns`` is the sum over the VMs [ns]. Regret is cost above that of a VM's best setting. Shares are of 1, and
``None`` where there is nothing to divide by. ``settings`` is empty where each VM has its own.
"""


class ChosenOn(TypedDict):
    """What a choice costs the VMs that it was made on [ns], and what no choice of as many settings can cost less than."""

    choice: str
    cost_ns: int
    least_ns: int


class Rollout(TypedDict):
    """The choices, and what they were chosen and are reported on."""

    vms_chosen_on: int
    vms_reported_on: int
    held_out: str
    today_is_default: int
    """VMs whose setting in force is not known."""
    new_vms: int
    """VMs with neither a class nor a part in the choice: they got the setting of the VMs that idle like them at first."""
    chosen_on: list[ChosenOn]
    """How good each choice is on the VMs that it was made on."""
    choices: list[Choice]
    """Each choice for all VMs (``class`` is ``None``), and then for each class."""


def read(source: str | os.PathLike[str] | bytes) -> Table:
    """The episodes of a recording, a row each: from a file, or from its bytes.

    The columns are ``idler``, ``start_ns``, ``idle_ns``, ``window_ns``, ``halted``, ``wake``, ``wake_latency_ns`` and
    ``alone_ns``; unknown values are null. The metadata ``dwell.recording`` of the schema is what the recording says of
    itself, as JSON. The file is read as a whole, about 50 bytes of memory a row.

    >>> import pyarrow as pa
    >>> episodes = pa.table(read(RECORDINGS / "guest-redis_c1.parquet"))
    >>> episodes.column_names[:3]
    ['idler', 'start_ns', 'idle_ns']
    """
    return _dwell.read(source if isinstance(source, bytes) else os.fspath(source))


def settings(layer: str = "host", version: str | None = None, grid: str = "coarse") -> list[str]:
    """The settings that ``costs`` replays, in the order of its column ``cost_ns``.

    ``layer`` is ``host`` (KVM), ``guest`` (haltpoll) or ``iothread`` (QEMU), ``version`` a release of Linux, or of QEMU for
    I/O threads (by default the newest known), and ``grid`` is ``coarse`` (several hundred settings) or ``fine`` (more
    than 20,000).

    >>> settings("host", "6.18")[1]
    'halt_poll_ns=200000 halt_poll_ns_grow=2 halt_poll_ns_grow_start=10000 halt_poll_ns_shrink=2'
    """
    return _dwell.settings(layer, version, grid)


def costs(
    recordings: Tabular,
    halt_cost_ns: int = 20_000,
    *,
    layer: str = "host",
    version: str | None = None,
    grid: str = "coarse",
    wakeup_latency_ns: int | None = None,
    label: str | None = None,
) -> RecordBatch:
    """What every setting would have cost each recording: the map of a study, a row for each recording.

    ``recordings`` is one of two kinds of table:

    * whole files: columns ``path`` (or ``filename``) and ``bytes`` (or ``content``), as Ray's ``read_binary_files``, Spark's
      format ``binaryFile`` and DuckDB's ``read_blob`` have them;
    * episodes: column ``idle_ns`` [ns], and where known ``recording``, ``idler``, ``start_ns``, ``window_ns``, ``halted``,
      ``wake_latency_ns`` and ``alone_ns``. Without starts, the episodes of an idler are back to back. All episodes of a
      recording have to be in one table, those of each idler in their order.

    ``halt_cost_ns`` is what one halt and wakeup costs in CPU time; ``wakeup_latency_ns`` is the wakeup latency of every
    halt, from which a rule learns with the idle time, in place of those of the recordings; ``label`` names a key of the metadata whose value is the ``class``.

    The columns are ``vm`` (the name of the file without folders and extension), ``recording``, ``layer``, ``class``, ``episodes``,
    ``idlers``, ``span_ns``, ``optimum_ns``, ``today_ns`` and ``today`` (the setting in force), ``first_lengths`` (the
    first idle times in bins that double from 1 us on, by which a new VM gets its setting), ``cost_ns`` (a list with as
    many integers as there are ``settings()``) and ``error``. A recording that cannot be used has an ``error``, and null
    elsewhere.

    >>> import pyarrow as pa
    >>> table = pa.table({"recording": ["a", "a", "b"], "idle_ns": [5_000, 900_000, 30_000]})
    >>> found = pa.record_batch(costs(table, 20_000))
    >>> found["optimum_ns"].to_pylist(), [each[0] for each in found["cost_ns"].to_pylist()]
    ([25000, 20000], [40000, 20000])
    """
    return _dwell.costs(recordings, halt_cost_ns, layer, version, grid, wakeup_latency_ns, label)


def rollout(
    costs: Tabular,
    numbers: Sequence[int] = (1, 2, 5),
    *,
    held_out: str = "50%",
    classes: Mapping[str, str] | None = None,
    layer: str = "host",
    version: str | None = None,
    grid: str = "coarse",
) -> Rollout:
    """The settings of least total cost over many VMs: the reduce of a study, the object of ``dwell fleet --format json``.

    ``costs`` has the rows of ``costs()`` in any order; ``layer``, ``version`` and ``grid`` are those given to it.
    ``numbers`` is how many settings to choose, each from 1 to 100. ``held_out`` has no part in the choice and is reported on: a share of the VMs
    such as ``50%``, a folder in the paths of the recordings, or ``0``. ``classes`` are the classes of VMs, in place of the
    column ``class``; all VMs of a class get one setting. Costs that are those of other settings, by the metadata that ``costs()``
    gives the table, are refused.

    >>> import pyarrow as pa
    >>> table = pa.table({"recording": ["a", "b"] * 100, "idle_ns": [5_000, 900_000] * 100})
    >>> found = rollout(costs(table), [1, 2], held_out="0")
    >>> [(row["choice"], row["cost_ns"]) for row in found["choices"]][1:4]
    [('1 setting', 2515000), ('2 settings', 2515000), ('own best', 2515000)]
    """
    of_vms = None if classes is None else list(classes.items())
    found: Rollout = json.loads(_dwell.rollout(costs, layer, version, grid, list(numbers), held_out, of_vms))
    return found


def tune(
    source: str | os.PathLike[str] | bytes,
    halt_cost_ns: int = 20_000,
    *,
    layer: str | None = None,
    version: str | None = None,
    min_gain: float = 0.005,
) -> dict[str, Any]:
    """Advice on one recording, from a file or from its bytes: as in the object of ``dwell tune --format json``.

    What that object has of the recording and of the machine is left out: ``file``, ``layer``, ``version``, ``episodes``,
    ``idlers``, where costs and latencies come from, ``self_check``, ``notes`` and ``lines``; ``front`` is ``None``.

    ``verdict`` is ``change`` or the reason to leave the present setting, ``advice`` a sentence, and ``rows`` have the
    policies that were compared. ``layer`` and ``version`` are by default those of the recording, and ``min_gain`` is the
    smallest gain that is worth a change, as a share of one CPU.

    >>> tune(RECORDINGS / "guest-memcached_poisson10k.parquet", layer="host")["verdict"]
    'change'
    """
    where = source if isinstance(source, bytes) else os.fspath(source)
    found: dict[str, Any] = json.loads(_dwell.tune(where, halt_cost_ns, layer, version, min_gain))
    return found


def histogram(episodes: Tabular, per_octave: int = 8) -> RecordBatch:
    """How many idle times are in each of a number of logarithmic buckets; those without any are left out.

    ``episodes`` has a column ``idle_ns`` [ns]; ``per_octave`` is 1, 8 or 1024. The columns are ``from_ns`` (included),
    ``to_ns`` (not included) and ``episodes``. Histograms of parts add up to that of the whole.

    >>> import pyarrow as pa
    >>> pa.record_batch(histogram(pa.table({"idle_ns": [3, 100, 103, 104]}))).to_pylist()[1]
    {'from_ns': 96, 'to_ns': 104, 'episodes': 2}
    """
    return _dwell.histogram(episodes, per_octave)
