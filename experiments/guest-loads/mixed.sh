#!/bin/bash
# The newcomer's mixed load under fixed settings and under control: ten phases, the work of each and what polling
# and halts cost in it. Usage: mixed.sh PROGRAM [RUN...], with RUN of: default never from-default from-never
# PHASE_S (12) is the length of a phase, PHASES which ones, HALT_US (20) the halt cost, ROUNDS (1) how often all runs take turns.
set -eu
dwell=$1; shift; runs=${*:-default never from-default from-never}
dir=${KEEP:-$(mktemp -d /var/tmp/control-shows.XXXXXX)}; mkdir -p "$dir"
gcc -D_GNU_SOURCE -O2 -o "$dir/loads" -x c - -x none -lm <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>
#include <math.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void pin(int cpu) { cpu_set_t s; CPU_ZERO(&s); CPU_SET(cpu, &s); sched_setaffinity(0, sizeof s, &s); }
int main(int n, char **a) {
    double until = now() + atof(a[2]), begun = now(); long done = 0; char c[64];
    if (!strcmp(a[1], "pingpong")) {
        int to[2], from[2]; if (pipe(to) || pipe(from)) return 1;
        if (!fork()) { pin(1); close(to[1]); while (read(to[0], c, 1) == 1) if (write(from[1], c, 1) != 1) break; _exit(0); }
        pin(0); close(to[0]);
        while (now() < until) { if (write(to[1], c, 1) != 1 || read(from[0], c, 1) != 1) return 1; done++; }
        close(to[1]);
    } else { /* paced redis at 5,000 requests/s: an open loop, exponential pauses */
        struct sockaddr_un s = { AF_UNIX }; strcpy(s.sun_path, a[3]);
        int f = socket(AF_UNIX, SOCK_STREAM, 0); if (connect(f, (void *)&s, sizeof s)) return 1;
        srand48(1); double due = now();
        while (now() < until) {
            due += -log(1 - drand48()) * 200e-6;
            double left = due - now(); if (left > 0) { struct timespec t = { 0, left * 1e9 }; nanosleep(&t, 0); }
            if (write(f, "PING\r\n", 6) != 6 || read(f, c, 64) < 1) return 1; done++;
        }
    }
    printf("%.0f\n", done / (now() - begun)); return 0;
}
C
cat > "$dir/run.py" <<'PY'
import json, os, signal, tempfile, subprocess, sys, time, glob, re
for one in (signal.SIGTERM, signal.SIGHUP): signal.signal(one, lambda *_: sys.exit('ended'))  # the parameters are restored
dwell, dir, phase_s, halt_us = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
phases, rounds, runs = sys.argv[5].split(), int(sys.argv[6]), sys.argv[7:]
P = '/sys/module/haltpoll/parameters/'
NAMES = ['guest_halt_poll_ns', 'guest_halt_poll_grow', 'guest_halt_poll_grow_start', 'guest_halt_poll_shrink', 'guest_halt_poll_allow_shrink']
read = lambda n: open(P + n).read().strip()
originals = {n: read(n) for n in NAMES}
def put(values):
    for n, v in values.items(): open(P + n, 'w').write(str(v))
DEFAULT = dict(zip(NAMES, ['200000', '2', '50000', '2', 'Y']))
def start(run):
    put(DEFAULT if run.endswith('default') else {**DEFAULT, 'guest_halt_poll_ns': '0'})
def counters():
    poll = halts = 0
    for c in glob.glob('/sys/devices/system/cpu/cpu[0-9]*/cpuidle'):
        poll += int(open(c + '/state0/time').read()); halts += int(open(c + '/state1/usage').read())
    return poll, halts
def cpu_all():
    f = list(map(int, open('/proc/stat').readline().split()[1:9])); return sum(f) - f[3] - f[4], f[7]
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
sock = dir + '/redis.sock'
servers = [subprocess.Popen(['redis-server', '--port', '0', '--save', '', '--unixsocket', sock, '--unixsocketperm', '777'], **quiet)]
pg = glob.glob('/usr/lib/postgresql/*/bin')[-1]; data = dir + '/data'; os.chmod(dir, 0o777)
as_pg = ['setpriv', '--reuid', 'postgres', '--regid', 'postgres', '--clear-groups']
if 'pgbench' in phases:
    if not os.path.exists(data): subprocess.run(as_pg + [pg + '/initdb', '--auth=trust', '-U', 'load', '-N', '-D', data], check=True, **quiet)
    servers.append(subprocess.Popen(as_pg + [pg + '/postgres', '-c', 'listen_addresses=', '-c', 'autovacuum=off', '-k', dir, '-D', data], **quiet))
    for _ in range(50):
        time.sleep(.3)
        if subprocess.run(['pgbench', '-i', '-q', '-U', 'load', '-h', dir, 'postgres'], **quiet).returncode == 0: break
