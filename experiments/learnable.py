"""What a learner with far more means than `leader` reaches: trees of gradient boosting over this busy time and the last eight busy
and idle times, trained on the first half of each recording, judged on the second. Prints cost / optimum, the geometric mean over the
recordings on which `leader` was fitted and over the others, for halt costs of 5, 20 and 50 us. Beside it:
`cargo run --release -p dwell-replay --example leader_ablation -- recordings second-half`.

    pip install lightgbm pyarrow scikit-learn
    python3 experiments/learnable.py recordings
"""
import pathlib
import sys

import lightgbm
import numpy as np
import pyarrow.parquet as parquet

FITTED = ("event-memcached_poisson10k event-pgbench_sel1 guest-fio_qd1 guest-memcached_poisson10k guest-nginx_wrk1 "
          "guest-pipe_exp100us guest-redis_poisson5k").split()
EDGES = np.array([1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32]) / 16


def features(busy, idle, past=8):
    shifted = [np.concatenate([np.zeros(lag), times[:-lag]]) for lag in range(1, past + 1) for times in (idle, busy)]
    return np.log1p(np.stack([busy, *shifted], axis=1))


def cost(path, halt_cost):
    table = parquet.read_table(path, columns=["start_ns", "idle_ns"])
    start, idle = (np.array(table[name], dtype=float) for name in ("start_ns", "idle_ns"))
    busy = np.concatenate([[0], start[1:] - start[:-1] - idle[:-1]])
    half = len(idle) // 2
    windows = halt_cost * np.arange(33) / 16
    costs = np.where(idle[:, None] <= windows, idle[:, None], windows + halt_cost)
    of = features(busy, idle)
    lengths = np.searchsorted(halt_cost * EDGES, idle)
    taken = np.full(len(idle) - half, costs[:half].mean(axis=0).argmin())
    if len(set(lengths[:half])) > 1:
        model = lightgbm.LGBMClassifier(n_estimators=60, num_leaves=15, min_child_samples=100, learning_rate=.08, verbose=-1,
                                        n_jobs=2, random_state=0).fit(of[:half], lengths[:half])
        by_length = np.stack([costs[:half][lengths[:half] == length].mean(axis=0) for length in model.classes_])
        taken = (model.predict_proba(of[half:]) @ by_length).argmin(axis=1)
    return costs[half:][np.arange(len(taken)), taken].sum() / np.minimum(idle, halt_cost)[half:].sum()


def main():
    found = sorted(pathlib.Path(sys.argv[1]).glob("*.parquet"))
    for fitted in (True, False):
        ratios = [[cost(path, 1_000 * us) for us in (5, 20, 50)] for path in found if (path.stem in FITTED) == fitted]
        print("fitted    " if fitted else "the others", *(f"{mean:.4f}" for mean in np.exp(np.log(ratios).mean(axis=0))))


main()
