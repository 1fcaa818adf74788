import subprocess, os, sys, time, json, re, atexit, signal, glob, statistics
from dataclasses import dataclass
MAXIMA=[0,20_000,200_000,1_000_000]; HALT_US=20
D='/var/lib/dwell-experiments'
P='/sys/module/haltpoll/parameters/'
DEFAULT=dict(guest_halt_poll_ns='200000',guest_halt_poll_grow='2',guest_halt_poll_shrink='2',guest_halt_poll_grow_start='50000',guest_halt_poll_allow_shrink='Y')
NEVER=dict(DEFAULT,guest_halt_poll_ns='0')
def put(s):
    for k,v in s.items(): open(P+k,'w').write(str(v))
def sh(c,**k): return subprocess.run(c,shell=True,capture_output=True,text=True,**k)
@dataclass
class Range:
    middle: float
    low: float
    high: float
    def __str__(s): return f'{s.middle:.2f} ({s.low:.2f} to {s.high:.2f})'
    @staticmethod
    def mean(ranges): return Range(*(statistics.geometric_mean(max(r[end],1e-9) for r in ranges) for end in ('middle','low','high')))
@dataclass
class Row:
    "of one maximum: work a second over that under the recorded one, and what a unit of work costs"
    speed: Range
    cost_us: float
def recorded(load,maximum): return sorted(glob.glob(f'{D}/causes.{load}.{maximum}.*.parquet'))
def predict(dwell,path,more=''):
    "what `tune` says of work by maximum, its rows that differ from the present setting in that alone; and the whole of it"
    tuned=sh(f'{dwell} tune {path} --halt-cost {HALT_US}us --despite-self-check --format json{more}')
    work=json.loads(tuned.stdout).get('work') if tuned.returncode==0 else None
    if work is None: raise SystemExit(f'{path}: {tuned.stderr[-400:] or "no causes"}')
    name='guest_halt_poll_ns'; others={**work['settings'][0]['setting'],name:None}
    return {row['setting'][name]: row for row in work['settings'] if {**row['setting'],name: None}==others},work
def mean_row(rows): return Row(Range.mean([r['speed'] for r in rows]),statistics.geometric_mean(max(r['cost_ns']['middle']/1e3,1e-9) for r in rows))
def predicted(dwell,load,maximum,also=None):
    "of the recordings of all rounds together, by maximum; and what was said of the other recording"
    paths=recorded(load,maximum); beside=recorded(load,also) if also is not None else []
    found=[predict(dwell,path,f' --also {beside[k]}' if beside else '') for k,path in enumerate(paths)]
    return {to: mean_row([by[to] for by,_ in found]) for to in MAXIMA if all(to in by for by,_ in found)}, ', '.join(str(work['other']) for _,work in found if 'other' in work)
def setup():
    "starts the servers; at the end, by SIGTERM and SIGHUP too, they are stopped and the parameters are as now"
    os.makedirs(D,exist_ok=True)
    found={k:open(P+k).read().strip() for k in DEFAULT}
    for s in (signal.SIGTERM,signal.SIGHUP): signal.signal(s,lambda *_: sys.exit('ended'))
    atexit.register(put,found); atexit.register(stop)
    here=os.path.dirname(os.path.abspath(__file__))
    for c in ('ping-pong','paced'): subprocess.run(['gcc','-O2','-w','-o',f'{D}/{c}',f'{here}/{c}.c','-lm'],check=True)
    sh(f'redis-server --port 0 --unixsocket {D}/r.sock --save "" --daemonize yes --dir {D} --pidfile {D}/r.pid')
    time.sleep(.5); sh(f'taskset -acp 1 $(cat {D}/r.pid)')
    pg=sh('ls -d /usr/lib/postgresql/*/bin').stdout.split()[0]
    if not os.path.isdir(D+'/pg'):
        os.makedirs(D+'/pg'); sh(f'chown postgres {D}/pg; chmod 755 {D}; su postgres -c "{pg}/initdb -D {D}/pg"')
    sh(f'su postgres -c "taskset 2 {pg}/pg_ctl -D {D}/pg -o \'-p 5599 -k {D}/pg -c listen_addresses=\' -l {D}/pg/log -w start"')
    sh(f'su postgres -c "pgbench -h {D}/pg -p 5599 -i -q postgres"')
    if not os.path.exists(D+'/f'): sh(f'dd if=/dev/urandom of={D}/f bs=1M count=256')
