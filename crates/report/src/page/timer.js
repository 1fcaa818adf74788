// Timers of vCPUs: exits before and after, lateness, and what other CPUs would take.

const known = (value, words) => (value === null || value === undefined ? 'not known' : words(value));
const setupName = (row) => row.differs.join(' + ') || 'in force, replayed';

/** Exits by reason, a bar for each set-up. */
const timerExits = (timers) => {
  const perSecond = (number) => (number * 1e9) / timers.span_ns;
  const setups = [['as recorded', timers.recorded], ...timers.rows.map((row) => [setupName(row), row.cost])].slice(0, 8);
  const reasons = [...new Set(setups.flatMap(([, cost]) => Object.keys(cost.reasons)))];
  const rows = setups.flatMap(([name, cost]) =>
    reasons
      .filter((reason) => cost.reasons[reason])
      .map((reason) => {
        const { exits, time_ns } = cost.reasons[reason];
        return [name, reason, rate(perSecond(exits)), known(time_ns, (ns) => percent(ns / timers.span_ns))];
      }),
  );
  return card(
    'Exits by reason',
    'As recorded, and as predicted for other set-ups of the host. Time is that of a CPU in the host.',
    new Chart({
      label: `Exits per second by reason, a bar for each of ${setups.length} set-ups`,
      height: 340,
      option: ({ narrow }) => ({
        grid: { left: narrow ? 58 : 70, right: 18, top: 18, bottom: 58 },
        xAxis: axis({ type: 'category', data: reasons, axisLabel: { interval: 0, rotate: narrow ? 30 : 0 } }),
        yAxis: axis({ type: 'value', name: 'exits per second', nameLocation: 'middle', nameGap: 52, axisLabel: { formatter: count } }),
        tooltip: {
          trigger: 'axis',
          axisPointer: { type: 'shadow' },
          formatter: (points) =>
            tip(
              points[0].name,
              points.map((point) => [point.color, `${point.seriesName}: ${rate(point.value)}`]),
            ),
        },
        series: setups.map(([name, cost], at) => ({
          name,
          type: 'bar',
          color: colour(MANY[at % MANY.length]),
          data: reasons.map((reason) => perSecond(cost.reasons[reason] ? cost.reasons[reason].exits : 0)),
        })),
      }),
      columns: [['set-up', true], ['reason', true], ['exits per second', false], ['host time', false]],
      rows: () => rows,
    }).node,
  );
};

/** A histogram of delays, if there are any. */
const timerDelays = (title, note, buckets) =>
  buckets.length
    ? card(
        title,
        note,
        new Chart({
          label: `${title}: a bar for each of ${buckets.length} lengths of time`,
          height: 260,
          option: ({ narrow }) => ({
            grid: { left: narrow ? 58 : 70, right: 18, top: 18, bottom: 58 },
            xAxis: axis({ type: 'category', data: buckets.map((bucket) => span(bucket.from_ns)) }),
            yAxis: axis({ type: 'value', name: 'timers', nameLocation: 'middle', nameGap: 52, axisLabel: { formatter: count } }),
            tooltip: {
              trigger: 'axis',
              axisPointer: { type: 'shadow' },
              formatter: ([point]) => tip(`from ${point.name}`, [[point.color, counted(point.value, 'timer')]]),
            },
            series: [{ name: 'timers', type: 'bar', color: colour('recommended'), data: buckets.map((bucket) => bucket.count) }],
          }),
          columns: [['from', false], ['to', false], ['timers', false]],
          rows: () => buckets.map((bucket) => [span(bucket.from_ns), span(bucket.to_ns), count(bucket.count)]),
        }).node,
      )
    : null;

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

const showTimers = (timers) => {
  main.replaceChildren(
    ...[
      element('h1', {}, timers.file),
      element(
        'p',
        { class: 'sub' },
        [
          `${counted(timers.timers, 'timer')} of ${counted(timers.vcpus, 'vCPU')} over ${span(timers.span_ns)}`,
          `rule of Linux ${timers.in_force.kernel}`,
          ...timers.facts.map((fact) => `${fact.name} ${fact.value}`),
        ].join(' · '),
      ),
      card('Advice', null, element('p', {}, timers.words)),
      timerExits(timers),
      timerDelays('How late hrtimers fired', 'From the time that an hrtimer was set to until it fired.', timers.delays.fired),
      timerDelays('From firing to the guest', 'From when a timer fired until its vCPU entered the guest.', timers.delays.entered),
      timerCpus(timers),
      timerAdvances(timers.advances),
      timers.notes.length
        ? card('Notes', null, element('ul', {}, timers.notes.map((note) => element('li', {}, note))))
        : null,
      element('footer', {}, `Made with dwell ${report.dwell}: ${report.command}. Charts: Apache ECharts, Apache-2.0. In a focused chart the arrow keys walk along the values, + and - zoom, 0 shows all.`),
    ].filter(Boolean),
  );
  enqueue([...charts]);
};
