#!/usr/bin/env python3
"""Puts known causes of CPU time into an idle VM, one at a time, and compares what `dwell why` says with what is measured.

Usage: causes.py DWELL [--seconds N] [--only NAME,...] [--knobs]

For each cause a QEMU on KVM runs the boot sector of guest.s with it and one without it. Printed are: the lines of the bill by
what /proc counted for them; the rank of the cause among what removes CPU time; what removing it is to save; and what
the VM without it used less. --knobs also changes kvm's halt_poll_ns, and restores it. Needs root, QEMU, as and ld.
"""
import argparse, json, os, socket, struct, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
HALT_POLL = "/sys/module/kvm/parameters/halt_poll_ns"


def assemble(folder, name, hz, timer):
    image = os.path.join(folder, name)
    defined = [f"HZ={hz}", *(f"{name}=1" for name in {"KICK": ["APIC", "KICK"], None: []}.get(timer, [timer]))]
    symbols = [word for symbol in defined for word in ("--defsym", symbol)]
    subprocess.run(["as", "--32", *symbols, "-o", image + ".o", os.path.join(HERE, "guest.s")], check=True)
    link = ["ld", "-m", "elf_i386", "-e", "0", "-Ttext", "0x7c00", "--oformat", "binary", "-o", image, image + ".o"]
    subprocess.run(link, check=True)
    return image


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


def ask_qmp(path, commands):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        lines = link.makefile("rw")
        lines.readline()
        for execute, arguments in [("qmp_capabilities", {}), *commands]:
            lines.write(json.dumps({"execute": execute, "arguments": arguments}) + "\n")
            lines.flush()
            while "return" not in (answer := json.loads(lines.readline())):
                if "error" in answer:
                    sys.exit(f"{execute}: {answer['error']['desc']}")


IO_THREAD = ["-object", "iothread,id=io0,poll-max-ns=1000000", "-blockdev", "driver=null-co,node-name=n0,size=1048576,read-zeroes=on",
             "-device", "virtio-blk-pci,disable-modern=on,iothread=io0,drive=n0,addr=4"]


