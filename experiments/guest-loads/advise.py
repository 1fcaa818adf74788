"""What does `dwell control --mode advise` say of each load under never and under the default, and what does the load do?

advise.py DWELL [LOADS]      (root; restores the parameters)
For each load: 3 s of it under either setting, then the lines of 25 s of advice with either in force."""
import subprocess, sys, tempfile
from loads import DEFAULT, HALT_US, NEVER, Beside, put, run, setup


def main():
    dwell, loads = sys.argv[1], sys.argv[2:] or ['redis', 'pgbench', 'pipe5', 'paced', 'pause', 'fio', 'http']
    setup()
    for load in loads:
        work = {}
        for name, setting in (('never', NEVER), ('default', DEFAULT)):
            put(setting)
            done = run(load, 3)
            cost = (done['poll'] * 1e4 + done['halts'] * HALT_US) / max(done['ops'], 1)
            work[name] = f"{done['ops']:.0f}/s at {cost:.1f} us"
        print(f"{load}: never {work['never']}; default {work['default']}", flush=True)
        for name, setting in (('never', NEVER), ('default', DEFAULT)):
            put(setting)
            beside = Beside(load)
            with tempfile.TemporaryDirectory() as state:
                told = subprocess.run([dwell, 'control', '--mode', 'advise', '--layer', 'guest', '--halt-cost', f'{HALT_US}us',
                                       '--duration', '25s', '--state-dir', state], capture_output=True, text=True)
            beside.end()
            lines = [line.split('guest: ', 1)[-1] for line in (told.stdout + told.stderr).splitlines()]
            for line in lines[1:] or ['(no advice)']:
                print(f'  under {name}: {line}', flush=True)


main()
