# SPDX-License-Identifier: GPL-2.0
# Runs the patterns of gaps.c under one idle driver and keeps the traces of CPU 0: $OUT/ARM-PATTERN-ROUND.txt.
# It is sourced by a shell (busybox's will do) as root in a guest with two CPUs and the program `gaps` in its PATH.
# Where the driver haltpoll is in force the arms are its defaults and a setting for the halt cost; else $MODULE is loaded, and the governor is menu but in the arm `governor`.
: "${OUT:=/out}" "${MODULE:=/dwell_idle.ko}" "${HALT_COST_NS:=20000}" "${GAPS:=800}" "${ROUNDS:=7}"
tracing=/sys/kernel/tracing
haltpoll=/sys/module/haltpoll/parameters
cpuidle=/sys/devices/system/cpu/cpuidle
arms="haltpoll tuned"
events=cpu_idle
if [ "$(cat /sys/devices/system/cpu/cpuidle/current_driver)" = none ]; then
  # In virtual time a wakeup is not late.
  insmod "$MODULE" halt_cost_ns="$HALT_COST_NS" wake_latency_ns=1
  arms="leader savings fixed never governor"
  events=dwell_idle_episode
fi

arm() {
  case $1 in
  haltpoll)
    echo 200000 > $haltpoll/guest_halt_poll_ns
    echo 50000 > $haltpoll/guest_halt_poll_grow_start
    ;;
  tuned)
    echo "$HALT_COST_NS" > $haltpoll/guest_halt_poll_ns
    echo $((HALT_COST_NS / 4)) > $haltpoll/guest_halt_poll_grow_start
    ;;
  governor)
    # leader under the governor haltpoll, which does not poll itself: it stops the tick each time.
    echo 0 > $haltpoll/guest_halt_poll_ns
    echo haltpoll > $cpuidle/current_governor
    echo leader > /sys/module/dwell_idle/parameters/policy
    ;;
  *)
    [ "$(cat $cpuidle/current_governor)" = menu ] || echo menu > $cpuidle/current_governor
    echo "$1" > /sys/module/dwell_idle/parameters/policy
    ;;
  esac
}

echo 8192 > $tracing/buffer_size_kb
echo 1 > $tracing/events/power/cpu_idle/enable
[ ! -d $tracing/events/dwell_idle ] || echo 1 > $tracing/events/dwell_idle/enable
mkdir -p "$OUT"
for round in $(seq "$ROUNDS"); do
  for pattern in constant exponential bimodal rare told phases bursts long; do
    for arm in $arms; do
      arm "$arm"
      echo 0 > $tracing/tracing_on
      echo > $tracing/trace
      sleep 0.02
      echo 1 > $tracing/tracing_on
      late=$(gaps $pattern "$round" "$GAPS")
      echo 0 > $tracing/tracing_on
      echo "$arm $pattern $round late $late"
      grep ": $events: " $tracing/per_cpu/cpu0/trace > "$OUT/$arm-$pattern-$round.txt"
    done
  done
done
[ "$arms" = "haltpoll tuned" ] || rmmod dwell_idle
