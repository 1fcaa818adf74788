#!/bin/bash
# How long does a poll of haltpoll last that nothing ends? One window after the other on CPU 0, over which a timer fires
# every 600 us, and cpuidle's own counters. Root; restores the parameters.
set -eu
P=/sys/module/haltpoll/parameters; C=/sys/devices/system/cpu/cpu0/cpuidle
names="guest_halt_poll_ns guest_halt_poll_grow guest_halt_poll_shrink guest_halt_poll_grow_start"
saved=$(for name in $names; do echo "$name $(cat $P/$name)"; done)
work=$(mktemp -d)
cleanup() { echo "$saved" | while read -r name value; do echo "$value" > "$P/$name"; done; rm -rf "$work"; }
trap cleanup EXIT; trap 'exit 130' INT TERM HUP
gcc -O2 -o "$work/timer" -x c - <<'C'
#include <time.h>
#include <sys/prctl.h>
int main(void) { prctl(PR_SET_TIMERSLACK, 1); for (int i = 0; i < 1400; i++) { struct timespec t = {0, 600000}; nanosleep(&t, 0); } }
C
# Windows neither grow nor shrink once they are there, for no halt is longer than the maximum.
echo 1 > $P/guest_halt_poll_shrink; echo 1 > $P/guest_halt_poll_grow; echo 2000000 > $P/guest_halt_poll_ns
echo "window_us  polls  halts  mean_poll_us"
for window in ${*:-4 8 10 12 15 20 30 50 100}; do
    # A write to a state's attribute sets the window to zero; it then grows to grow_start.
    disabled=$(cat $C/state1/disable)
    echo "$disabled" > $C/state1/disable
    echo $((window * 1000)) > $P/guest_halt_poll_grow_start
    taskset -c 0 "$work/timer" & sleep 0.2
    read -r polls time halts <<< "$(cat $C/state0/usage $C/state0/time $C/state1/usage | paste -sd' ')"
    sleep 0.4
    read -r polls1 time1 halts1 <<< "$(cat $C/state0/usage $C/state0/time $C/state1/usage | paste -sd' ')"
    wait
    echo "$window $((polls1 - polls)) $((halts1 - halts)) $((time1 - time))" | awk '{ printf "%9d  %5d  %5d  %12.2f\n", $1, $2, $3, $4 / ($2 ? $2 : 1) }'
done