def stop():
    pg=sh('ls -d /usr/lib/postgresql/*/bin').stdout.split()[0]
    sh(f'su postgres -c "{pg}/pg_ctl -D {D}/pg -m fast stop"'); sh(f'kill $(cat {D}/r.pid)')
def parse(load,out):
    if load=='pgbench':
        m=re.search(r'tps = ([0-9.]+)',out); l=re.search(r'latency average = ([0-9.]+)',out); return float(m[1]),float(l[1])*1e3,0
    if load in('fio','fio4'):
        j=json.loads(out[out.index('{'):]); r=j['jobs'][0]['read']; p=r['clat_ns']['percentile']; return r['iops'],p['50.000000']/1e3,p['99.000000']/1e3
    if load in('pipe','pipe1','pipe5','pipe20','pause','http'): return float(out),0,0
    if load in('paced',): a=out.split(); return tuple(map(float,a))
    if load in('redis','redis8'):
        m=re.search(r'"GET","([0-9.]+)","([0-9.]+)","([0-9.]+)","([0-9.]+)","([0-9.]+)","([0-9.]+)"',out)
        return float(m[1]),float(m[4])*1e3,float(m[6])*1e3
def cmd(load,sec,rate={}):
    here=os.path.dirname(os.path.abspath(__file__))
    return {'redis8':f'taskset 1 redis-benchmark -s {D}/r.sock -c 8 -n {int(rate.get("redis8",60000)*sec)} -t get --csv',
     'pipe1':f'{D}/ping-pong {sec} 1000 0 1','pipe5':f'{D}/ping-pong {sec} 5000 0 1','pipe20':f'{D}/ping-pong {sec} 20000 0 1',
     'pause':f'{D}/ping-pong {sec} 5000 0 1 200000','http':f'python3 {here}/http-load.py {sec}',
     'fio4':f'taskset 1 fio --name=x --filename={D}/f --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=4 --runtime={sec} --time_based --output-format=json',
     'redis':f'taskset 1 redis-benchmark -s {D}/r.sock -c 1 -n {int(rate.get("redis",40000)*sec)} -t get --csv',
     'pgbench':f'su postgres -c "taskset 1 pgbench -h {D}/pg -p 5599 -S -M prepared -c 1 -T {sec} postgres"',
     'pipe':f'{D}/ping-pong {sec} 0 0 1','paced':f'{D}/paced {sec} 5000 {D}/r.sock',
     'fio':f'taskset 1 fio --name=x --filename={D}/f --rw=randread --bs=4k --direct=1 --ioengine=psync --runtime={sec} --time_based --output-format=json'}[load]
def stat():
    b=0
    for l in open('/proc/stat'):
        if re.match(r'cpu\d',l): f=list(map(int,l.split()[1:])); b+=f[0]+f[1]+f[2]+f[5]+f[6]
    p=h=u0=0
    for c in (0,1):
        d=f'/sys/devices/system/cpu/cpu{c}/cpuidle/'
        p+=int(open(d+'state0/time').read()); h+=int(open(d+'state1/usage').read()); u0+=int(open(d+'state0/usage').read())
    return time.time(),b/100,p/1e6,h,u0
def run(load,sec,rate={}):
    a=stat(); r=sh(cmd(load,sec,rate)); b=stat(); dt=b[0]-a[0]
    w=parse(load,r.stdout)
    return dict(ops=w[0],p50=w[1],p99=w[2],busy=(b[1]-a[1])/dt*100,poll=(b[2]-a[2])/dt*100,halts=(b[3]-a[3])/dt,polls=(b[4]-a[4])/dt)
class Beside:
    "a load that runs while something else is done"
    def __init__(s,load,sec=600): s.p=subprocess.Popen(cmd(load,sec,{'redis':100000,'redis8':100000}),shell=True,stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL,start_new_session=True); time.sleep(.7)
    def end(s):
        def tree(pid): return [pid]+[p for child in open(f'/proc/{pid}/task/{pid}/children').read().split() for p in tree(int(child))]
        for pid in tree(s.p.pid): os.kill(pid,signal.SIGKILL)
        s.p.wait(); time.sleep(.2)
