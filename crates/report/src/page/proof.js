// Predicted and measured figures, with intervals.

/** Dots with whiskers around a line that means "no difference". `rows`: {subject, group, low, value, high, words}. */
const forest = (rows, { label, zero, name, format, columns, cells }) => {
  const groups = [...new Set(rows.map((row) => row.group))];
  const subjects = [...new Set(rows.map((row) => row.subject))];
  const known = rows
    .flatMap((row) => [row.low, row.value, row.high])
    .filter((value) => value !== null && Number.isFinite(value));
  const [least, most] = [Math.min(zero, ...known), Math.max(zero, ...known)];
  // Ratios of very different sizes are shown on a logarithmic scale.
  const log = zero === 1 && least > 0 && most / least > 20;
  const pad = (most - least || 1) * 0.06;
  const [from, to] = log ? [least / 1.3, most * 1.3] : [least - pad, most + pad];
  return new Chart({
    label,
    height: 84 + subjects.length * Math.max(30, 13 * groups.length),
    option: ({ narrow }) => ({
      grid: { left: narrow ? 132 : 250, right: 18, top: 10, bottom: 72 },
      xAxis: axis({
        type: log ? 'log' : 'value',
        min: from,
        max: to,
        name,
        nameLocation: 'middle',
        axisLabel: { formatter: format, showMinLabel: false, showMaxLabel: false },
      }),
      yAxis: axis({
        type: 'value',
        inverse: true,
        min: -0.5,
        max: subjects.length - 0.5,
        interval: 1,
        splitLine: { show: false },
        axisTick: { show: false },
        axisLabel: {
          hideOverlap: false,
          customValues: subjects.map((_, at) => at),
          width: narrow ? 122 : 238,
          overflow: narrow ? 'break' : 'truncate',
          color: colour('ink'),
          fontSize: narrow ? 10.5 : 12,
          formatter: (value) => subjects[value] || '',
        },
      }),
      dataZoom: zooms({ xAxisIndex: 0 }),
      tooltip: {
        trigger: 'item',
        formatter: ({ data, color, seriesName }) => {
          const row = data[2];
          return row ? tip(`${row.subject}`, [[color, `${seriesName}: ${row.words}`]]) : '';
        },
      },
      series: groups.flatMap((group, number) => {
        const place = (row) =>
          subjects.indexOf(row.subject) +
          (groups.length > 1 ? (number - (groups.length - 1) / 2) * (0.7 / groups.length) : 0);
        const mine = rows.filter((row) => row.group === group && row.value !== null);
        const own = colour(MANY[number % MANY.length]);
        return [
          {
            name: group,
            type: 'scatter',
            symbolSize: 9,
            color: own,
            z: 4,
            data: mine.map((row) => [row.value, place(row), row]),
            markLine: number
              ? undefined
              : {
                  silent: true,
                  symbol: ['none', 'none'],
                  label: { show: false },
                  lineStyle: { color: colour('soft'), type: 'dashed' },
                  data: [{ xAxis: zero }],
                },
          },
          {
            name: group,
            silentInLegend: true,
            silent: true,
            type: 'line',
            symbol: 'none',
            color: own,
            lineStyle: { width: 2 },
            connectNulls: false,
            data: mine.flatMap((row) => [
              [row.low === null ? from : row.low, place(row)],
              [row.high === null ? to : row.high, place(row)],
              [null, null],
            ]),
          },
        ];
      }),
    }),
    columns,
    rows: () => rows.map(cells),
  });
};

const measured = () =>
  report.measured.length
    ? report.measured.map((one) => {
        const signed = (value) => (value === null ? '?' : `${value > 0 ? '+' : ''}${percent(value)}`);
        const rows = one.rows.map((row) => ({
          ...row,
          group: plain(row.figure),
          low: row.error.low,
          value: row.error.value,
          high: row.error.high,
          words: `predicted ${figure(row.figure, row.predicted)}, measured ${figure(row.figure, row.measured)}: ${signed(row.error.value)} [${signed(row.error.low)}, ${signed(row.error.high)}]`,
        }));
        const errors = rows
          .map((row) => Math.abs(row.value))
          .filter(Number.isFinite)
          .sort((a, b) => a - b);
        const median = errors.length ? errors[errors.length >> 1] : null;
        const chart = forest(rows, {
          label: `Error of what was predicted, with 95 % intervals, from ${one.source}`,
          zero: 0,
          name: 'predicted / measured - 1',
          format: (value) => signed(Math.round(value * 1e4) / 1e4).replace(/\.0+ /, ' '),
          columns: [
            ['load and setting', true],
            ['figure', true],
            ['predicted'],
            ['measured'],
            ['error'],
            ['95 % interval'],
          ],
          cells: (row) => [
            row.subject,
            row.group,
            figure(row.figure, row.predicted),
            figure(row.figure, row.measured),
            signed(row.value),
            `[${signed(row.low)}, ${signed(row.high)}]`,
          ],
        });
        return card(
          'Predicted and measured',
          `${one.source}, ${one.file.split('/').pop()}: the error of each prediction with its 95 % interval; an interval that crosses the dashed line cannot be distinguished from noise.${median === null ? '' : ` Median absolute error ${percent(median)}.`}${one.verdict ? ` Verdict: ${one.verdict}.` : ''}`,
          chart.node,
        );
      })
    : [
        card(
          'Predicted and measured',
          'Absent: nothing measured was given. `dwell verify` after a change, or `dwell-lab validate` on a machine with KVM, predict and measure; give what they print with --format json as --measured.',
        ),
      ];

