"""A study of a fleet on the engine of your choice: `study.py ENGINE FOLDER`, with threads, duckdb, ray or spark.

The map is `dwell.costs` on batches of whole files, which the engine's own reader delivers; the reduce is `dwell.rollout` on
the costs of all. FOLDER may be whatever that reader accepts, such as s3://bucket/day1. Prints the choices, and a digest of
all costs, which is the same for every engine and for `dwell fleet FOLDER -o costs.parquet` (engine `program`).
"""

import argparse
import functools
import hashlib
import json
import pathlib
import sys

import pyarrow as pa
import pyarrow.compute

import dwell

# Files of one batch: their bytes are in memory together.
BATCH = 64

# The columns of `dwell.costs`, for engines that have to know them before.
SPARK_SCHEMA = (
    "vm string, recording string, layer string, class string, episodes long, idlers long, span_ns long, optimum_ns long, "
    "today_ns long, today string, first_lengths array<long>, cost_ns array<long>, error string"
)


def price(files: pa.Table, halt_cost_ns: int, label: str | None) -> pa.Table:
    """The map: whole files in, a row for each out."""
    return pa.Table.from_batches([pa.record_batch(dwell.costs(files, halt_cost_ns, label=label))])


def threads(folder: str, work) -> pa.Table:
    """No engine: files of one folder in batches. The package itself uses all cores."""
    paths = sorted(pathlib.Path(folder).rglob("*.parquet"))
    found = []
    for first in range(0, len(paths), BATCH):
        batch = paths[first : first + BATCH]
        bytes_ = pa.array([path.read_bytes() for path in batch], pa.large_binary())
        found.append(work(pa.table({"path": [str(path) for path in batch], "bytes": bytes_})))
    return pa.concat_tables(found)


def duckdb(folder: str, work) -> pa.Table:
    """DuckDB's `read_blob` delivers the files."""
    import duckdb

    connection = duckdb.connect()
    files = connection.sql(f"select filename, content from read_blob('{folder}/**/*.parquet')")
    batches = files.to_arrow_reader(BATCH)
    return pa.concat_tables(work(pa.Table.from_batches([batch])) for batch in batches)


def ray(folder: str, work) -> pa.Table:
    """Ray Data's `read_binary_files` delivers the files to its workers."""
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    files = ray.data.read_binary_files(folder, include_paths=True)
    costs = files.map_batches(work, batch_format="pyarrow", batch_size=BATCH)
    return pa.concat_tables(ray.get(costs.to_arrow_refs()))


def spark(folder: str, work) -> pa.Table:
    """Spark's format `binaryFile` delivers the files to its Python workers."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")

    def batches(iterator):
        for batch in iterator:
            yield from work(pa.Table.from_batches([batch])).to_batches()

    files = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    files = files.option("pathGlobFilter", "*.parquet").load(folder).select("path", "content")
    return files.mapInArrow(batches, SPARK_SCHEMA).toArrow()


def program(folder: str, work) -> pa.Table:
    """The costs that `dwell fleet -o` has written, for comparison."""
    import pyarrow.parquet as pq

    return pq.read_table(folder)


def digest(costs: pa.Table) -> str:
    """Of every value of every row but the path, whose form differs from engine to engine."""
    names = [name for name in costs.column_names if name != "recording"]
    costs = costs.select(names).sort_by([("vm", "ascending")])
    found = hashlib.sha256()
    for batch in costs.to_batches(1024):
        for row in batch.to_pylist():
            found.update(json.dumps(row, sort_keys=True).encode())
    return found.hexdigest()


def main() -> None:
    engines = {engine.__name__: engine for engine in [threads, duckdb, ray, spark, program]}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=engines)
    parser.add_argument("folder")
    parser.add_argument("--halt-cost-ns", type=int, default=20_000)
    parser.add_argument("--label", help="key of the metadata that has the class")
    asked = parser.parse_args()
    work = functools.partial(price, halt_cost_ns=asked.halt_cost_ns, label=asked.label)
    costs = engines[asked.engine](asked.folder, work)
    left_out = costs.filter(pa.compute.is_valid(costs["error"]))
    for row in sorted(left_out.select(["vm", "error"]).to_pylist(), key=lambda row: row["vm"]):
        print(f"left out: {row['vm']}: {row['error']}", file=sys.stderr)
    plan = dwell.rollout(costs)
    print(json.dumps({"costs": digest(costs), "recordings": len(costs), **plan}, indent=1))


if __name__ == "__main__":
    main()
