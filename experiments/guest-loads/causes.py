"""Does a recording under one maximum predict the work under others? causes.py DWELL [ROUNDS [SECONDS [LOADS]]]

Each load runs ROUNDS (4) times SECONDS (2) under each of four maxima, in turns and without a recording: what it does a second, and
what polling and halts (20 us each) cost it. Then 2 s are recorded under each, and `dwell tune` predicts the other three. Printed are all
cells, the medians and the worst. An interval is Student's of 95 % over pairs of turns. DWELL may be several programs with commas
between them: the first records, and what each of the others predicts of the same recordings is in the summary."""
import json, math, statistics, sys
from loads import *

MAXIMA = [0, 20_000, 200_000, 1_000_000]
DEFAULT_MAXIMUM, HALT_US = 200_000, 20
T95 = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
LOADS = ['redis', 'redis8', 'paced', 'pgbench', 'pipe1', 'pipe5', 'pipe20', 'pause', 'fio', 'fio4', 'http']


def setting(maximum):
    return dict(DEFAULT, guest_halt_poll_ns=str(maximum))


def turn(load, maximum, seconds, rate):
    put(setting(maximum))
    time.sleep(0.3)
    return run(load, seconds, rate)


def cost_us(turn):
    "polling and halts for one unit of work"
    return (turn['poll'] * 1e4 + turn['halts'] * HALT_US) / turn['ops']


def record(dwell, load, maximum):
    put(setting(maximum))
    path = f'{D}/causes.{load}.{maximum}.parquet'
    beside = Beside(load)
    recorded = sh(f'{dwell} record guest --duration 2s --force -o {path}')
    beside.end()
    if recorded.returncode:
        raise SystemExit(f'{load} under {maximum}: {recorded.stderr[-400:]}')
    return path


def predicted(dwell, path):
    "speed and cost by maximum, with the range; of a recording"
    tuned = sh(f'{dwell} tune {path} --halt-cost {HALT_US}us --despite-self-check --format json')
    if tuned.returncode:
        raise SystemExit(f'{path}: {tuned.stderr[-400:]}')
    work = json.loads(tuned.stdout).get('work')
    if work is None:
        return None, 'no causes'
    return by_maximum(work), f"own error {work['own_error']:+.1%}, causes {work['causes']}, unit {','.join(work['unit_of_work'])}"


def interval(logs):
    mean = statistics.mean(logs)
    half = T95.get(len(logs) - 1, 2.2) * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return mean, half


def main():
    programs, *rest = sys.argv[1:]
    dwell, *others = programs.split(',')
    rounds = int(rest[0]) if rest else 4
    seconds = float(rest[1]) if len(rest) > 1 else 2
    loads = rest[2].split(',') if len(rest) > 2 else LOADS
    seconds = int(seconds) if seconds == int(seconds) else seconds
    setup()
    atexit.register(stop)
    errors, ranges, signs = {}, {}, []
    print('load     recorded  predicted   speed: predicted (range)   measured    error   cost: predicted measured  error   better than the default')
    for load in loads:
        rate = {maximum: {load: turn(load, maximum, 0.3, {})['ops']} if load.startswith('redis') else {} for maximum in MAXIMA}
        turns = {maximum: [] for maximum in MAXIMA}
        for number in range(rounds):
            order = MAXIMA[number % 4:] + MAXIMA[:number % 4]
            for maximum in order:
                turns[maximum].append(turn(load, maximum, seconds, rate[maximum]))
        mean = lambda maximum, of: statistics.mean(of(one) for one in turns[maximum])
        print(f'{load}: work/s ' + ', '.join(f'{m // 1000} us {mean(m, lambda t: t["ops"]):.0f}' for m in MAXIMA)
              + '; us a unit ' + ', '.join(f'{mean(m, cost_us):.1f}' for m in MAXIMA), flush=True)
        for recorded in MAXIMA:
            path = record(dwell, load, recorded)
            by, words = predicted(dwell, path)
            found = {'': by, **{f' by {other}': predicted(other, path)[0] for other in others}}
            print(f'  recorded under {recorded // 1000} us: {words}')
            if by is None:
                continue
            for to in MAXIMA:
                one, own, default = by[to], by[recorded], by[DEFAULT_MAXIMUM]
                speed = one['speed']['middle']
                measured = mean(to, lambda t: t['ops']) / mean(recorded, lambda t: t['ops'])
                cost = one['cost_ns']['middle'] / max(own['cost_ns']['middle'], 1e-9)
                measured_cost = mean(to, cost_us) / mean(recorded, cost_us)
                sign = ''
                logs = [math.log(cost_us(a) / cost_us(b)) for a, b in zip(turns[to], turns[DEFAULT_MAXIMUM])]
                if to not in (recorded, DEFAULT_MAXIMUM):
                    value, half = interval(logs)
                    if abs(value) > half:
                        better = one['cost_ns']['middle'] < default['cost_ns']['middle']
                        signs.append(better == (value < 0))
                        sign = 'right' if signs[-1] else f'WRONG (x{math.exp(value):.2f} +- {half:.0%})'
                if to == recorded:
                    continue
                for program, rows in found.items():
                    cell, to_row, own_row = f'{load} {recorded}->{to}', rows[to], rows[recorded]
                    of_cost = to_row['cost_ns']['middle'] / max(own_row['cost_ns']['middle'], 1e-9)
                    errors.setdefault(f'speed{program}', []).append((abs(to_row['speed']['middle'] / measured - 1), cell))
                    errors.setdefault(f'cost{program}', []).append((abs(of_cost / measured_cost - 1), cell))
                    ranges.setdefault(program, []).append(to_row['speed']['low'] <= measured <= to_row['speed']['high'])
                low, high = one['speed']['low'], one['speed']['high']
                print(f'  {"":7} {recorded // 1000:8} {to // 1000:10}   {speed:6.2f} ({low:.2f} to {high:.2f})  {measured:10.2f} {speed / measured - 1:+8.1%}'
                      f'   {cost:12.2f} {measured_cost:8.2f} {cost / measured_cost - 1:+7.1%}   {sign}', flush=True)
    for name, cells in errors.items():
        print(f'{name}: {len(cells)} cells, median error {statistics.median(e for e, _ in cells):.1%}, worst {max(cells)[0]:.1%} ({max(cells)[1]})')
    for program, cells in ranges.items():
        print(f'speeds in the range{program}: {sum(cells)} of {len(cells)}')
    print(f'sign of "better than the default": {sum(signs)} of {len(signs)} right')


main()
