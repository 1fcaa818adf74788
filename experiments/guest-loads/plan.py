"""Writes a plan of haltpoll with a given predicted effect: PATH BEFORE COST NS GROW_START COST0 COST1 POLL0 POLL1 HALTS0 HALTS1"""
import sys, platform
path, before, cost, ns, gs, *effect = sys.argv[1:]
c0, c1, p0, p1, h0, h1 = map(float, effect)
halt_ns = int(cost[:-2]) * 1000
now = {"default": (200000, 50000), "never": (0, 50000)}[before]
version = ".".join(platform.release().split(".")[:2])
def setting(ns, gs): return f"guest_halt_poll_allow_shrink = 1\nguest_halt_poll_grow = 2\nguest_halt_poll_grow_start = {gs}\nguest_halt_poll_ns = {ns}\nguest_halt_poll_shrink = 2\n"
def priced(c, p, h): return f"episodes = 100000\npolls = 0\npolls_succeeded = 0\npolled_ns = 0\nhalts = 0\nexits = 0\npolling_ns_per_s = {p}\nhalts_per_s = {h}\nmean_added_latency_ns = 0.0\np99_added_latency_ns = 0\ncost_ns = 0\ncost_ns_per_s = {c}\n"
P = "/sys/module/haltpoll/parameters/"
writes = ""
for name, a, b in (("guest_halt_poll_grow_start", now[1], int(gs)), ("guest_halt_poll_ns", now[0], int(ns))):
    if a != b: writes += f'\n[[write]]\nknob = "{name}"\nplace = "{P}{name}"\nfrom = {a}\nto = {b}\n'
open(path, "w").write(f'''format = 2
tool = "dwell 0.1.0"
made_at_unix_s = 1
layer = "guest"
version = "{version}"
advice = "as advised before"
present_is_recorded = true

[present]
{setting(*now)}
[recommended]
{setting(ns, gs)}
[effect.present]
{priced(c0, p0, h0)}
[effect.recommended]
{priced(c1, p1, h1)}
[effect.optimum]
{priced(min(c0, c1), p1, h1)}
[effect.gain]
of = "cost_ns_per_s"
per_s = {c0 - c1}
[effect.gain.share]
low = 0.0
value = {1 - c1 / c0}
high = 1.0

[conditions]
halt_cost_ns = {halt_ns}
wakeup_latency_ns = 14000.0
goal = "least_cost"

[recording]
file = "r.parquet"
layer = "guest"
span_ns = 10000000000
judged_span_ns = 5000000000
episodes = 100000
idlers = ["cpu0", "cpu1"]
quantiles = []
{writes}''')
