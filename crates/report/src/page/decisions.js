// Decisions of a controller over time.

/** Parameters that are times; the others are factors. */
const isTime = (name) => /(_ns|-ns|grow_start)$/.test(name);
const valueText = (name, value) => (isTime(name) ? span(value) : String(value));

/** Costs and the setting in force over time, above a table of the changes. */
const decided = (file, run) => {
  const { name, mode, changes, costs, present, originals } = run;
  const names = [...new Set([present, ...changes.map((change) => change.to)].flatMap((setting) => Object.keys(setting)))];
  const changing = names.filter((one) => isTime(one) && changes.some((change) => change.to[one] !== change.from[one]));
  // Where nothing changes, the longest window is shown.
  const drawn = changing.length ? changing : names.filter(isTime).slice(0, 1);
  const end = Math.max(1, ...costs.map((slice) => slice.to_ns), ...changes.map((change) => change.at_ns));
  const settingAt = (now) => {
    const last = changes.findLast((change) => change.at_ns <= now);
    return last ? last.to : present;
  };
  /** Polling CPU plus halts at their cost, as a share of a CPU; where nothing was seen the line has a gap. */
  const costLine = (what) =>
    costs.flatMap((slice, at) => {
      const value = slice[what] / (slice.to_ns - slice.from_ns);
      const next = costs[at + 1];
      const points = [[slice.from_ns, value]];
      if (!next || next.from_ns > slice.to_ns) points.push([slice.to_ns, value]);
      if (next && next.from_ns > slice.to_ns) points.push([slice.to_ns, null]);
      return points;
    });
  const lines = [
    [mode ? 'measured' : 'controlled', 'measured_ns', 'recommended'],
    ['originals', 'originals_ns', 'present'],
    ['optimum', 'optimum_ns', 'bound'],
  ];
  const COLOURS = ['success', 'wasted', 'polling', 'other'];
  const upper = 190,
    lower = 150;
  const advised = mode === 'advise';
  const inForce = advised ? 'setting that was advised' : 'setting in force';
  const chart = new Chart({
    label: `Cost over time and ${inForce}: ${name}, ${counted(changes.length, 'change')}`,
    height: upper + lower + 134,
    toggles: [{ name: 'log', words: 'Log cost' }],
    option: ({ log, narrow }) => {
      const left = narrow ? 62 : 78;
      const time = (gridIndex, more) =>
        axis({
          type: 'value',
          gridIndex,
          min: 0,
          max: end,
          splitLine: { show: false },
          ...more,
          axisLabel: { show: gridIndex === 1, formatter: tick, showMaxLabel: false },
        });
      const on = (index, more) => ({ type: 'line', symbol: 'none', step: 'end', xAxisIndex: index, yAxisIndex: index, ...more });
      const some = (points) => (log ? points.map(([at, value]) => [at, value > 0 ? value : null]) : points);
      return {
        title: [above('cost: polling CPU plus halts, as a share of a CPU', 2, narrow), above(inForce, upper + 38, narrow)],
        grid: [
          { left, right: 14, top: 28, height: upper },
          { left, right: 14, top: upper + 64, height: lower },
        ],
        xAxis: [time(0, {}), time(1, { name: 'time since control began', nameLocation: 'middle' })],
        yAxis: [
          axis({ type: log ? 'log' : 'value', gridIndex: 0, splitNumber: 4, axisLabel: { formatter: (value) => percent(value).replace(/\.0+ /, ' ') } }),
          axis({ type: 'value', gridIndex: 1, splitNumber: 3, axisLabel: { formatter: tick } }),
        ],
        dataZoom: zooms({ xAxisIndex: [0, 1] }),
        axisPointer: { link: [{ xAxisIndex: 'all' }] },
        tooltip: {
          trigger: 'axis',
          axisPointer: { type: 'line' },
          formatter: ([{ axisValue: now }]) => {
            const slice = costs.findLast((one) => one.from_ns <= now && one.to_ns >= now);
            return tip(`at ${span(now)}`, [
              ...(slice
                ? lines.map(([words, what, key]) => [
                    colour(key),
                    `${words}: ${percent(slice[what] / (slice.to_ns - slice.from_ns))} of a CPU`,
                  ])
                : [[null, 'nothing was seen']]),
              ...Object.entries(settingAt(now)).map(([one, value]) => [
                drawn.includes(one) ? colour(COLOURS[drawn.indexOf(one) % COLOURS.length]) : null,
                `${one} ${valueText(one, value)}`,
              ]),
            ]);
          },
        },
        series: [
          ...lines.map(([words, what, key]) =>
            on(0, { name: words, color: colour(key), lineStyle: { width: 2 }, data: some(costLine(what)) }),
          ),
          ...drawn.map((one, at) =>
            on(1, {
              name: one,
              color: colour(COLOURS[at % COLOURS.length]),
              lineStyle: { width: 2 },
              symbol: 'circle',
              showSymbol: changes.length < 200,
              symbolSize: 5,
              data: [
                [0, present[one] ?? null],
                ...changes.map((change) => [change.at_ns, change.to[one] ?? null]),
                [end, settingAt(end)[one] ?? null],
              ],
            }),
          ),
        ],
      };
    },
    columns: [['from'], ['to'], ...lines.map(([words]) => [`cost, ${words}`]), ['setting', true]],
    rows: () =>
      costs.map((slice) => [
        span(slice.from_ns),
        span(slice.to_ns),
        ...lines.map(([, what]) => percent(slice[what] / (slice.to_ns - slice.from_ns))),
        settingText(settingAt(slice.from_ns)),
      ]),
  });
  const sum = (what) => costs.reduce((all, slice) => all + slice[what], 0);
  const [measuredNs, originalsNs, optimumNs] = lines.map(([, what]) => sum(what));
  const began = run.began_unix_ms ? `Began ${new Date(run.began_unix_ms).toISOString().replace(/\.\d+Z$/, 'Z')}. ` : '';
  const price = run.halt_cost_ns ? `Halt cost ${span(run.halt_cost_ns)}. ` : '';
  const how = {
    active: 'Measured is what was counted; originals and optimum are predicted of the same episodes. ',
    advise: 'Advice only: nothing was written, and measured is the setting that was there. ',
  };
  const over = originalsNs > 0 ? `Cost in all: ${percent(measuredNs / originalsNs)} of the originals', optimum ${percent(optimumNs / originalsNs)}. ` : '';
  return card(
    `Control over time: ${name}`,
    `${file.split('/').pop()}. ${began}${price}${how[mode] || 'Replayed over a recording. '}${over}Originals: ${settingText(originals)}.`,
    costs.length || changes.length ? chart.node : null,
    element('h3', {}, 'Changes'),
    run.changes_left_out ? element('p', { class: 'note' }, `${counted(run.changes_left_out, 'earlier change')} left out.`) : null,
    changes.length
      ? table(
          [['after'], ['cause', true], ['change and reason', true]],
          changes.map((change) => [span(change.at_ns), plain(change.cause), change.reason]),
        )
      : element('p', { class: 'note' }, 'None.'),
  );
};

const decisions = () =>
  (report.decisions || []).flatMap(({ file, runs, runs_left_out: leftOut }) => [
    ...runs.map((run) => decided(file, run)),
    leftOut ? card('Control over time', `${file.split('/').pop()}: ${counted(leftOut, 'earlier run')} of the controller left out.`) : null,
  ]);
