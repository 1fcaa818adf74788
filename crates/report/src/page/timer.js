// Timers of vCPUs: exits before and after, lateness, and what other CPUs would take.

const known = (value, words) => (value === null || value === undefined ? 'not known' : words(value));
const setupName = (row) => row.differs.join(' + ') || 'in force, replayed';

/** Exits by reason, a bar for each of `[name, cost, timers, ink]`. */
const timerExitBars = (note, what, all) => {
  const perSecond = (number, timers) => (number * 1e9) / timers.span_ns;
  const reasons = [...new Set(all.flatMap(([, cost]) => Object.keys(cost.reasons)))];
  const rows = all.flatMap(([name, cost, timers]) =>
    reasons
      .filter((reason) => cost.reasons[reason])
      .map((reason) => {
        const { exits, time_ns } = cost.reasons[reason];
        return [name, reason, rate(perSecond(exits, timers)), known(time_ns, (ns) => percent(ns / timers.span_ns))];
      }),
  );
  return card(
    'Exits by reason',
    note,
    bars({
      label: `Exits per second by reason, a bar for each of ${all.length} ${what}s`,
      height: 340,
      unit: 'exits per second',
      categories: reasons,
      axisLabel: (narrow) => ({ interval: 0, rotate: narrow ? 30 : 0 }),
      series: () => all.map(([name, cost, timers, ink]) => ({
        name,
        color: colour(ink),
        data: reasons.map((reason) => perSecond(cost.reasons[reason] ? cost.reasons[reason].exits : 0, timers)),
      })),
      columns: [[what, true], ['reason', true], ['exits per second', false], ['host time', false]],
      rows: () => rows,
    }),
  );
};

/** Exits by reason, a bar for each set-up. */
const timerExits = (timers) =>
  timerExitBars(
    'As recorded, and as predicted for other set-ups of the host. Time is that of a CPU in the host.',
    'set-up',
    [['as recorded', timers.recorded], ...timers.rows.map((row) => [setupName(row), row.cost])]
      .slice(0, 8)
      .map(([name, cost], at) => [name, cost, timers, MANY[at % MANY.length]]),
  );

/** Histograms of delays, if there are any: of `[name, buckets, ink]`, by share of the timers where there are several. */
const timerDelays = (title, note, all) => {
  const starts = [...new Map(all.flatMap(([, buckets]) => buckets.map((one) => [one.from_ns, one.to_ns]))).entries()];
  starts.sort(([one], [other]) => one - other);
  // Lengths that no timer had are on the axis too: each bucket is twice as long as the one before.
  for (let at = 1; at < starts.length; at += 1) {
    const from = starts[at - 1][1];
    if (from < starts[at][0]) starts.splice(at, 0, [from, 2 * from]);
  }
  const many = all.length > 1;
  const values = all.map(([, buckets]) => {
    const sum = many ? buckets.reduce((so_far, bucket) => so_far + bucket.count, 0) : 1;
    return starts.map(([from]) => (buckets.find((bucket) => bucket.from_ns === from)?.count ?? 0) / (sum || 1));
  });
  const shown = (value) => (many ? percent(value) : counted(value, 'timer'));
  return starts.length
    ? card(
        title,
        many ? `${note} By share of the timers of which it is known.` : note,
        bars({
          label: `${title}: ${many ? 'bars' : 'a bar'} for each of ${starts.length} lengths of time`,
          height: 260,
          unit: many ? 'share of timers' : 'timers',
          tick: many ? percent : count,
          words: shown,
          categories: starts.map(([from]) => span(from)),
          across: 'time, from',
          head: (name) => `from ${name}`,
          series: () => all.map(([name, , ink], at) => ({ name, color: colour(ink), data: values[at] })),
          columns: [['from', false], ['to', false], ...all.map(([name]) => [name, false])],
          rows: () =>
            starts.map(([from, to], row) => [
              span(from),
              span(to),
              ...values.map((of) => (many ? percent(of[row]) : count(of[row]))),
            ]),
        }),
      )
    : null;
};

/** How late timers fired, and how long they took to the guest. */
const timerDelayCards = (all) => [
  timerDelays(
    'How late hrtimers fired',
    'From the time that an hrtimer was set to until it fired.',
    all.map(([name, timers, ink]) => [name, timers.delays.fired, ink]),
  ),
  timerDelays(
    'From firing to the guest',
    'From when a timer fired until its vCPU entered the guest.',
    all.map(([name, timers, ink]) => [name, timers.delays.entered, ink]),
  ),
];

