"the newcomer's table: table.py DWELL [rounds [sec]] [loads]"
import sys, re, statistics as st
from loads import *
dwell=sys.argv[1]; rounds=int(sys.argv[2]) if len(sys.argv)>2 else 3; sec=float(sys.argv[3]) if len(sys.argv)>3 else 3
loads=sys.argv[4].split(',') if len(sys.argv)>4 else ['redis','pgbench','pipe','fio','paced']
S=int(sec) if sec==int(sec) else sec
import shutil
setup()
def advice(load,start,cost):
    f=f'{D}/{load}.{"never" if start is NEVER else "default"}.parquet'
    o=sh(f'{dwell} tune {f} --halt-cost {cost}')
    t=o.stdout; a=re.search(r'^Advice:.*?(?=\n\n|\Z)',t,re.S|re.M); a=a[0] if a else (t[-300:]+o.stderr[-500:])
    s={}
    first=a.split(':',1)[1].strip() if a.startswith('Advice') else ''
    if first.startswith('set'):
        for k,v in re.findall(r'(guest_halt_poll_\w+)=(\w+)',first.split('%')[0]): s[k]={'1':'Y','0':'N'}.get(v,v) if 'allow' in k else v
    return dict(start,**s) if s else None, ' '.join(a.split())[:900], t
rows={}
for load in loads:
    print('##',load,flush=True)
    arms={'default':DEFAULT,'never':NEVER}; texts={}
    for sn,s in (('default',DEFAULT),('never',NEVER)):
        put(s); b=Beside(load); time.sleep(.5)
        o=sh(f'{dwell} record guest --duration 4s --force -o {D}/{load}.{sn}.parquet')
        if o.returncode: print(o.stderr)
        b.end()
        for c in ('5us','20us','50us'):
            a,text,full=advice(load,s,c); key=f'{c} from {sn}'
            open(f'{D}/{load}.{sn}.{c}.txt','w').write(full)
            print(key,'|',text,flush=True)
            if a: arms[key]=a
    res={k:[] for k in arms}; order=list(arms)
    # equal settings are measured once
    uniq={}; 
    for k in order: uniq.setdefault(tuple(sorted(arms[k].items())),[]).append(k)
    rate={}
    if load=='redis':
        for t,ks in uniq.items(): put(arms[ks[0]]); time.sleep(.3); rate[t]={'redis':run('redis',.3,{'redis':40000})['ops']}
    for r in range(rounds):
        for t,ks in (list(uniq.items()) if r%2==0 else list(reversed(uniq.items()))):
            put(arms[ks[0]]); time.sleep(.4); x=run(load,S,rate.get(t,{}))
            for k in ks: res[k].append(x)
    put(NEVER)
    print('%-16s %-34s %9s %5s %7s %7s %6s %6s %8s'%('arm','setting','ops/s','sd%','p50','p99','busy','poll','halts/s'))
    for k in order:
        m=lambda f:st.mean(x[f] for x in res[k]); sd=st.stdev(x['ops'] for x in res[k])/m('ops')*100
        v=arms[k]; txt=' '.join(v[q] for q in ('guest_halt_poll_ns','guest_halt_poll_grow_start','guest_halt_poll_grow','guest_halt_poll_shrink','guest_halt_poll_allow_shrink'))
        print('%-16s %-34s %9.0f %5.1f %7.1f %7.1f %6.1f %6.1f %8.0f'%(k,txt,m('ops'),sd,m('p50'),m('p99'),m('busy'),m('poll'),m('halts')),flush=True)
