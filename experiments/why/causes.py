#!/usr/bin/env python3
"""Puts known causes of CPU time into an idle VM and compares what `dwell why` says with what is measured.

Usage: causes.py DWELL [--case NAME]... [--seconds N] [--show]

For each cause two QEMUs on KVM run side by side: one with it, one without it. `dwell why` looks at the first; before and
after it the CPU time of both is measured in the same seconds, so that what else this machine does is in both. Printed are: the rank of the
cause among what removes CPU time; the part of what /proc counted that has a cause; what removing it is to save; and what
the VM without it used less. Ok: at least 95 % have a cause, the rank is the true one, and the saving is right to 15 %.
Of several causes the limits of their intervals are added.
--show prints the bills as well. Needs root, QEMU, as, ld and cc, and changes no parameter.
"""
import argparse, json, os, socket, struct, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))


def run(*words):
    subprocess.run(words, check=True)


def source(name):
    return os.path.join(HERE, name)


def boot_sector(folder, timer, hz):
    image = os.path.join(folder, f"{timer or 'quiet'}-{hz}")
    names = {"KICK": ["APIC", "KICK"], None: []}.get(timer, [timer])
    symbols = [word for symbol in [f"HZ={hz}", *(f"{name}=1" for name in names)] for word in ("--defsym", symbol)]
    run("as", "--32", *symbols, "-o", image + ".o", source("guest.s"))
    run("ld", "-m", "elf_i386", "-e", "0", "-Ttext", "0x7c00", "--oformat", "binary", "-o", image, image + ".o")
    drive = f"file={image},format=raw,if=none,id=boot,snapshot=on"
    return ["-drive", drive, "-device", "ide-hd,drive=boot,bootindex=0"]


class Client(threading.Thread):
    """Asks QEMU something again and again, until it is stopped."""

    def __init__(self, path, period):
        super().__init__(daemon=True)
        self.path, self.period, self.ends = path, period, False
        self.start()

    def run(self):
        link = socket.socket(socket.AF_UNIX)
        link.connect(self.path)
        try:
            self.begin(link)
            while not self.ends:
                self.ask(link)
                time.sleep(self.period)
        except OSError:
            pass


class Monitor(Client):
    def begin(self, link):
        self.lines = link.makefile("rw")
        self.lines.readline()
        self.say("qmp_capabilities")

    def say(self, command):
        self.lines.write(json.dumps({"execute": command}) + "\n")
        self.lines.flush()
        self.lines.readline()

    def ask(self, _):
        self.say("query-status")


class Display(Client):
    """A VNC client that wants the whole picture each time."""

    def begin(self, link):
        read = lambda count: receive(link, count)
        read(12)
        link.sendall(b"RFB 003.008\n")
        read(read(1)[0])
        link.sendall(b"\1")
        read(4)
        link.sendall(b"\1")
        self.width, self.height = struct.unpack(">HH", read(4))
        read(16)
        read(struct.unpack(">I", read(4))[0])
        link.setblocking(False)

    def ask(self, link):
        link.sendall(struct.pack(">BBHHHH", 3, 0, 0, 0, self.width, self.height))
        try:
            while link.recv(1 << 20):
                pass
        except BlockingIOError:
            pass


def receive(link, count):
    data = b""
    while len(data) < count:
        data += link.recv(count - len(data)) or sys.exit("QEMU ended")
    return data


def io_thread(poll_ns):
    return ["-object", f"iothread,id=io0,poll-max-ns={poll_ns}", "-blockdev", "driver=null-co,node-name=n0,size=1048576,read-zeroes=on",
            "-device", "virtio-blk-pci,disable-modern=on,iothread=io0,drive=n0,addr=4"]


def tasks(pid):
    """The folders of a process's threads, and of KVM's thread for its PIT."""
    kernel = [f"/proc/{p}" for p in os.listdir("/proc") if p.isdigit() and comm(f"/proc/{p}") == f"kvm-pit/{pid}"]
    return [f"/proc/{pid}/task/{tid}" for tid in os.listdir(f"/proc/{pid}/task")] + kernel


