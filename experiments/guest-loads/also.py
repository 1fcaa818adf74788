"""Does a second recording under another setting help? also.py DWELL OUTPUT_OF_CAUSES

Of the recordings that causes.py has left, that under never is predicted with that under 200 us beside it, and the other way round,
with and without `--also`; the speeds under the maxima that neither has are compared with the turns in the output of causes.py."""
import re, statistics, sys
from loads import MAXIMA, predicted


def turns(output):
    "work a second, and what a unit costs [us], by load and maximum: of the output of causes.py"
    four = r'0 us ([\d.]+), 20 us ([\d.]+), 200 us ([\d.]+), 1000 us ([\d.]+)'
    costs = r'([\d.]+), ([\d.]+), ([\d.]+), ([\d.]+)'
    found = re.findall(rf'^(\w+): work/s {four}; us a unit {costs}$', open(output).read(), re.M)
    by = lambda figures: dict(zip(MAXIMA, map(float, figures)))
    return {load: (by(figures[:4]), by(figures[4:])) for load, *figures in found}


def main():
    dwell, output = sys.argv[1:]
    measured = {load: speed for load, (speed, _) in turns(output).items()}
    for with_other in (False, True):
        errors, inside, widths = [], [], []
        for load in measured:
            for maximum, beside in ((0, 200_000), (200_000, 0)):
                by, other = predicted(dwell, load, maximum, beside if with_other else None)
                line = f'{load:8} {maximum // 1000:4} us'
                for to in (to for to in MAXIMA if to != maximum and to in by):
                    speed, truth = by[to].speed, measured[load][to] / measured[load][maximum]
                    if to != beside:
                        errors.append(abs(speed.middle / truth - 1))
                        inside.append(speed.low <= truth <= speed.high)
                        widths.append(speed.high / speed.low)
                    line += f'  {to // 1000}: {speed} for {truth:.2f}'
                print(line, other, flush=True)
        print(f"{'two recordings' if with_other else 'one recording'}: median error {100 * statistics.median(errors):.1f} %, "
              f"{sum(inside)} of {len(inside)} in the range, width x {statistics.median(widths):.2f}")


if __name__ == '__main__':
    main()
