"""The package beside the program: the same results, to the last digit, from every kind of table."""

import json
import pathlib
import subprocess
import sys
import threading

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dwell


def files(folder: pathlib.Path) -> pa.Table:
    paths = sorted(folder.glob("*.parquet"))
    columns = {"path": [path.name for path in paths], "bytes": [path.read_bytes() for path in paths]}
    return pa.table(columns, schema=pa.schema([("path", pa.string()), ("bytes", pa.binary())]))


def rows(table: object) -> list[dict]:
    return pa.record_batch(table).to_pylist()


def test_costs_are_the_programs(fleet, dwell_costs):
    found = rows(dwell.costs(files(fleet), 20_000))
    assert found == dwell_costs.to_pylist()
    assert len(found) > 8 and sum(row["error"] is None for row in found) == len(found) - 4


@pytest.fixture(scope="session")
def dwell_costs(fleet, dwell, tmp_path_factory) -> pa.Table:
    """The costs that the program writes."""
    path = tmp_path_factory.mktemp("costs") / "costs.parquet"
    dwell("fleet", fleet, "-o", path)
    return pq.read_table(path)


def test_bad_recordings_are_named(fleet):
    errors = {row["recording"]: row["error"] for row in rows(dwell.costs(files(fleet)))}
    assert "damaged" in errors["bad-damaged.parquet"]
    assert "no episodes" in errors["bad-empty.parquet"]
    assert "more than a year" in errors["bad-absurd.parquet"]
    assert "empty" in errors["bad-nothing.parquet"]


def test_rollout_is_the_programs(fleet, dwell, dwell_costs):
    import dwell as package

    for held_out in ["50%", "0"]:
        printed = json.loads(dwell("fleet", fleet, "--held-out", held_out, "--format", "json"))
        found = package.rollout(dwell_costs, held_out=held_out)
        assert found == {key: printed[key] for key in found}
        # In any order, and of what this package itself found.
        turned = dwell_costs.take(list(reversed(range(len(dwell_costs)))))
        assert package.rollout(turned, held_out=held_out) == found
        assert package.rollout(package.costs(files(fleet)), held_out=held_out) == found


def test_classes_are_a_mapping(fleet, dwell_costs):
    classes = {name: "redis" if "redis" in name else "other" for name in dwell_costs["vm"].to_pylist()}
    found = dwell.rollout(dwell_costs, [1], classes=classes, held_out="0")
    assert {row["class"] for row in found["choices"]} == {None, "redis", "other"}
    assert any(row["choice"] == "1 a class" for row in found["choices"])


def test_tune_is_the_programs(recordings, dwell, tmp_path):
    import dwell as package

    path = recordings / "guest-memcached_poisson10k.parquet"
    printed = json.loads(dwell("tune", path, "--layer", "host", "--halt-cost", "20us", "--format", "json"))
    for source in [path, str(path), path.read_bytes()]:
        found = package.tune(source, 20_000, layer="host")
        found.pop("front")
        assert found == {key: printed[key] for key in found}


def test_episodes_come_from_and_go_to_every_library(recordings):
    path = recordings / "guest-redis_c1.parquet"
    episodes = pa.table(dwell.read(path))
    read = pq.read_table(path)
    # Older recordings lack columns, which are null then.
    for name in set(episodes.column_names) & set(read.column_names):
        assert episodes[name].to_pylist() == read[name].to_pylist(), name
    whole = files_of(path)
    wanted = {**rows(dwell.costs(whole))[0], "vm": None, "recording": None}
    columns = ["idler", "start_ns", "idle_ns", "window_ns", "halted", "wake_latency_ns", "alone_ns"]
    with_metadata = rows(dwell.costs(episodes))[0]
    assert {**with_metadata, "vm": None, "recording": None} == wanted
    # Without the metadata the setting in force, the time recorded and the self-check are not known.
    connection = duckdb.connect()
    tables = {
        "pyarrow": read.replace_schema_metadata(None).select([name for name in columns if name in read.column_names]),
        "pandas": pa.Table.from_pandas(read.to_pandas()[["idler", "start_ns", "idle_ns"]]),
        "polars": polars.read_parquet(path).drop("ready", strict=False),
        "duckdb": connection.sql(f"select * from '{path}'").to_arrow_table(),
    }
    for library, table in tables.items():
        found = rows(dwell.costs(table))[0]
        assert (found["cost_ns"], found["optimum_ns"]) == (wanted["cost_ns"], wanted["optimum_ns"]), library
    batch = dwell.costs(whole)
    assert polars.DataFrame(batch)["optimum_ns"].to_list() == [wanted["optimum_ns"]]
    assert pa.record_batch(batch).to_pandas()["optimum_ns"].tolist() == [wanted["optimum_ns"]]
    assert isinstance(pandas.DataFrame(pa.record_batch(batch).to_pylist()), pandas.DataFrame)
    priced = pa.Table.from_batches([pa.record_batch(batch)])
    assert len(priced) == 1
    assert connection.sql("select optimum_ns from priced").fetchall() == [(wanted["optimum_ns"],)]


def files_of(path: pathlib.Path) -> pa.Table:
    return pa.table({"path": [path.name], "bytes": [path.read_bytes()]})


def test_histograms_of_parts_add_up(recordings):
    episodes = pa.table(dwell.read(recordings / "guest-redis_c1.parquet"))
    whole = rows(dwell.histogram(episodes))
    assert sum(row["episodes"] for row in whole) == len(episodes)
    half = len(episodes) // 2
    parts: dict[int, int] = {}
    for part in [episodes.slice(0, half), episodes.slice(half)]:
        for row in rows(dwell.histogram(part)):
            parts[row["from_ns"]] = parts.get(row["from_ns"], 0) + row["episodes"]
    assert parts == {row["from_ns"]: row["episodes"] for row in whole}