/** What the change did: the figures that are surely lower or higher after it, and those that are not. */
const changed = () => {
  const rows = report.comparison.filter((row) => row.ratio);
  const sure = (row) => (row.ratio.high < 1 ? 'lower' : row.ratio.low > 1 ? 'higher' : 'same');
  const words = (row) => {
    const { value, low, high } = row.ratio;
    if (value > 3) return `${plain(row.figure)} ${fixed(value)} times as high [${fixed(low)}, ${fixed(high)}]`;
    const limits = [low - 1, high - 1].map((limit) => `${limit > 0 ? '+' : ''}${percent(limit)}`);
    return `${plain(row.figure)} ${percent(Math.abs(value - 1))} ${sure(row)} [${limits.join(', ')}]`;
  };
  const differing = rows.filter((row) => sure(row) !== 'same');
  const same = rows.filter((row) => sure(row) === 'same').map((row) => plain(row.figure));
  return element(
    'section',
    { class: 'card', id: 'changed' },
    element('h2', {}, 'What the change did'),
    element(
      'p',
      { class: 'advice' },
      differing.length ? `After the change: ${differing.map(words).join('; ')}.` : 'No difference that can be distinguished from noise.',
    ),
    same.length
      ? element('p', { class: 'note' }, `No difference that can be distinguished from noise in: ${same.join(', ')}.`)
      : null,
    element(
      'p',
      { class: 'note' },
      'After / before, with 95 % intervals. If the load differs, episodes per second and the mean idle time differ as well; compare these first.',
    ),
  );
};

const comparison = () => {
  const [before, after] = ['before', 'after'].map((role) =>
    report.recordings.find((recording) => recording.role === role),
  );
  const rows = report.comparison
    .filter((row) => row.ratio)
    .map((row) => ({
      subject: plain(row.figure),
      group: 'after / before',
      low: row.ratio.low,
      value: row.ratio.value,
      high: row.ratio.high,
      row,
      words: `${figure(row.figure, row.before)} before, ${figure(row.figure, row.after)} after: ${fixed(row.ratio.value)} [${fixed(row.ratio.low)}, ${fixed(row.ratio.high)}]`,
    }));
  const missing = report.comparison.filter((row) => !row.ratio).map((row) => plain(row.figure));
  const ratios = rows.length
    ? forest(rows, {
        label: 'After / before, with 95 % intervals',
        zero: 1,
        name: 'after / before',
        format: (value) => fixed(Math.round(value * 100) / 100),
        columns: [['figure', true], ['before'], ['after'], ['ratio'], ['95 % interval']],
        cells: ({ row }) => [
          plain(row.figure),
          figure(row.figure, row.before),
          figure(row.figure, row.after),
          fixed(row.ratio.value),
          `[${fixed(row.ratio.low)}, ${fixed(row.ratio.high)}]`,
        ],
      })
    : null;
  const line = (recording, name) => ({
    name,
    colour: inkOf(name),
    distribution: recording.figures.idle[0],
    bold: true,
  });
  const window = (recording, name) => ({ name, colour: inkOf(name), windows: recording.figures.policies[0].windows });
  const idleTimes = idleChart(
    [line(before, 'before'), line(after, 'after')],
    [window(before, 'before'), window(after, 'after')],
    'Idle times before and after',
  );
  const lane = (recording, name) =>
    recordedLane(recording, `${name}, as recorded`)[0] || {
      ...recording.figures.policies[0],
      name: `${name}, its setting replayed`,
      colour: inkOf(name),
    };
  const lanes = [lane(before, 'before'), lane(after, 'after')];
  const ended = lanes.some((one) => one.polls)
    ? pollsChart(lanes, 'Polls by the time that they took, before and after')
    : null;
  return [
    card(
      'Before and after',
      `${[before, after].map((one) => one.file.split('/').pop()).join(' and ')}. 95 % bootstrap intervals over stretches of both recordings; a difference whose interval includes 1 cannot be distinguished from noise.${missing.length ? ` Not recorded in both: ${missing.join(', ')}.` : ''}`,
      ratios ? ratios.node : null,
    ),
    card(
      'Idle times before and after',
      'Marked are the windows of the setting that was in force in each.',
      idleTimes.node,
    ),
    ended
      ? card('Where polls end, before and after', 'Poll time against counts, successful and failed.', ended.node)
      : null,
  ];
};

const plan = () => {
  const { file, plan: made } = report.plan;
  // A plan by hand predicts nothing, and one by work has no optimum.
  const { effect } = made;
  const row = (name, one) => [
    name,
    percent(one.cost_ns_per_s / 1e9),
    percent(one.polling_ns_per_s / 1e9),
    rate(one.halts_per_s),
    span(one.mean_added_latency_ns),
  ];
  return card(
    `The plan: ${file.split('/').pop()}`,
    effect ? `${made.advice}. Predicted from the recording ${made.recording.file}:` : `${made.advice}.`,
    effect
      ? table(
          [['', true], ['cost'], ['polling CPU'], ['halts/s'], ['mean latency']],
          [
            row('present', effect.present),
            row('plan', effect.recommended),
            ...(effect.speed ? [] : [row('optimum', effect.optimum)]),
          ],
          true,
        )
      : null,
    details(
      'What it writes',
      table(
        [['knob', true], ['where', true], ['from'], ['to'], ['why', true]],
        (made.write || []).map((one) => [
          one.knob,
          typeof one.place === 'string' ? one.place : JSON.stringify(one.place),
          one.from,
          one.to,
          one.why,
        ]),
      ),
    ),
  );
};
