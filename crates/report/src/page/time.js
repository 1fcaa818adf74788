// Time.

/** How the clocks of a guest and its host were aligned. */
const aligned = (alignment) => {
  if (!alignment) return '';
  const { shift_least_ns, shift_most_ns, shift_by_time_of_day_ns, within, host_episodes } = alignment;
  const off = Math.abs((shift_least_ns + shift_most_ns) / 2 - shift_by_time_of_day_ns);
  return (
    ` The clock of the guest is shifted by another ${span(off)}: then ${count(within)} of ${count(host_episodes)} episodes of ` +
    `${alignment.host} lie within halts of ${alignment.guest}. That determines it to ${span(shift_most_ns - shift_least_ns)}.`
  );
};

/** Windows above idle times, for each of some recordings, on one axis. */
const timeline = (recordings) => {
  const chosen = recordings.map(() => 0);
  const step = (recording) => recording.figures.timeline;
  const perSecond = (recording, values) => values.map((number) => (number * 1e9) / step(recording).slice_ns);
  const offset = (recording, slice) => recording.axis_start_ns + slice * step(recording).slice_ns;
  const upper = 130,
    lower = 150,
    counts = 100;
  const endsKnown = ({ recorded }) => [...recorded.halts, ...recorded.polls_succeeded].some((n) => n > 0);
  const counted = recordings.map((recording) => step(recording).idlers.some(endsKnown));
  const lanes = counted.map((known) => upper + lower + 78 + (known ? counts + 44 : 0));
  const tops = lanes.map((_, number) => 4 + lanes.slice(0, number).reduce((sum, lane) => sum + lane, 0));
  const lineOf = (recording, values, idler) => idler.slice.map((slice, at) => [offset(recording, slice), values[at]]);
  const chart = new Chart({
    label: `Windows over time above idle times: ${recordings.map(nameOf).join(', ')}`,
    height: 64 + lanes.reduce((sum, lane) => sum + lane, 0),
    toggles: [{ name: 'log', words: 'Log windows' }],
    option: ({ log, narrow }) => {
      const grids = [],
        xs = [],
        ys = [],
        series = [],
        titles = [];
      const left = narrow ? 58 : 72;
      const shown = recordings.map((recording, number) => [recording, step(recording).idlers[chosen[number]].slice]);
      const from = Math.min(...shown.map(([recording, slice]) => offset(recording, slice[0])));
      const to = Math.max(...shown.map(([recording, slice]) => offset(recording, slice[slice.length - 1] + 1)));
      recordings.forEach((recording, number) => {
        const idler = step(recording).idlers[chosen[number]];
        const top = tops[number];
        titles.push(
          above(
            recordings.length > 1
              ? `${layerOf(recording)}: ${nameOf(recording)}, ${idler.idler}`
              : `windows of ${idler.idler}`,
            top,
            narrow,
          ),
          above('idle times: one in ten, half, nine in ten are shorter', top + 30 + upper, narrow),
        );
        const below = top + upper + lower + 78;
        if (counted[number]) titles.push(above('recorded: halts/s, and polls/s that saw the wakeup', below, narrow));
        const rows = [
          [top + 24, upper - 6, 'w'],
          [top + upper + 54, lower - 6, 'i'],
          [below + 24, counts - 6, 'c'],
        ].slice(0, counted[number] ? 3 : 2);
        const base = grids.length;
        rows.forEach(([at, height, what], row) => {
          const index = grids.length;
          const last = number === recordings.length - 1 && row === rows.length - 1;
          grids.push({ left, right: 14, top: at, height });
          xs.push(
            axis({
              type: 'value',
              gridIndex: index,
              min: from,
              max: to,
              splitLine: { show: false },
              name: last ? 'time since the start' : '',
              nameLocation: 'middle',
              axisLabel: { show: what !== 'w', formatter: tick, showMaxLabel: false },
            }),
          );
          ys.push(
            axis({
              type: what === 'i' || log ? 'log' : 'value',
              gridIndex: index,
              splitNumber: 3,
              axisLabel: { formatter: what === 'c' ? count : tick },
            }),
          );
        });
        const [w, i, c] = [base, base + 1, base + 2];
        const on = (index, more) => ({
          type: 'line',
          symbol: 'none',
          xAxisIndex: index,
          yAxisIndex: index,
          step: 'end',
          ...more,
        });
        const some = (values) => values.map((value) => (log && value === 0 ? null : value));
        idler.windows.forEach((window) => {
          const name = `window, ${window.policy.split(',')[0]}`;
          series.push(
            on(w, {
              name,
              color: colourOf(window.policy),
              lineStyle: { width: 2 },
              data: lineOf(recording, some(window.mean_ns), idler),
            }),
          );
          series.push(
            on(w, {
              name,
              silentInLegend: true,
              silent: true,
              color: colourOf(window.policy),
              lineStyle: { width: 1, type: [2, 3], opacity: 0.7 },
              data: lineOf(recording, some(window.max_ns), idler),
            }),
          );
        });
        const { halts, polls_succeeded, window_mean_ns } = idler.recorded;
        if (window_mean_ns.some((ns) => ns !== null)) {
          series.push(
            on(w, {
              name: 'window, recorded',
              color: colour('ink'),
              lineStyle: { width: 1.2 },
              data: lineOf(recording, some(window_mean_ns), idler),
            }),
          );
        }
        if (counted[number]) {
          [
            ['halts', halts, colour('wasted')],
            ['successful polls', polls_succeeded, colour('success')],
          ].forEach(([name, values, color]) =>
            series.push(
              on(c, {
                name,
                color,
                lineStyle: { width: 1.5 },
                data: lineOf(recording, perSecond(recording, values), idler),
              }),
            ),
          );
        }
        [
          ['idle_p90_ns', 1],
          ['idle_p50_ns', 2.2],
          ['idle_p10_ns', 1],
        ].forEach(([what, width]) =>
          series.push(
            on(i, {
              name: 'idle times',
              silentInLegend: what !== 'idle_p50_ns',
              color: colour('idle'),
              lineStyle: { width, opacity: width > 1 ? 1 : 0.55 },
              data: lineOf(
                recording,
                idler[what].map((ns) => Math.max(ns, 0.5)),
                idler,
              ),
            }),
          ),
        );
      });
      const indices = grids.map((_, at) => at);
      return {
        title: titles,
        grid: grids,
        xAxis: xs,
        yAxis: ys,
        series,
        dataZoom: zooms({ xAxisIndex: indices }),
        axisPointer: { link: [{ xAxisIndex: 'all' }] },
        tooltip: {
          trigger: 'axis',
          axisPointer: { type: 'line' },
          formatter: (points) => {
            const now = points[0].axisValue;
            return tip(
              `at ${span(now)}`,
              recordings.flatMap((recording, number) => {
                const idler = step(recording).idlers[chosen[number]];
                const slice = Math.round((now - recording.axis_start_ns) / step(recording).slice_ns);
                let at = idler.slice.findLastIndex((candidate) => candidate <= slice);
                if (at < 0) at = 0;
                return [
                  [null, `${idler.idler}: ${count(idler.episodes[at])} episodes in ${span(step(recording).slice_ns)}`],
                  ...idler.windows.map((window) => [
                    colourOf(window.policy),
                    `${window.policy.split(',')[0]}: window ${span(window.mean_ns[at])} on average, ${span(window.min_ns[at])} to ${span(window.max_ns[at])}`,
                  ]),
                  [
                    colour('idle'),
                    `idle ${span(idler.idle_p10_ns[at])} / ${span(idler.idle_p50_ns[at])} / ${span(idler.idle_p90_ns[at])}`,
                  ],
                  ...(counted[number]
                    ? [
                        [
                          null,
                          `recorded: ${count(idler.recorded.halts[at])} halts, ${count(idler.recorded.polls_succeeded[at])} successful polls`,
                        ],
                      ]
                    : []),
                ];
              }),
            );
          },
        },
      };
    },
    columns: [
      ['idler', true],
      ['from'],
      ['episodes'],
      ['idle p10'],
      ['p50'],
      ['p90'],
      ['policy', true],
      ['window mean'],
      ['min'],
      ['max'],
      ['halts'],
      ['successful polls'],
    ],
    rows: () =>
      recordings.flatMap((recording, number) => {
        const idler = step(recording).idlers[chosen[number]];
        return idler.slice.flatMap((slice, at) =>
          idler.windows.map((window) => [
            idler.idler,
            span(offset(recording, slice)),
            count(idler.episodes[at]),
            span(idler.idle_p10_ns[at]),
            span(idler.idle_p50_ns[at]),
            span(idler.idle_p90_ns[at]),
            window.policy,
            span(window.mean_ns[at]),
            span(window.min_ns[at]),
            span(window.max_ns[at]),
            count(idler.recorded.halts[at]),
            count(idler.recorded.polls_succeeded[at]),
          ]),
        );
      }),
  });
  const pickers = recordings.map((recording, number) =>
    step(recording).idlers.length < 2
      ? null
      : element(
          'select',
          {
            name: `idler-${number}`,
            'aria-label': `Idler of ${nameOf(recording)}`,
            on: {
              change: (event) => {
                chosen[number] = event.target.selectedIndex;
                chart.draw();
              },
            },
          },
          step(recording).idlers.map((idler) => element('option', {}, idler.idler)),
        ),
  );
  const note =
    recordings.length > 1
      ? report.time_axis === 'common'
        ? `All recordings on one axis, by the time of day.${aligned(report.alignment)}`
        : 'Each recording from its own start: their times cannot be aligned.'
      : '';
  return card(
    'The window over time, above the idle times',
    `Solid: the mean of the windows that the replayed rule has in a slice of time; dotted: the longest. Drag the slider, or hold Ctrl and turn the wheel, to zoom. ${note}`,
    element('div', { class: 'controls' }, pickers),
    chart.node,
  );
};