/** Timer interrupts that each CPU took. */
const timerCpus = (timers) => {
  const cpus = Object.entries(timers.fired_per_s);
  return card(
    'Load of CPUs by timers',
    'hrtimers of vCPUs that fired on each CPU, as recorded; and for each set-up, those that other CPUs would take for one vCPU.',
    cpus.length ? table([['CPU', true], ['timers per second', false]], cpus.map(([cpu, perSecond]) => [cpu, rate(perSecond)]), true) : null,
    table(
      [['set-up', true], ['on other CPUs, per vCPU and second', false], ['vCPUs that one CPU can serve', false]],
      timers.rows.map((row) => [
        setupName(row),
        rate(row.interrupts_per_vcpu_per_s),
        row.vcpus_per_cpu === null ? '-' : count(Math.floor(row.vcpus_per_cpu)),
      ]),
      true,
    ),
  );
};

const timerAdvances = (advances) =>
  advances
    ? card(
        'Advance',
        null,
        table(
          [['advance', true], ['late, mean', false], ['late, p99', false], ['spin, mean', false]],
          advances.map((one) => [one.advance, span(one.mean_ns), span(one.p99_ns), span(one.mean_spin_ns)]),
          true,
        ),
      )
    : null;

/** What a recording is of, in one line. */
const timerFacts = (timers) =>
  [
    `${counted(timers.timers, 'timer')} of ${counted(timers.vcpus, 'vCPU')} over ${span(timers.span_ns)}`,
    `rule of Linux ${timers.in_force.kernel}`,
    ...timers.facts.map((fact) => `${fact.name} ${fact.value}`),
  ].join(' · ');

/** hrtimers that fired on each CPU, before and after. */
const timerCpusChange = (before, after) => {
  const cpus = [...new Set([before, after].flatMap((timers) => Object.keys(timers.fired_per_s)))];
  cpus.sort((one, other) => one - other);
  const of = (timers) => cpus.map((cpu) => timers.fired_per_s[cpu] ?? 0);
  const [was, is] = [of(before), of(after)];
  return cpus.length
    ? card(
        'Load of CPUs by timers',
        'hrtimers of vCPUs that fired on each CPU, as recorded.',
        bars({
          label: `hrtimers per second before and after, bars for each of ${counted(cpus.length, 'CPU')}`,
          height: 260,
          unit: 'timers per second',
          categories: cpus.map((cpu) => `CPU ${cpu}`),
          series: () => [
            { name: 'before', color: colourOf('before'), data: was },
            { name: 'after', color: colourOf('after'), data: is },
          ],
          columns: [['CPU', true], ['before, timers per second', false], ['after, timers per second', false]],
          rows: () => cpus.map((cpu, at) => [cpu, rate(was[at]), rate(is[at])]),
        }),
      )
    : null;
};

/** Recordings from before a change and after it. */
const showTimersChange = (before, after) => {
  const both = [['before', before], ['after', after]].map(([name, timers]) => [name, timers, inkOf(name)]);
  main.replaceChildren(
    ...[
      element('h1', {}, `${before.file} and ${after.file}`),
      ...both.map(([name, timers]) => element('p', { class: 'sub' }, `${name}: ${timerFacts(timers)}`)),
      timerExitBars(
        'As recorded before and after. Time is that of a CPU in the host.',
        'recording',
        both.map(([name, timers, ink]) => [name, timers.recorded, timers, ink]),
      ),
      ...timerDelayCards(both),
      timerCpusChange(before, after),
      card('Advice', 'On the recording from after the change.', element('p', {}, after.words)),
      footer(),
    ].filter(Boolean),
  );
  enqueue([...charts]);
};

const showTimers = (timers) => {
  main.replaceChildren(
    ...[
      element('h1', {}, timers.file),
      element('p', { class: 'sub' }, timerFacts(timers)),
      card('Advice', null, element('p', {}, timers.words)),
      timerExits(timers),
      ...timerDelayCards([['timers', timers, 'recommended']]),
      timerCpus(timers),
      timerAdvances(timers.advances),
      notesCard(timers.notes),
      footer(),
    ].filter(Boolean),
  );
  enqueue([...charts]);
};
