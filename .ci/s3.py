"""A fleet from a store with the interface of S3, which moto gives on this machine: `s3.py FOLDER EXPECTED`.

Copies the folder into a bucket, runs python/engines/study.py on it with every engine that is installed, and compares what they
print with the file EXPECTED.
"""

import importlib.util
import logging
import os
import pathlib
import subprocess
import sys

from moto.server import ThreadedMotoServer
from pyarrow import fs

STUDY = pathlib.Path(__file__).resolve().parents[1] / "python" / "engines" / "study.py"
PACKAGES = {"threads": "pyarrow", "duckdb": "duckdb", "ray": "ray"}


def main() -> None:
    folder, expected = sys.argv[1], pathlib.Path(sys.argv[2]).read_text()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        # No other place is asked for credentials.
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    store = fs.S3FileSystem(allow_bucket_creation=True, endpoint_override=f"{host}:{port}", scheme="http")
    store.create_dir("fleet")
    fs.copy_files(folder, "fleet/day1", source_filesystem=fs.LocalFileSystem(), destination_filesystem=store)
    failed = []
    for engine, package in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            print(f"SKIP programs: {engine} over S3: no {package}")
            continue
        command = [sys.executable, STUDY, engine, "s3://fleet/day1", "--label", "class"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stderr.splitlines():
            if line.startswith("without httpfs"):
                print(f"{engine}: {line}")
        same = done.returncode == 0 and done.stdout == expected
        print(f"{engine} over S3: {'the same as dwell fleet' if same else 'differs'}")
        if not same:
            failed.append(f"{engine}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    server.stop()
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
