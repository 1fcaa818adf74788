#!/usr/bin/env python3
"""Checks that a recording holds what the table it was made of holds, as pandas and DuckDB see it.

usage: roundtrip.py TABLE.csv[.gz] RECORDING.parquet [MANIFEST.json]

Every column of the table must be in the recording with the same values in the same order, read by pyarrow, pandas and
DuckDB; the metadata must be readable and its counts true; with a manifest, load, layer and count must agree with it.
Exits with 1 and says what differs, or 0. Needs pyarrow, pandas, duckdb.
"""
import csv
import gzip
import json
import sys
from pathlib import Path

import duckdb
import pandas
import pyarrow.parquet as parquet

NUMBERS = ("start_ns", "idle_ns", "window_ns", "wake_latency_ns", "alone_ns")
TEXTS = ("idler", "wake", "ready")


def fail(text):
    sys.exit(f"roundtrip: {text}")


def table_columns(path):
    """Columns of the table as lists of Python values; Python's integers have no limit."""
    raw = Path(path).read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    header, *rows = [row for row in csv.reader(text.splitlines()) if row]
    columns = {}
    for index, name in enumerate(header):
        fields = [row[index].strip() for row in rows]
        if name in NUMBERS:
            columns[name] = [int(field) if field else None for field in fields]
        elif name in TEXTS:
            columns[name] = [field or None for field in fields]
        else:
            columns[name] = [{"": None, "1": True, "0": False, "true": True, "false": False}[f.lower()] for f in fields]
    return columns


def same(reader, name, wanted, found):
    if len(wanted) != len(found):
        fail(f"{reader}: `{name}` has {len(found)} rows, the table {len(wanted)}")
    for row, (a, b) in enumerate(zip(wanted, found)):
        if a is not None and a != b or a is None and name != "idler" and b is not None:
            fail(f"{reader}: `{name}` row {row}: the table has {a}, the recording {b}")


def check_metadata(path, rows, manifest):
    pairs = parquet.ParquetFile(path).metadata.metadata
    if pairs.get(b"dwell.format") != b"1":
        fail(f"dwell.format is {pairs.get(b'dwell.format')}")
    recording, contents = json.loads(pairs[b"dwell.recording"]), json.loads(pairs[b"dwell.contents"])
    query = f"SELECT value FROM parquet_kv_metadata('{path}') WHERE key = 'dwell.recording'"
    if json.loads(duckdb.sql(query).fetchall()[0][0]) != recording:
        fail("DuckDB and pyarrow see different metadata")
    if contents["episodes"] != rows or sum(idler["episodes"] for idler in contents["idlers"]) != rows:
        fail(f"dwell.contents says {contents['episodes']} episodes, the table has {rows}")
    if manifest:
        name = Path(path).stem
        entry = json.loads(Path(manifest).read_text())[name]
        includes = "event" if name.startswith("event-") else "wake"
        wanted = (entry["layer"], entry["episodes"], includes)
        found = (recording["layer"], rows, recording["idle_includes"])
        if wanted != found or entry["load"] not in recording["provenance"] or entry["how"] not in recording["provenance"]:
            fail(f"the manifest says {wanted}, the recording {found}, {recording['provenance']}")


def main(table, path, manifest=None):
    columns = table_columns(table)
    arrow = parquet.read_table(path)
    frame = pandas.read_parquet(path)
    for name, wanted in columns.items():
        same("pyarrow", name, wanted, arrow.column(name).to_pylist())
        if not frame[name].isna().any():
            same("pandas", name, wanted, frame[name].tolist())
        found = duckdb.sql(f"SELECT {name} FROM read_parquet('{path}', file_row_number=true) ORDER BY file_row_number")
        same("duckdb", name, wanted, [row[0] for row in found.fetchall()])
    types = {name: str(arrow.schema.field(name).type) for name in ("idler", "start_ns", "idle_ns")}
    if types != {"idler": "string", "start_ns": "uint64", "idle_ns": "uint64"}:
        fail(f"types are {types}")
    if frame["idle_ns"].dtype != "uint64":
        fail(f"pandas reads idle_ns as {frame['idle_ns'].dtype}")
    rows = len(columns["idle_ns"])
    check_metadata(path, rows, manifest)
    print(f"{path}: {rows} rows, {len(columns)} columns: identical to {table}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
