"""Does a second recording under another setting help? also.py DWELL OUTPUT_OF_CAUSES

Of the recordings that causes.py has left, that under never is predicted with that under 200 us beside it, and the other way round,
with and without `--also`; the speeds under the maxima that neither has are compared with the turns in the output of causes.py."""
import json, re, statistics, sys
from loads import D, by_maximum, sh

MAXIMA = [0, 20_000, 200_000, 1_000_000]


def turns(output):
    "work a second, and what a unit costs [us], by load and maximum: of the output of causes.py"
    four = r'0 us ([\d.]+), 20 us ([\d.]+), 200 us ([\d.]+), 1000 us ([\d.]+)'
    costs = r'([\d.]+), ([\d.]+), ([\d.]+), ([\d.]+)'
    found = re.findall(rf'^(\w+): work/s {four}; us a unit {costs}$', open(output).read(), re.M)
    by = lambda figures: dict(zip(MAXIMA, map(float, figures)))
    return {load: (by(figures[:4]), by(figures[4:])) for load, *figures in found}


def speeds(dwell, load, maximum, also):
    more = f' --also {D}/causes.{load}.{also}.parquet' if also is not None else ''
    tuned = sh(f'{dwell} tune {D}/causes.{load}.{maximum}.parquet --halt-cost 20us --despite-self-check --format json{more}')
    work = json.loads(tuned.stdout).get('work') if tuned.returncode == 0 else None
    if work is None:
        raise SystemExit(f'{load} under {maximum}: {tuned.stderr[-400:] or "no causes"}')
    return by_maximum(work), work.get('other')


def main():
    dwell, output = sys.argv[1:]
    measured = {load: speed for load, (speed, _) in turns(output).items()}
    for with_other in (False, True):
        errors, inside, widths = [], [], []
        for load in measured:
            for maximum, beside in ((0, 200_000), (200_000, 0)):
                by, other = speeds(dwell, load, maximum, beside if with_other else None)
                line = f'{load:8} {maximum // 1000:4} us'
                for to in (to for to in MAXIMA if to != maximum and to in by):
                    speed, truth = by[to]['speed'], measured[load][to] / measured[load][maximum]
                    if to != beside:
                        errors.append(abs(speed['middle'] / truth - 1))
                        inside.append(speed['low'] <= truth <= speed['high'])
                        widths.append(speed['high'] / speed['low'])
                    line += f"  {to // 1000}: {speed['middle']:.2f} ({speed['low']:.2f} to {speed['high']:.2f}) for {truth:.2f}"
                print(line, other or '', flush=True)
        print(f"{'two recordings' if with_other else 'one recording'}: median error {100 * statistics.median(errors):.1f} %, "
              f"{sum(inside)} of {len(inside)} in the range, width x {statistics.median(widths):.2f}")


if __name__ == '__main__':
    main()
