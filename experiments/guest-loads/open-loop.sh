#!/bin/bash
# The open loop recorded under each of three settings of haltpoll, the other two predicted.
# Usage: open-loop.sh [DWELL] [SECONDS] [FOLDER]     (root; restores the parameters)
# The load: redis-server on CPU 0, and on CPU 1 a client that sends at Poisson times, 5,000/s, whatever comes back: one
# that waits for its answers (paced.c) is a closed loop in part, with other rates under each setting. Compared is the server's
# CPU: the client's takes answers that come while it sends with one wakeup or two, by how fast they come, and idles 12 % more
# often under 200 us than under 15. Its recordings are cut to CPU 0 with pyarrow.
DWELL=${1:-dwell}; SECONDS_EACH=${2:-6}; OUT=${3:-/tmp/open-loop}; P=/sys/module/haltpoll/parameters
mkdir -p "$OUT"
old() { for k in guest_halt_poll_ns guest_halt_poll_grow_start guest_halt_poll_shrink guest_halt_poll_grow; do echo "$k $(cat $P/$k)"; done; }
SAVED=$(old)
cleanup() { echo "$SAVED" | while read -r k v; do echo "$v" > $P/$k; done; kill $CLIENT $REDIS 2>/dev/null; }
trap cleanup EXIT
taskset -c 0 redis-server --port 7799 --save "" --appendonly no --daemonize no >/dev/null 2>&1 & REDIS=$!
sleep 0.5
cat > "$OUT/client.py" <<'PY'
import random, selectors, socket, time
s = socket.create_connection(("127.0.0.1", 7799)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); s.setblocking(False)
sel = selectors.DefaultSelector(); sel.register(s, selectors.EVENT_READ)
random.seed(1); at = time.perf_counter()
while True:
    at += random.expovariate(5000)
    while (left := at - time.perf_counter()) > 0:
        for _ in sel.select(left):
            s.recv(65536)
    try: s.send(b"PING\r\n")
    except BlockingIOError: pass
PY
taskset -c 1 python3 "$OUT/client.py" & CLIENT=$!
sleep 1
for setting in 15000/3750 50000/50000 200000/50000; do
    ns=${setting%/*}; start=${setting#*/}
    echo "$ns" > $P/guest_halt_poll_ns; echo "$start" > $P/guest_halt_poll_grow_start
    sleep 1
    "$DWELL" record guest --duration "${SECONDS_EACH}s" -o "$OUT/$ns.parquet" ${FORCE---force} 2>"$OUT/$ns.log" \
        || "$DWELL" record guest --duration "${SECONDS_EACH}s" -o "$OUT/$ns.parquet" 2>>"$OUT/$ns.log" || cat "$OUT/$ns.log"
done
cleanup; trap - EXIT
python3 - "$DWELL" "$OUT" <<'PY'
import json, subprocess, sys
import pyarrow.compute, pyarrow.parquet
dwell, out = sys.argv[1:]
settings = {"15000": "3750", "50000": "50000", "200000": "50000"}
def run(*args):
    r = subprocess.run([dwell, *args, "--format", "json"], capture_output=True, text=True)
    if r.returncode: print(r.stderr); return None
    return json.loads(r.stdout)
def replayed(file, ns, *more):
    found = run("replay", file, "--set", f"guest_halt_poll_ns={ns}ns", "--set", f"guest_halt_poll_grow_start={settings[ns]}ns", *more)
    row = next(r for r in found["results"] if r["policy"] == "haltpoll"); s = found["span_ns"] / 1e9
    return found, dict(polls=row["polls"] / s, halts=row["halts_per_s"], polling=row["polling_ns_per_s"] / 1e9, episodes=row["episodes"] / s)
def server_only(ns):
    """The recording with the episodes of CPU 0 alone, as cpu0-NS.parquet."""
    table = pyarrow.parquet.read_table(f"{out}/{ns}.parquet"); meta = dict(table.schema.metadata); meta.pop(b"dwell.segments", None)
    table = table.filter(pyarrow.compute.equal(table["idler"], "cpu0")); contents = json.loads(meta[b"dwell.contents"])
    contents |= dict(episodes=table.num_rows, idlers=[i for i in contents["idlers"] if i["name"] == "cpu0"])
    meta[b"dwell.contents"] = json.dumps(contents).encode()
    pyarrow.parquet.write_table(table.replace_schema_metadata(meta), f"{out}/cpu0-{ns}.parquet")
def recorded(found):
    """What happened in a recording, each second."""
    s = found["span_ns"] / 1e9; fig = {f["figure"]: f["recorded"] / s for f in found["self_check"].get("figures", [])}
    return dict(polls=fig["polls"], halts=fig["halts"], polling=fig["polled_ns"] / 1e9, episodes=found["episodes"] / s)
own, both = {}, {}
print("recorded under   self-check")
for ns in settings:
    server_only(ns); found, _ = replayed(f"{out}/cpu0-{ns}.parquet", ns)
    check = found["self_check"]; fig = {f["figure"]: f for f in check.get("figures", [])}
    own[ns] = recorded(found); both[ns] = recorded(replayed(f"{out}/{ns}.parquet", ns)[0])
    print(f"{ns:>14}   {check.get('verdict')}, worst {100 * check.get('worst', 0):.1f} %: " + ", ".join(f"{k} {f['replayed']:.4g} for {f['recorded']:.4g}" for k, f in fig.items()))
print("\nrecorded under  predicted     polls/s: predicted measured diff   halts/s: predicted measured diff   polling: predicted measured diff   (idle times alone: polls/s, polling)")
for a in settings:
    for b in settings:
        if a == b: continue
        _, p = replayed(f"{out}/cpu0-{a}.parquet", b); _, z = replayed(f"{out}/cpu0-{a}.parquet", b, "--wakeup-latency", "0ns")
        m = own[b]; d = lambda k: 100 * (p[k] - m[k]) / m[k] if m[k] else float("nan")
        print(f"{a:>14} {b:>10}   {p['polls']:14.0f} {m['polls']:9.0f} {d('polls'):+6.1f} %   {p['halts']:12.0f} {m['halts']:9.0f} {d('halts'):+6.1f} %   {100*p['polling']:11.2f} % {100*m['polling']:7.2f} % {d('polling'):+6.1f} %     {z['polls']:9.0f}, {100*z['polling']:.2f} %")
print("\nby causes, both CPUs\nrecorded under  predicted   halts/s: predicted (range) measured diff   polling: predicted (range) measured diff")
for a in settings:
    others = [b for b in settings if b != a]
    asked = [word for b in others for word in ("--set", f"guest_halt_poll_ns={b}ns", "--set", f"guest_halt_poll_grow_start={settings[b]}ns")]
    rows = run("replay", f"{out}/{a}.parquet", *asked)["work"]["settings"][2:]
    for b, row in zip(others, rows):
        cells = []
        for name, m, scale in (("halts_per_s", both[b]["halts"], 1), ("polled_s", both[b]["polling"], 100)):
            low, middle, high = (row[name][end] * scale for end in ("low", "middle", "high")); m *= scale
            cells.append(f"{middle:10.2f} ({low:.2f} to {high:.2f}) {m:9.2f} {100 * (middle - m) / m if m else float('nan'):+6.1f} %")
        print(f"{a:>14} {b:>10}   " + "   ".join(cells))
print("\nepisodes/s: " + ", ".join(f"{k} {v['episodes']:.0f}" for k, v in own.items()))
PY
