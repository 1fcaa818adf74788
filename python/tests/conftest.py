"""What the tests share: recordings, the program, and a small fleet."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "recordings"
# The program that results are compared with.
DWELL = os.environ.get("DWELL", str(ROOT / "target" / "release" / "dwell"))


@pytest.fixture(scope="session")
def recordings() -> pathlib.Path:
    return RECORDINGS


@pytest.fixture(scope="session")
def dwell():
    """Runs the program, and returns what it prints."""

    def run(*arguments: object) -> bytes:
        done = subprocess.run([DWELL, *map(str, arguments)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    return run


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The bundled recordings, and a damaged, an empty and an absurd one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("fleet")
    for path in RECORDINGS.glob("guest-*.parquet"):
        (folder / path.name).symlink_to(path)
    whole = (RECORDINGS / "guest-redis_c1.parquet").read_bytes()
    half = len(whole) // 2
    (folder / "bad-damaged.parquet").write_bytes(whole[:8] + b"\xa5" * (half - 8) + whole[half:])
    (folder / "bad-nothing.parquet").write_bytes(b"")

    def write(name: str, starts: list[int], lengths: list[int]) -> None:
        import json

        contents = {
            "episodes": len(starts),
            "first_start_ns": min(starts, default=None),
            "last_end_ns": max((min(s + d, 2**64 - 1) for s, d in zip(starts, lengths)), default=None),
            "idlers": [{"name": "vcpu0", "episodes": len(starts)}] if starts else [],
        }
        recording = {"layer": "host", "source": {}, "idle_includes": "unknown", "clock": "unknown"}
        columns = {
            "idler": pa.array(["vcpu0"] * len(starts), pa.string()),
            "start_ns": pa.array(starts, pa.uint64()),
            "idle_ns": pa.array(lengths, pa.uint64()),
        }
        fields = [pa.field(key, value.type, nullable=False) for key, value in columns.items()]
        pairs = {"dwell.format": "1", "dwell.recording": json.dumps(recording), "dwell.contents": json.dumps(contents)}
        table = pa.table(list(columns.values()), schema=pa.schema(fields, metadata=pairs))
        pq.write_table(table, folder / name, compression="zstd")

    write("bad-empty.parquet", [], [])
    write("bad-absurd.parquet", [0], [2**64 - 1])
    return folder
