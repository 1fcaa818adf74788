"""What does another dwell predict of the same recordings? again.py DWELL OUTPUT_OF_CAUSES

The recordings that causes.py has left are predicted once more, and compared with the turns in its output."""
import statistics, sys
from also import turns
from loads import MAXIMA, predicted


def main():
    dwell, output = sys.argv[1:]
    cells = []
    for load, (work, cost) in turns(output).items():
        for maximum in MAXIMA:
            by, _ = predicted(dwell, load, maximum)
            for to in (to for to in MAXIMA if to != maximum):
                speed, truth = by[to].speed, work[to] / work[maximum]
                costs = by[to].cost_us / by[maximum].cost_us
                cells.append(dict(name=f'{load} {maximum // 1000}->{to // 1000} us', has_20=20_000 in (maximum, to),
                                  speed=abs(speed.middle / truth - 1), cost=abs(costs * cost[maximum] / cost[to] - 1),
                                  inside=speed.low <= truth <= speed.high, words=f'{speed.middle:.2f} for {truth:.2f}'))
    for name, some in (('all', cells), ('without a maximum of 20 us', [cell for cell in cells if not cell['has_20']])):
        worst = max(some, key=lambda cell: cell['speed'])
        print(f"{name}: {len(some)} cells; speed: median error {statistics.median(c['speed'] for c in some):.1%}, "
              f"worst {worst['name']}, {worst['words']}; in the range {sum(c['inside'] for c in some)}; "
              f"cost: median error {statistics.median(c['cost'] for c in some):.1%}")


main()
