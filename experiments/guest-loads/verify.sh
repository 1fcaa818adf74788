#!/bin/bash
# What `dwell verify` says of two bad changes and three good ones, natively on the haltpoll of this machine.
# Usage: verify.sh [PROGRAM] [CASE...]     (root; restores the parameters)
# Cases: redis_bad pingpong_bad redis_good pingpong_good paced_good; a case takes about 50 s.
# Needs redis-server, redis-benchmark, gcc, jq; memtier is not needed: the paced client is python's.
set -u
dwell=${1:-dwell}; here=$(dirname "$0"); shift || true
cases=${*:-redis_bad pingpong_bad redis_good pingpong_good paced_good}
H=/sys/module/haltpoll/parameters
work=$(mktemp -d)
declare -A was
for p in guest_halt_poll_ns guest_halt_poll_grow_start guest_halt_poll_grow guest_halt_poll_shrink guest_halt_poll_allow_shrink; do was[$p]=$(cat $H/$p); done
load_pid=
restore() { [ -n "$load_pid" ] && kill "$load_pid" 2>/dev/null; for p in "${!was[@]}"; do echo "${was[$p]}" >"$H/$p"; done; [ -n "${server:-}" ] && kill "$server" 2>/dev/null; rm -rf "$work"; }
trap restore EXIT; trap 'exit 130' INT TERM HUP
gcc -O2 -w -o "$work/pp" "$here/ping-pong.c"
redis-server --port 7399 --save '' --appendonly no --daemonize no >/dev/null 2>&1 & server=$!
taskset -pc 1 $server >/dev/null; sleep 1
default() { echo 200000 >$H/guest_halt_poll_ns; echo 50000 >$H/guest_halt_poll_grow_start; }
never() { echo 0 >$H/guest_halt_poll_ns; echo 50000 >$H/guest_halt_poll_grow_start; }
redis_load() { while :; do taskset -c 0 redis-benchmark -p 7399 -c 1 -n 400000 -t get -q; done >/dev/null 2>&1 & load_pid=$!; }
pp_load() { while :; do "$work/pp" 10 0 0 1; done >/dev/null 2>&1 & load_pid=$!; }
paced_load() { taskset -c 0 python3 - <<'P' & load_pid=$!
import random, socket, time
s = socket.create_connection(("127.0.0.1", 7399)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
at = time.perf_counter()
while True:
    at += random.expovariate(2000)
    now = time.perf_counter()
    if at > now: time.sleep(at - now)
    s.sendall(b"GET x\r\n"); s.recv(64)
P
}
stop_load() { kill -STOP $load_pid 2>/dev/null; pkill -P $load_pid 2>/dev/null; kill -9 $load_pid 2>/dev/null; wait $load_pid 2>/dev/null; load_pid=; }
counter() { echo "redis-cli -p 7399 info stats | sed -n 's/^total_commands_processed:\\([0-9]*\\).*/\\1/p'"; }
# case NAME, how it was before, load, halt cost, the plan's values or "advice"
one() {
  local name=$1 before=$2 load=$3 cost=$4; shift 4
  echo "=== $name: from $before, halt cost $cost, $*"
  $before; $load; sleep 1
  rm -rf "$work/state" "$work/r.parquet" "$work/plan.toml"
  "$dwell" record guest --duration 5s -o "$work/r.parquet" | head -n 1
  "$dwell" tune "$work/r.parquet" --halt-cost "$cost" --plan "$work/plan.toml" --force >"$work/tuned" 2>&1
  grep -A2 '^Advice' "$work/tuned"
  if [ "$1" = advice ] && [ ! -f "$work/plan.toml" ]; then
    echo "no plan: nothing is advised"; stop_load; return
  fi
  if [ "$1" != advice ]; then
    # The change that was advised before the rule was fed the wakeup latency: its values, with the effect that was predicted then.
    python3 "$here/plan.py" "$work/plan.toml" "$before" "$cost" "$@"
  fi
  "$dwell" apply "$work/plan.toml" --force --state-dir "$work/state" >/dev/null || { stop_load; return; }
  local work_option=(); [ "$load" = pp_load ] || work_option=(--work "$(counter)")
  for how in default own; do
    [ $how = own ] && [ ${#work_option[@]} = 0 ] && continue
    echo "--- verify, work counted by $how"
    if [ $how = own ]; then "$dwell" verify --state-dir "$work/state" "${work_option[@]}"
    else COLUMNS=140 "$dwell" verify --state-dir "$work/state"; fi
  done
  "$dwell" revert --state-dir "$work/state" >/dev/null
  stop_load
}
for c in $cases; do case $c in
  redis_bad) one $c default redis_load 5us 6300 6300 450658177 438961631 450212212 428689427 89 2054 ;;
  pingpong_bad) one $c default pp_load 5us 5000 5000 405000000 182000000 404000000 173000000 109 1694 ;;
  redis_good) one $c never redis_load 20us 50000 50000 745000000 426000000 0 424000000 37248 101 ;;
  pingpong_good) one $c never pp_load 20us 50000 50000 881000000 338000000 0 335000000 44056 132 ;;
  paced_good) one $c default paced_load 20us advice ;;
esac; done