const closeup = (recording) => {
  const close = recording.figures.closeup;
  if (!close || close.start_ns.length < 2) return null;
  const began = span(close.start_ns[0] - recording.figures.timeline.first_ns);
  const present = close.windows[0];
  const at = (n) => close.start_ns[n] - close.start_ns[0];
  const caught = (n) => present && close.idle_ns[n] <= present.window_ns[n];
  const least = Math.max(1, Math.min(...close.idle_ns.filter((ns) => ns > 0)) / 2);
  const points = (wanted) =>
    close.idle_ns.map((ns, n) => [at(n), Math.max(ns, least), n]).filter(([, , n]) => Boolean(caught(n)) === wanted);
  const chart = new Chart({
    label: `${close.idle_ns.length} consecutive episodes of ${close.idler}, each with the windows that the rules had`,
    height: 400,
    option: ({ narrow }) => ({
      grid: { left: narrow ? 58 : 72, right: 14, top: 14, bottom: 78 },
      xAxis: axis({
        type: 'value',
        min: at(0),
        max: at(close.start_ns.length - 1),
        name: `time, from ${began} into the recording on`,
        nameLocation: 'middle',
        splitLine: { show: false },
        axisLabel: { formatter: tick, showMaxLabel: false },
      }),
      yAxis: axis({ type: 'log', min: least, axisLabel: { formatter: tick } }),
      dataZoom: zooms({ xAxisIndex: 0, start: 0, end: narrow ? 12 : 25 }),
      tooltip: {
        trigger: 'item',
        formatter: ({ data }) => {
          const n = data[2];
          return tip(
            `episode ${count(close.first_episode + n)}: idle ${span(close.idle_ns[n])}`,
            close.windows.map((window) => [
              colourOf(window.policy),
              `${window.policy.split(',')[0]}: window ${span(window.window_ns[n])}, ${close.idle_ns[n] <= window.window_ns[n] ? 'polled' : 'halts'}`,
            ]),
          );
        },
      },
      series: [
        {
          name: 'within the window of the present setting',
          type: 'scatter',
          symbolSize: 6,
          color: colour('success'),
          data: points(true),
        },
        {
          name: 'it halts',
          type: 'scatter',
          symbol: 'triangle',
          symbolSize: 7,
          color: colour('wasted'),
          data: points(false),
        },
        ...close.windows.map((window) => ({
          name: `window, ${window.policy.split(',')[0]}`,
          type: 'line',
          // A window that rises for one episode is drawn through its point, which must stay in reach of the pointer.
          silent: true,
          step: 'end',
          symbol: 'none',
          color: colourOf(window.policy),
          lineStyle: { width: 1.6 },
          data: window.window_ns.map((ns, n) => [at(n), Math.max(ns, least)]),
        })),
      ],
    }),
    columns: [['episode'], ['began after'], ['idle'], ...close.windows.map((window) => [`window, ${window.policy}`])],
    rows: () =>
      close.idle_ns.map((ns, n) => [
        count(close.first_episode + n),
        span(at(n)),
        span(ns),
        ...close.windows.map((window) => span(window.window_ns[n])),
      ]),
  });
  return card(
    'Episode by episode',
    `${count(close.idle_ns.length)} consecutive episodes of ${close.idler} from the middle of the recording, none left out, with the windows of the rules. A window of 0 is drawn at the bottom.`,
    chart.node,
  );
};