def test_sketches_cost_what_their_recordings_cost(fleet, dwell, dwell_costs, tmp_path):
    import dwell as package

    good = [row for row in dwell_costs.to_pylist() if row["error"] is None]
    for row in good:
        dwell("sketch", fleet / row["recording"], "--kernel", "7.3", "-o", tmp_path / row["recording"])
    found = rows(package.costs(files(tmp_path)))
    for exact, row in zip(good, found, strict=True):
        # A sketch has the lengths of all idle times, not of the first.
        assert sum(row.pop("first_lengths")) == row["episodes"]
        assert sum(exact.pop("first_lengths")) == 1_000
        assert row == exact


def test_errors_are_exceptions(recordings, tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot open the recording .*nothing.parquet: No such file"):
        dwell.read(tmp_path / "nothing.parquet")
    with pytest.raises(OSError, match="it is a directory"):
        dwell.read(tmp_path)
    with pytest.raises(ValueError, match="cut off after 14 bytes"):
        dwell.read(b"PAR1 and so on")
    with pytest.raises(ValueError, match="not a Parquet file"):
        dwell.read(b"a table, such as this")
    with pytest.raises(ValueError, match="no column `idle_ns`"):
        dwell.costs(pa.table({"length": [1]}))
    with pytest.raises(ValueError, match="host, guest or iothread"):
        dwell.settings("timer")
    with pytest.raises(ValueError, match="5.4 to 7.3"):
        dwell.settings("host", "4.19")
    with pytest.raises(ValueError, match="coarse or fine"):
        dwell.settings(grid="finest")
    with pytest.raises(ValueError, match="not a share"):
        dwell.rollout(dwell.costs(pa.table({"idle_ns": [1]})), held_out="200%")
    one = pa.record_batch(dwell.costs(pa.table({"idle_ns": [1]}), version="6.6"))
    # Of as many settings, but others; without what the table says of them, only their number is known.
    with pytest.raises(ValueError, match="those of other settings"):
        dwell.rollout(one, held_out="0")
    assert dwell.rollout(one, held_out="0", version="6.6")["vms_reported_on"] == 1
    with pytest.raises(ValueError, match="has costs of"):
        dwell.rollout(one.replace_schema_metadata(None), layer="guest", grid="fine")
    for number in [0, 101]:
        with pytest.raises(ValueError, match="numbers from 1 to 100"):
            dwell.rollout(one, [number], held_out="0", version="6.6")
    for column in ["idle_ns", "start_ns"]:
        with pytest.raises(ValueError, match=f"column `{column}` has fractions"):
            dwell.costs(pa.table({"idle_ns": [1.0], column: [1.5]}))
    with pytest.raises(ValueError, match="`idle_ns` of row 1 is null"):
        dwell.histogram(pa.table({"idle_ns": [1, None]}))
    with pytest.raises(OverflowError):
        dwell.costs(pa.table({"idle_ns": [1]}), -1)
    with pytest.raises(ValueError, match="cannot read column `idle_ns`: .*-3"):
        dwell.costs(pa.table({"idle_ns": [1, -3]}))
    for column in ["recording", "idler", "start_ns"]:
        with pytest.raises(ValueError, match=f"`{column}` of row 0 is null"):
            dwell.costs(pa.table({"idle_ns": [1], column: [None]}))
    for halt_cost_ns in [10_000_001, 2**64 - 1]:
        with pytest.raises(ValueError, match="no halt takes more than 10 ms"):
            dwell.tune(recordings / "guest-redis_c1.parquet", halt_cost_ns)
    with pytest.raises(ValueError, match="a share of one CPU"):
        dwell.tune(recordings / "guest-redis_c1.parquet", min_gain=float("nan"))


def test_durations_and_times_are_nanoseconds():
    wanted = rows(dwell.costs(pa.table({"start_ns": [0, 9_000_000], "idle_ns": [5_000, 900_000]})))
    for unit, scale in [("us", 1_000), ("ns", 1)]:
        lengths = pa.array([5_000 // scale, 900_000 // scale], pa.duration(unit))
        starts = pa.array([0, 9_000_000 // scale], pa.timestamp(unit, "UTC"))
        assert rows(dwell.costs(pa.table({"start_ns": starts, "idle_ns": lengths}))) == wanted


def run(script: str) -> str:
    """What a Python of its own prints."""
    begin = "import dwell, multiprocessing, os, signal, threading, pyarrow as pa\n"
    done = subprocess.run([sys.executable, "-c", begin + script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ctrl_c_ends_a_call(recordings):
    # The whole takes minutes.
    script = """
whole = pa.table({"path": ["recording"] * 500, "bytes": [open(PATH, "rb").read()] * 500})
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    dwell.costs(whole, grid="fine")
except KeyboardInterrupt:
    print("interrupted")
"""
    path = str(recordings / "guest-redis_c1.parquet")
    assert run(script.replace("PATH", repr(path))) == "interrupted\n"


def test_a_process_that_was_forked_has_threads_of_its_own():
    script = """
table = pa.table({"idle_ns": [5_000, 900_000]})
costs = lambda: print(dwell.costs(table).num_rows, flush=True)
costs()
child = multiprocessing.get_context("fork").Process(target=costs)
child.start()
child.join()
"""
    assert run(script) == "1\n1\n"


def test_the_interpreter_runs_on_while_recordings_are_replayed(recordings):
    whole = files(recordings)
    counted = 0
    done = threading.Event()

    def work() -> None:
        dwell.costs(whole, grid="coarse")
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.001):
        counted += 1
    thread.join()
    # If the lock were held, this thread would not have run before the end.
    assert counted > 3