time.sleep(.5)
def load(kind):
    s = '%g' % phase_s
    if kind == 'idle': time.sleep(phase_s); return 0
    if kind == 'redis':
        end, done, begun = time.time() + phase_s, 0, time.time()
        # pieces of a duration: redis-benchmark knows only numbers of requests
        rate = 5000
        while time.time() < end - .05:
            n = max(500, int(min(end - time.time(), 1.0) * rate))
            t = time.time()
            subprocess.run(['redis-benchmark', '-s', sock, '-c', '1', '-t', 'get', '-q', '-n', str(n)], check=True, **quiet)
            rate = n / (time.time() - t); done += n
        return done / (time.time() - begun)
    if kind == 'paced': return float(subprocess.check_output([dir + '/loads', 'paced', s, sock]))
    if kind == 'pingpong': return float(subprocess.check_output([dir + '/loads', 'pingpong', s]))
    if kind == 'pgbench':
        out = subprocess.check_output(['pgbench', '-S', '-n', '-c', '1', '-M', 'prepared', '-T', '%d' % phase_s, '-U', 'load', '-h', dir, 'postgres'], stderr=subprocess.DEVNULL, text=True)
        return float(re.search(r'tps = ([\d.]+)', out)[1])
    if kind == 'fio':
        out = subprocess.check_output(['taskset', '1', 'fio', '--name=r', '--filename=' + dir + '/file', '--size=64m', '--rw=randread', '--bs=4k', '--iodepth=1', '--direct=1', '--ioengine=psync', '--runtime=' + s, '--time_based', '--output-format=json'], text=True)
        return json.loads(out)['jobs'][0]['read']['iops']
results, control = {}, None
try:
    if 'fio' in phases and not os.path.exists(dir + '/file'):
        open(dir + '/file', 'wb').write(os.urandom(64 << 20)); os.sync()
    for run in runs * rounds:
        start(run); time.sleep(.3); control = None
        if run.startswith('from-'):
            state = tempfile.mkdtemp(prefix='state.'); open(dir + '/empty.toml', 'w')
            log = open(dir + '/' + run + '.log', 'w')
            control = subprocess.Popen([dwell, 'control', '--mode', 'active', '--layer', 'guest', '--halt-cost', '%gus' % halt_us, '--config', dir + '/empty.toml', '--state-dir', state] + os.environ.get('CONTROL', '').split(), stdout=log, stderr=log)
            time.sleep(.5)
            if control.poll() is not None: sys.exit(open(log.name).read())
        rows = []
        for kind in phases:
            (p0, h0), t0, c0 = counters(), time.time(), cpu_all()
            if control: log.write('--- %s\n' % kind); log.flush()
            work = load(kind)
            (p1, h1), t1, c1 = counters(), time.time(), cpu_all()
            cost = ((p1 - p0) + (h1 - h0) * halt_us) / (t1 - t0) / 1e4
            rows.append((kind, work, cost)); print('%-13s %-9s %9.0f/s  cost %6.1f %%  busy %5.1f %%  setting %s' % (run, kind, work, cost, (c1[0] - c0[0]) / (t1 - t0), '/'.join(read(n) for n in NAMES[:4])), flush=True)
        if control:
            control.terminate(); control.wait()
        results.setdefault(run, []).append(rows)
finally:
    if control and control.poll() is None:
        control.terminate(); control.wait()
    put(originals)
    for s in servers: s.terminate()
    for s in servers: s.wait()
json.dump(results, open(dir + '/results.json', 'w'))
PY
python3 "$dir/run.py" "$dwell" "$dir" "${PHASE_S:-12}" "${HALT_US:-20}" "${PHASES:-redis idle pgbench paced pingpong fio redis paced pingpong idle}" "${ROUNDS:-1}" $runs
# The verdict: of each round the ratio to what is the better of the two fixed settings over all rounds, and the median of the rounds.
python3 - "$dir" <<'PY'
import json, statistics, sys
r = json.load(open(sys.argv[1] + '/results.json'))
def ratios(run, phase, of): return [of(*(rows[phase] for rows in round)) for round in zip(r[run], r['default'], r['never'])]
def words(all): return '%.2f (%s)' % (statistics.median(all), ', '.join('%.2f' % x for x in sorted(all)))
for run in r if 'default' in r and 'never' in r else []:
    if not run.startswith('from-'): continue
    for phase, (kind, _, _) in enumerate(r[run][0]):
        if kind == 'idle': continue
        better = max(('default', 'never'), key=lambda fixed: statistics.median(rows[phase][1] for rows in r[fixed]))
        work = ratios(run, phase, lambda own, default, never: own[1] / (default if better == 'default' else never)[1])
        cost = ratios(run, phase, lambda own, _, never: own[2] / max(never[2], .01))
        ok = statistics.median(work) >= .9 and (kind != 'paced' or statistics.median(cost) <= 1.1)
        print('%s %-13s %-9s work %s of the better%s' % ('ok  ' if ok else 'FAIL', run, kind, words(work), ', cost %s of never' % words(cost) if kind == 'paced' else ''))
PY
echo "kept in $dir"
