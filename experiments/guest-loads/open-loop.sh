#!/bin/bash
# The open loop recorded under each of three settings of haltpoll, the other two predicted.
# Usage: open-loop.sh [DWELL] [SECONDS] [FOLDER] [ROUNDS]     (root; restores the parameters)
# Each round has one recording of SECONDS under each setting, so that a load that drifts is the same under all of them. Predicted
# and measured are sums over all rounds; the last column of the first table has the rounds' own figures.
# The load: redis-server on CPU 0, and on CPU 1 a client that sends at Poisson times, 5,000/s, whatever comes back, and never waits.
# One that sleeps until its next time is no open loop: how late it wakes depends on the setting, and with that how often the
# server idles for a short time only. Recordings are cut to CPU 0 with pyarrow.
DWELL=${1:-dwell}; SECONDS_EACH=${2:-6}; OUT=${3:-open-loop}; ROUNDS=${4:-3}; P=/sys/module/haltpoll/parameters
mkdir -p "$OUT"
old() { for k in guest_halt_poll_ns guest_halt_poll_grow_start guest_halt_poll_shrink guest_halt_poll_grow; do echo "$k $(cat $P/$k)"; done; }
SAVED=$(old)
cleanup() { echo "$SAVED" | while read -r k v; do echo "$v" > $P/$k; done; kill $CLIENT $REDIS 2>/dev/null; }
trap cleanup EXIT; trap 'exit 130' INT TERM HUP
taskset -c 0 redis-server --port 7799 --save "" --appendonly no --daemonize no >/dev/null 2>&1 & REDIS=$!
sleep 0.5
cat > "$OUT/client.py" <<'PY'
import random, socket, time
s = socket.create_connection(("127.0.0.1", 7799)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); s.setblocking(False)
random.seed(1); at = time.perf_counter()
while True:
    at += random.expovariate(5000)
    while time.perf_counter() < at: pass
    try: s.send(b"PING\r\n"); s.recv(65536)
    except BlockingIOError: pass
PY
taskset -c 1 python3 "$OUT/client.py" & CLIENT=$!
sleep 1
for round in $(seq "$ROUNDS"); do
    for setting in 15000/3750 50000/50000 200000/50000; do
        ns=${setting%/*}; start=${setting#*/}
        echo "$ns" > $P/guest_halt_poll_ns; echo "$start" > $P/guest_halt_poll_grow_start
        sleep 1
        "$DWELL" record guest --force --duration "${SECONDS_EACH}s" -o "$OUT/$ns-$round.parquet" 2>"$OUT/$ns-$round.log" || cat "$OUT/$ns-$round.log"
    done
done
cleanup; trap - EXIT
python3 - "$DWELL" "$OUT" "$ROUNDS" <<'PY'
import collections, json, subprocess, sys
import pyarrow.compute, pyarrow.parquet
dwell, out, rounds = sys.argv[1:]; rounds = range(1, int(rounds) + 1)
settings = {"15000": "3750", "50000": "50000", "200000": "50000"}
FIGURES = ("polls", "halts", "polling", "episodes")
def run(*args):
    r = subprocess.run([dwell, *args, "--format", "json"], capture_output=True, text=True)
    if r.returncode: sys.exit(r.stderr)
    return json.loads(r.stdout)
def words(*many): return [word for ns in many for word in ("--set", f"guest_halt_poll_ns={ns}ns", "--set", f"guest_halt_poll_grow_start={settings[ns]}ns")]
def server_only(ns, k):
    """The recording of round K with the episodes of CPU 0 alone, as a file."""
    table = pyarrow.parquet.read_table(f"{out}/{ns}-{k}.parquet"); meta = dict(table.schema.metadata); meta.pop(b"dwell.segments", None)
    table = table.filter(pyarrow.compute.equal(table["idler"], "cpu0")); contents = json.loads(meta[b"dwell.contents"])
    contents |= dict(episodes=table.num_rows, idlers=[i for i in contents["idlers"] if i["name"] == "cpu0"])
    meta[b"dwell.contents"] = json.dumps(contents).encode(); file = f"{out}/cpu0-{ns}-{k}.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata(meta), file)
    return file
def recorded(found):
    """What happened in a recording: polls, halts, s of polling, episodes, s of time."""
    fig = {f["figure"]: f["recorded"] for f in found["self_check"]["figures"]}
    return collections.Counter(polls=fig["polls"], halts=fig["halts"], polling=fig["polled_ns"] / 1e9, episodes=found["episodes"], s=found["span_ns"] / 1e9)
def replayed(file, ns):
    found = run("replay", file, *words(ns)); row = next(r for r in found["results"] if r["policy"] == "haltpoll"); s = found["span_ns"] / 1e9
    return collections.Counter(polls=row["polls"], halts=row["halts_per_s"] * s, polling=row["polling_ns_per_s"] / 1e9 * s, episodes=row["episodes"], s=s)
def sum_of(counters): return sum(counters, collections.Counter())
def rate(c, figure): return c[figure] / c["s"]
def off(predicted, measured): return f"{100 * (predicted - measured) / measured:+6.1f} %" if measured else "     -  "
own, both = {}, {}
print("recorded under   self-check: worst of the rounds; polls, halts, ms of polling a second: sum (rounds)")
for ns in settings:
    found = [run("replay", server_only(ns, k), *words(ns)) for k in rounds]
    each = [recorded(f) for f in found]; own[ns] = sum_of(each)
    both[ns] = sum_of(recorded(run("replay", f"{out}/{ns}-{k}.parquet", *words(ns))) for k in rounds)
    print(f"{ns:>14}   {100 * max(f['self_check']['worst'] for f in found):.1f} %; " + "; ".join(
        f"{scale * rate(own[ns], name):.4g} ({', '.join(f'{scale * rate(c, name):.4g}' for c in each)})" for name, scale in (("polls", 1), ("halts", 1), ("polling", 1000))))
print("\nidle times as recorded, CPU 0\nrecorded under  predicted   " + "".join(f"{name:>9}/s: predicted measured off " for name in FIGURES[:3]))
for a in settings:
    for b in settings:
        if a == b: continue
        p = sum_of(replayed(f"{out}/cpu0-{a}-{k}.parquet", b) for k in rounds)
        print(f"{a:>14} {b:>10}   " + "   ".join(f"{rate(p, n):12.4f} {rate(own[b], n):10.4f} {off(rate(p, n), rate(own[b], n))}" for n in FIGURES[:3]))
print("\nby causes, both CPUs\nrecorded under  predicted   halts/s: predicted (range) measured off   polling, s/s: predicted (range) measured off")
for a in settings:
    others = [b for b in settings if b != a]
    rows = [run("replay", f"{out}/{a}-{k}.parquet", *words(*others))["work"]["settings"][2:] for k in rounds]
    for at, b in enumerate(others):
        cells = []
        for name, figure in (("halts_per_s", "halts"), ("polled_s", "polling")):
            low, middle, high = (sum(r[at][name][end] for r in rows) / len(rounds) for end in ("low", "middle", "high")); m = rate(both[b], figure)
            cells.append(f"{middle:10.4f} ({low:.4f} to {high:.4f}) {m:9.4f} {off(middle, m)}")
        print(f"{a:>14} {b:>10}   " + "   ".join(cells))
print("\nepisodes/s of CPU 0: " + ", ".join(f"{k} {rate(v, 'episodes'):.0f}" for k, v in own.items()))
PY
