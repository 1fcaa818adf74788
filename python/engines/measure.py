"""Runs a command, and prints its time, its CPU time and its peak memory: `measure.py COMMAND ...`.

Engines have daemons that are no children of theirs, so all processes that have inherited a variable of the environment are
added up, ten times a second: CPU time, and proportional set size, in which a page that several processes share counts once.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import uuid

TICK = os.sysconf("SC_CLK_TCK")


def processes(mark: bytes):
    """The processes with this mark, each with its CPU time [s] and its memory [KiB]."""
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark not in (folder / "environ").read_bytes():
                continue
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            lines = (folder / "smaps_rollup").read_text().splitlines()
            kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            yield folder.name, (int(fields[11]) + int(fields[12])) / TICK, kib
        except (OSError, StopIteration):
            continue


def main() -> None:
    mark = uuid.uuid4().hex
    begun = time.monotonic()
    running = subprocess.Popen(sys.argv[1:], env={**os.environ, "DWELL_MEASURE": mark}, stdout=subprocess.PIPE)
    cpu_s: dict[str, float] = {}
    peak_kib = 0
    os.set_blocking(running.stdout.fileno(), False)
    out = b""
    while running.poll() is None:
        found = list(processes(mark.encode()))
        cpu_s.update((pid, seconds) for pid, seconds, _ in found)
        peak_kib = max(peak_kib, sum(kib for *_, kib in found))
        out += running.stdout.read() or b""
        time.sleep(0.1)
    seconds = time.monotonic() - begun
    os.set_blocking(running.stdout.fileno(), True)
    sys.stdout.buffer.write(out + running.stdout.read())
    sys.stdout.flush()
    figures = {"seconds": round(seconds, 1), "cpu_s": round(sum(cpu_s.values()), 1), "peak_mib": peak_kib // 1024}
    print(json.dumps(figures), file=sys.stderr)
    sys.exit(running.returncode)


if __name__ == "__main__":
    main()
