"""The native functions, without defaults. Use those of the package."""

from typing import Any, Self

__version__: str

class RecordBatch:
    """A record batch; `pyarrow.record_batch`, `polars.DataFrame` and others take it."""

    def __new__(cls, data: Any, *, names: Any = None, schema: Any = None, metadata: Any = None) -> Self: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    @property
    def num_rows(self) -> int: ...

class Table:
    """A table; `pyarrow.table`, `polars.DataFrame`, DuckDB and others take it."""

    def __new__(cls, data: Any, *, names: Any = None, schema: Any = None, metadata: Any = None) -> Self: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    @property
    def num_rows(self) -> int: ...

def settings(layer: str, version: str | None, grid: str) -> list[str]: ...
def read(source: str | bytes) -> Table: ...
def costs(
    recordings: Any,
    halt_cost_ns: int,
    layer: str,
    version: str | None,
    grid: str,
    wakeup_latency_ns: int | None,
    label: str | None,
) -> RecordBatch: ...
def rollout(
    costs: Any,
    layer: str,
    version: str | None,
    grid: str,
    numbers: list[int],
    held_out: str,
    classes: list[tuple[str, str]] | None,
) -> str: ...
def tune(
    source: str | bytes, halt_cost_ns: int, layer: str | None, version: str | None, min_gain: float
) -> str: ...
def histogram(episodes: Any, per_octave: int) -> RecordBatch: ...
