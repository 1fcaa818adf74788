"""A study of a fleet on the engine of your choice: `study.py ENGINE FOLDER`, with threads, duckdb, ray or spark.

The map is `dwell.costs` on batches of whole files, which the engine's own reader delivers; the reduce is `dwell.rollout` on
the costs of all. FOLDER is a folder, or s3://bucket/prefix: credentials, region and AWS_ENDPOINT_URL (of a store that is not
Amazon's) are taken from the environment. Spark needs its package org.apache.hadoop:hadoop-aws for that. Prints the choices, and a digest of
all costs, which is the same for every engine and for `dwell fleet FOLDER -o costs.parquet` (engine `program`).
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
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


def is_url(folder: str) -> bool:
    return "://" in folder


def store(folder: str):
    """The file system of a folder or URL, by Arrow's own readers, and the path in it."""
    from pyarrow import fs

    if not is_url(folder):
        return fs.LocalFileSystem(), folder
    if folder.startswith("s3://") and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        scheme, _, host = endpoint.partition("://")
        return fs.S3FileSystem(endpoint_override=host, scheme=scheme), folder.removeprefix("s3://")
    return fs.FileSystem.from_uri(folder)


def threads(folder: str, work) -> pa.Table:
    """No engine: files in batches, by the readers of Arrow. The package itself uses all cores."""
    from pyarrow import fs

    files, root = store(folder)
    all_files = files.get_file_info(fs.FileSelector(root, recursive=True))
    paths = sorted(info.path for info in all_files if info.path.endswith(".parquet"))

    def content(path: str) -> bytes:
        with files.open_input_stream(path) as stream:
            return stream.read()

    found = []
    # Files of a store are read side by side: each takes a round trip.
    with concurrent.futures.ThreadPoolExecutor(8) as readers:
        for first in range(0, len(paths), BATCH):
            batch = paths[first : first + BATCH]
            bytes_ = pa.array(list(readers.map(content, batch)), pa.large_binary())
            found.append(work(pa.table({"path": batch, "bytes": bytes_})))
    return pa.concat_tables(found)


def duckdb(folder: str, work) -> pa.Table:
    """DuckDB's `read_blob` delivers the files."""
    import duckdb

    connection = duckdb.connect()
    if is_url(folder):
        s3(connection)
    files = connection.sql(f"select filename, content from read_blob('{folder}/**/*.parquet')")
    batches = files.to_arrow_reader(BATCH)
    return pa.concat_tables(work(pa.Table.from_batches([batch])) for batch in batches)


def s3(connection) -> None:
    """Lets DuckDB read s3:// by its extension httpfs, with what the environment has; where the extension cannot be had, by
    the Python package s3fs."""
    import duckdb

    try:
        connection.install_extension("httpfs")
        connection.load_extension("httpfs")
    except duckdb.Error as error:
        print(f"without httpfs, by s3fs: {str(error).splitlines()[0]}", file=sys.stderr)
        import fsspec

        connection.register_filesystem(fsspec.filesystem("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL")))
        return
    options = {"KEY_ID": "AWS_ACCESS_KEY_ID", "SECRET": "AWS_SECRET_ACCESS_KEY", "SESSION_TOKEN": "AWS_SESSION_TOKEN"}
    values = {name: os.environ[variable] for name, variable in options.items() if variable in os.environ}
    values["REGION"] = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
        scheme, _, host = endpoint.partition("://")
        values |= {"ENDPOINT": host.rstrip("/"), "URL_STYLE": "path", "USE_SSL": str(scheme == "https").lower()}
    text = ", ".join(f"{name} '{value.replace(chr(39), chr(39) * 2)}'" for name, value in values.items())
    connection.sql(f"create secret (type s3, {text})")


def ray(folder: str, work) -> pa.Table:
    """Ray Data's `read_binary_files` delivers the files to its workers."""
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    store_of, root = store(folder)
    files = ray.data.read_binary_files(root, filesystem=store_of, include_paths=True, file_extensions=["parquet"])
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
    files = files.option("pathGlobFilter", "*.parquet").load(folder.replace("s3://", "s3a://")).select("path", "content")
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
