"""Does a recording under one maximum predict the work under others? causes.py DWELL [ROUNDS [SECONDS [LOADS]]]

In each of ROUNDS (4) each load runs for SECONDS (1) under each of four maxima, once without a recording (what it does a second, and
what polling and halts cost it, 20 us each) and once with one. `dwell tune` predicts the other three maxima from each recording.
A wakeup from a halt takes 15 us in one second on such a machine and 23 in another, so that both sides are means over the rounds; the
last lines have each recording alone, too. An interval is Student's of 95 % over pairs of turns."""
import math, statistics, sys
from loads import *

DEFAULT_MAXIMUM = 200_000
T95 = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
LOADS = ['redis', 'redis8', 'paced', 'pgbench', 'pipe1', 'pipe5', 'pipe20', 'pause', 'fio', 'fio4', 'http']


def turn(load, maximum, seconds, rate):
    put(dict(DEFAULT, guest_halt_poll_ns=str(maximum)))
    time.sleep(0.3)
    return run(load, seconds, rate)


def cost_us(turn):
    "polling and halts for one unit of work"
    return (turn['poll'] * 1e4 + turn['halts'] * HALT_US) / turn['ops']


def record(dwell, load, maximum, number, seconds):
    put(dict(DEFAULT, guest_halt_poll_ns=str(maximum)))
    beside = Beside(load)
    recorded = sh(f'{dwell} record guest --duration {seconds}s --force -o {D}/causes.{load}.{maximum}.{number}.parquet')
    beside.end()
    if recorded.returncode:
        raise SystemExit(f'{load} under {maximum}: {recorded.stderr[-400:]}')


def interval(logs):
    mean = statistics.mean(logs)
    half = T95.get(len(logs) - 1, 2.2) * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return mean, half


def off(predicted, measured):
    return abs(predicted / measured - 1)


def main():
    dwell, *rest = sys.argv[1:]
    rounds = int(rest[0]) if rest else 4
    seconds = float(rest[1]) if len(rest) > 1 else 1
    loads = rest[2].split(',') if len(rest) > 2 else LOADS
    seconds = int(seconds) if seconds == int(seconds) else seconds
    setup()
    errors, inside, signs = {}, [], []
    print('load     recorded  predicted   speed: predicted (range)   measured    error   cost: predicted measured  error   better than the default')
    for load in loads:
        for path in glob.glob(f'{D}/causes.{load}.*.parquet'):
            os.unlink(path)
        rate = {maximum: {load: turn(load, maximum, 0.3, {})['ops']} if load.startswith('redis') else {} for maximum in MAXIMA}
        turns = {maximum: [] for maximum in MAXIMA}
        for number in range(rounds):
            for maximum in MAXIMA[number % 4:] + MAXIMA[:number % 4]:
                turns[maximum].append(turn(load, maximum, seconds, rate[maximum]))
                record(dwell, load, maximum, number, seconds)
        mean = lambda maximum, of: statistics.geometric_mean(of(one) for one in turns[maximum])
        print(f'{load}: work/s ' + ', '.join(f'{m // 1000} us {mean(m, lambda t: t["ops"]):.0f}' for m in MAXIMA)
              + '; us a unit ' + ', '.join(f'{mean(m, cost_us):.1f}' for m in MAXIMA), flush=True)
        for under in MAXIMA:
            found = [predict(dwell, path) for path in recorded(load, under)]
            each = [{to: mean_row([by[to]]) for to in MAXIMA} for by, _ in found]
            means = {to: mean_row([by[to] for by, _ in found]) for to in MAXIMA}
            work = found[0][1]
            print(f"  recorded under {under // 1000} us: own errors {', '.join(format(of['own_error'], '+.1%') for _, of in found)}, "
                  f"causes {work['causes']}, unit {','.join(work['unit_of_work'])}")
            for to in (to for to in MAXIMA if to != under):
                speed = mean(to, lambda t: t['ops']) / mean(under, lambda t: t['ops'])
                cost = mean(to, cost_us) / mean(under, cost_us)
                cell = f'{load} {under}->{to}'
                for what, rows in (('means of the rounds', [means]), ('each recording alone', each)):
                    for by in rows:
                        errors.setdefault(f'speed, {what}', []).append((off(by[to].speed.middle, speed), cell))
                        errors.setdefault(f'cost, {what}', []).append((off(by[to].cost_us / by[under].cost_us, cost), cell))
                one = means[to]
                inside.append(one.speed.low <= speed <= one.speed.high)
                sign = ''
                if to != DEFAULT_MAXIMUM:
                    value, half = interval([math.log(cost_us(a) / cost_us(b)) for a, b in zip(turns[to], turns[DEFAULT_MAXIMUM])])
                    if abs(value) > half:
                        signs.append((one.cost_us < means[DEFAULT_MAXIMUM].cost_us) == (value < 0))
                        sign = 'right' if signs[-1] else f'WRONG (x{math.exp(value):.2f} +- {half:.0%})'
                of_cost = one.cost_us / means[under].cost_us
                print(f'  {"":7} {under // 1000:8} {to // 1000:10}   {str(one.speed):22}  {speed:10.2f} {one.speed.middle / speed - 1:+8.1%}'
                      f'   {of_cost:12.2f} {cost:8.2f} {of_cost / cost - 1:+7.1%}   {sign}', flush=True)
    for name, cells in errors.items():
        print(f'{name}: {len(cells)} cells, median error {statistics.median(e for e, _ in cells):.1%}, worst {max(cells)[0]:.1%} ({max(cells)[1]})')
    print(f'speeds in the range: {sum(inside)} of {len(inside)}')
    print(f'sign of "better than the default": {sum(signs)} of {len(signs)} right')


main()