def used(pid):
    """CPU time of a process and of KVM's thread for its PIT [ns]."""
    total = 0
    kernel = [f"/proc/{p}" for p in os.listdir("/proc") if p.isdigit() and comm(f"/proc/{p}") == f"kvm-pit/{pid}"]
    for task in [f"/proc/{pid}/task/{tid}" for tid in os.listdir(f"/proc/{pid}/task")] + kernel:
        with open(task + "/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def comm(path):
    try:
        with open(path + "/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


class Vm:
    def __init__(self, folder, image, clients, timer=None):
        self.folder = tempfile.mkdtemp(dir=folder)
        path = lambda name: os.path.join(self.folder, name)
        display = ["-vga", "std", "-vnc", f"unix:{path('vnc')}"] if "display" in clients else ["-display", "none"]
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-machine", "pc,accel=kvm,hpet=on", "-m", "64", "-nodefaults", "-no-user-config"]
            + ["-name", "guest=why,debug-threads=on", "-drive", f"file={image},format=raw,if=none,id=boot,snapshot=on", *display]
            + ["-device", "ide-hd,drive=boot,bootindex=0"]
            + (IO_THREAD if timer == "KICK" else []) + ["-qmp", f"unix:{path('qmp')},server=on,wait=off"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.settle()
        kinds = {"monitor": (Monitor, "qmp", 0.002), "display": (Display, "vnc", 0.033)}
        self.clients = [kinds[name][0](path(kinds[name][1]), kinds[name][2]) for name in clients]
        time.sleep(1)

    def settle(self):
        """Firmware is over when half a second is as busy as the one before."""
        begun, before = time.time(), None
        while time.time() - begun < 60:
            start = used(self.process.pid)
            time.sleep(0.5)
            now = used(self.process.pid) - start
            if before is not None and time.time() - begun > 5 and abs(now - before) < 0.2 * before + 5e6 and now < 3e8:
                return
            before = now

    def stop_polling(self):
        value = {"path": "/objects/io0", "property": "poll-max-ns", "value": 0}
        ask_qmp(os.path.join(self.folder, "qmp"), [("qom-set", value)])

    def end(self):
        for client in self.clients:
            client.ends = True
        self.process.kill()
        self.process.wait()


def measure(vm, seconds):
    start, begun = used(vm.process.pid), time.monotonic()
    time.sleep(seconds)
    return (used(vm.process.pid) - start) / (time.monotonic() - begun) / 1e9


def bill(dwell, vm, seconds):
    words = [dwell, "why", str(vm.process.pid), "--duration", f"{seconds}s", "--format", "json"]
    report = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    one, span = report["bills"][0], report["span_ns"]
    named = sum(line["cpu_ns"] for line in one["lines"] if line["cause"] != "rest")
    removals = [(removal["what"], removal["saves_ns"] / span) for removal in one["removals"]]
    return one["cpu_ns"] / span, named / max(one["cpu_ns"], 1), removals, report["lost_events"]


#        name, timer, its rate, clients, halt_poll_ns, what the removals begin with
CAUSES = [
    ("hpet", "HPET", 1000, [], None, ["HPET"]),
    ("pit", "PIT", 1000, [], None, ["PIT"]),
    ("tick", "APIC", 1000, [], None, ["timers of"]),
    ("short timer", "APIC", 10000, [], None, ["timers of"]),
    ("10 us sleeps", "SLEEP", 100000, [], None, ["timers of"]),
    ("I/O thread", "KICK", 2500, [], None, ["polling of I/O thread io0"]),
    ("monitor", None, 1, ["monitor"], None, ["clients"]),
    ("display", None, 1, ["display"], None, ["clients"]),
    ("three", "HPET", 1000, ["monitor", "display"], None, ["HPET", "clients"]),
    ("polling", "APIC", 2000, [], 1_000_000, ["halt polling"]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dwell")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--knobs", action="store_true")
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    print(f"{'cause':<12} {'by /proc':>8} {'named':>7} {'rank':>6} {'predicted':>10} {'measured':>9} {'error':>7}  lost")
    with tempfile.TemporaryDirectory() as folder:
        for name, timer, hz, clients, window, beginnings in CAUSES:
            if (only and name not in only) or (window is not None and not args.knobs):
                continue
            image = assemble(folder, name.replace(" ", "-").replace("/", "-"), hz, timer)
            quiet = assemble(folder, "quiet", 1, None)
            if window is not None:
                with open(HALT_POLL) as file:
                    before = file.read()
                set_window(window)
            try:
                vm = Vm(folder, image, clients, timer)
                cpu, named, removals, lost = bill(args.dwell, vm, args.seconds)
                with_it = measure(vm, args.seconds)
                if window is not None:
                    set_window(0)
                    time.sleep(0.5)
                    without = measure(vm, args.seconds)
                    vm.end()
                elif timer == "KICK":
                    vm.stop_polling()
                    time.sleep(0.5)
                    without = measure(vm, args.seconds)
                    vm.end()
                else:
                    vm.end()
                    vm = Vm(folder, quiet, [])
                    without = measure(vm, args.seconds)
                    vm.end()
            finally:
                if window is not None:
                    set_window(before)
            found = [(rank, saves) for rank, (what, saves) in enumerate(removals, 1) if what.startswith(tuple(beginnings))]
            predicted, measured = sum(saves for _, saves in found), with_it - without
            ranks = ",".join(str(rank) for rank, _ in found) or "-"
            error = (predicted - measured) / measured if measured else 0
            print(f"{name:<12} {cpu:8.2%} {named:7.1%} {ranks:>6} {predicted:10.2%} {measured:9.2%} {error:+7.1%}  {lost}", flush=True)


def set_window(value):
    with open(HALT_POLL, "w") as file:
        file.write(str(value).strip())


main()