def used(folders):
    """CPU time of threads [ns], and when it was read [ns]."""
    total = 0
    for folder in folders:
        try:
            with open(folder + "/schedstat") as file:
                total += int(file.read().split()[0])
        except OSError:
            pass  # A worker of QEMU that has ended.
    return total, time.monotonic_ns()


def comm(path):
    try:
        with open(path + "/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


class Vm:
    def __init__(self, folder, options, clients=(), hpet="on", polls_ns=None):
        self.folder, self.clients, self.wanted = tempfile.mkdtemp(dir=folder), [], clients
        display = ["-vga", "std", "-vnc", f"unix:{self.path('vnc')}"] if "display" in clients else ["-display", "none", "-vga", "none"]
        polling = {} if polls_ns is None else {"LD_PRELOAD": os.path.join(folder, "halt_poll.so"), "HALT_POLL_NS": str(polls_ns)}
        self.errors = open(self.path("errors"), "w+")
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-machine", f"pc,accel=kvm,hpet={hpet}", "-m", "64", "-nodefaults", "-no-user-config", *display]
            + ["-name", "guest=why,debug-threads=on", *options]
            + [word for name in ["qmp", "own"] for word in ("-qmp", f"unix:{self.path(name)},server=on,wait=off")]
            + ["-chardev", f"file,id=says,path={self.path('says')}", "-device", "isa-debugcon,iobase=0xe9,chardev=says"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors, env={**os.environ, **polling})

    def path(self, name):
        return os.path.join(self.folder, name)

    def begins(self):
        """Waits until the guest has reported that it is idle but for its cause."""
        begun = time.time()
        while not os.path.exists(self.path("says")) or os.path.getsize(self.path("says")) == 0:
            if self.process.poll() is not None or time.time() - begun > 60:
                self.errors.seek(0)
                raise Failed(f"the guest did not begin within a minute; QEMU: {self.errors.read().strip()!r}")
            time.sleep(0.1)
        kinds = {"monitor": (Monitor, "qmp", 0.002), "display": (Display, "vnc", 0.033)}
        self.clients = [kinds[name][0](self.path(kinds[name][1]), kinds[name][2]) for name in self.wanted]

    def interrupts(self):
        """The number that the guest has counted, from its memory."""
        command = {"execute": "human-monitor-command", "arguments": {"command-line": "xp /1wu 0x6000"}}
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(self.path("own"))
            lines = link.makefile("rw")
            lines.readline()
            for words in [{"execute": "qmp_capabilities"}, command]:
                lines.write(json.dumps(words) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
        return int(answer["return"].split(":")[1])

    def end(self):
        for client in self.clients:
            client.ends = True
        self.process.kill()
        self.process.wait()
        self.errors.close()


class Failed(Exception):
    pass


def measure(vms, seconds):
    """CPU time of each in the same seconds, as a share of a CPU."""
    folders = [tasks(vm.process.pid) for vm in vms]
    before = [used(one) for one in folders]
    time.sleep(seconds)
    after = [used(one) for one in folders]
    return [(now - then) / (at - since) for (then, since), (now, at) in zip(before, after)]


def why(dwell, vm, seconds, show):
    words = [dwell, "why", str(vm.process.pid), "--duration", f"{seconds}s"]
    report = json.loads(subprocess.run(words + ["--format", "json"], check=True, capture_output=True).stdout)
    if show:
        print(subprocess.run(words, check=True, capture_output=True, text=True).stdout, flush=True)
    if "untraced" in report:
        sys.exit(f"dwell why cannot trace: {report['untraced']}")
    one, span = report["bills"][0], report["span_ns"]
    named = sum(line["cpu_ns"] for line in one["lines"] if line["cause"] != "rest")
    limits = lambda removal: [ns / span for ns in removal.get("saves_interval_ns", [removal["saves_ns"]] * 2)]
    removals = [(removal["what"], removal["saves_ns"] / span, limits(removal)) for removal in one["removals"]]
    return named / max(one["cpu_ns"], 1), removals, report["lost_events"]


def cases(folder):
    """Of each: its name, the VM with the cause, that without, the least interrupts a second, how the removals of the cause begin,
    by rank. Without its timers a guest does not poll either, so that they are what saves most where it polls."""
    sector = lambda timer, hz: boot_sector(folder, timer, hz)
    quiet = lambda **other: Vm(folder, sector(None, 1), **other)
    with_timer = lambda timer, hz, **other: lambda: Vm(folder, sector(timer, hz), **other)
    kicking = lambda poll_ns: lambda: Vm(folder, sector("KICK", 2500) + io_thread(poll_ns))
    timers = ["timers of the guest's local APICs"]
    return [
        ("hpet", with_timer("HPET", 1000), lambda: quiet(hpet="off"), 900, ["HPET"]),
        ("pit", with_timer("PIT", 1000), quiet, 900, ["PIT"]),
        ("tick", with_timer("APIC", 1000), quiet, 900, timers),
        ("short timer", with_timer("APIC", 10000), quiet, 3000, timers),
        ("10 us sleeps", with_timer("SLEEP", 100000), quiet, 3000, timers),
        ("I/O thread", kicking(1_000_000), kicking(0), 2000, ["polling of I/O thread io0"]),
        ("monitor", lambda: quiet(clients=["monitor"]), quiet, 0, ["clients"]),
        ("display", lambda: quiet(clients=["display"]), quiet, 0, ["clients"]),
        ("polling", with_timer("APIC", 2000, polls_ns=1_000_000), with_timer("APIC", 2000, polls_ns=0), 1600, [None, "halt polling"]),
        ("three", with_timer("HPET", 1000, clients=["monitor", "display"]), quiet, 900, ["HPET", "clients"]),
    ]


def compare(args, make_with, make_without, least, beginnings):
    vms = []
    try:
        vms += [make_with()]
        vms += [make_without()]
        for vm in vms:
            vm.begins()
        time.sleep(2)
        before, begun = vms[0].interrupts(), time.monotonic()
        first = measure(vms, args.seconds / 2)
        named, removals, lost = why(args.dwell, vms[0], args.seconds, args.show)
        second = measure(vms, args.seconds / 2)
        per_s = (vms[0].interrupts() - before) / (time.monotonic() - begun)
        with_it, without = [(one + other) / 2 for one, other in zip(first, second)]
    finally:
        for vm in vms:
            vm.end()
    if per_s < least:
        raise Failed(f"the guest had {per_s:.0f} interrupts a second, not {least}: its cause is not there")
    is_it = tuple(filter(None, beginnings))
    found = [(rank, *rest) for rank, (what, *rest) in enumerate(removals, 1) if what.startswith(is_it)]
    predicted, measured = sum(saves for _, saves, _ in found), with_it - without
    low, high = (sum(limits[place] for _, _, limits in found) for place in (0, 1))
    ranks = ",".join(str(rank) for rank, _, _ in found) or "-"
    error = predicted / measured - 1 if measured > 0 else float("inf")
    true = [rank for rank, what in enumerate(beginnings, 1) if what]
    right = [("sum", named >= 0.95), ("rank", [rank for rank, _, _ in found] == true), ("saving", abs(error) <= 0.15)]
    wrong = [name for name, is_right in right if not is_right]
    interval = f"{low:.2%} to {high:.2%}"
    numbers = f"{ranks:>4} {named:7.1%} {with_it:8.2%} {predicted:10.2%} {interval:>18} {measured:9.2%} {error:+7.1%} {lost:>6}"
    return numbers, ", ".join(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dwell")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        run("cc", "-shared", "-fPIC", "-o", os.path.join(folder, "halt_poll.so"), source("halt_poll.c"))
        for name, make_with, make_without, least, beginnings in cases(folder):
            if args.case and name not in args.case:
                continue
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                numbers, wrong = compare(args, make_with, make_without, least, beginnings)
                rows.append(f"{name:<12} {numbers}  {'MISS: ' + wrong if wrong else 'ok'}")
            except Failed as error:
                rows.append(f"{name:<12} FAILED: {error}")
            failed |= not rows[-1].endswith("ok")
    print(f"{'cause':<12} {'rank':>4} {'named':>7} {'CPU':>8} {'predicted':>10} {'95 % interval':>18} {'measured':>9} {'error':>7} {'lost':>6}")
    print("\n".join(rows))
    sys.exit(failed)


main()
