// How long idlers idle. The scale of the histograms has twenty buckets a decade.

const EDGES = [...new Set([0, ...Array.from({ length: 19 * 20 + 1 }, (_, k) => Math.round(10 ** (k / 20)))])];
/** Every bucket from the first to the last of some lists, those that are empty too: their lower ends. */
const lowerEnds = (lists) => {
  const all = lists.flat();
  if (!all.length) return [];
  const [first, last] = [Math.min(...all.map((b) => b.from_ns)), Math.max(...all.map((b) => b.from_ns))];
  const ends = new Set(EDGES.filter((edge) => edge >= first && edge <= last));
  all.forEach((bucket) => ends.add(bucket.from_ns));
  return [...ends].sort((a, b) => a - b);
};

const windowWords = (windows) =>
  windows.max_ns === 0
    ? 'never polls'
    : windows.p5_ns === windows.p95_ns
      ? `window ${span(windows.p50_ns)}`
      : `window ${span(windows.p5_ns)} to ${span(windows.p95_ns)}`;

/** Distributions of idle times as lines of steps, windows drawn in. `lines`: {name, colour, distribution, bold}. */
const idleChart = (lines, windows, label) => {
  const ends = lowerEnds(lines.map((line) => line.distribution.buckets));
  const after = (at) => ends[at + 1] || EDGES.find((edge) => edge > ends[at]) || ends[at] * 1.12;
  const place = (ns) => Math.max(ns, 0.5);
  const stepped = (distribution) => {
    const held = new Map(distribution.buckets.map((bucket) => [bucket.from_ns, bucket.count]));
    let sum = 0;
    return ends.map((from, at) => {
      const here = held.get(from) || 0;
      sum += here;
      return { from, to: after(at), here, share: here / distribution.episodes, upTo: sum / distribution.episodes };
    });
  };
  const data = lines.map((line) => ({ ...line, steps: stepped(line.distribution) }));
  // A window that is longer than any idle time is on the axis too.
  const most = Math.max(place(after(ends.length - 1)), ...windows.map((window) => window.windows.p50_ns * 1.12));
  /** Words at a line near an edge go inwards. */
  const side = (ns) => {
    const [low, high] = [place(ends[0]), most].map(Math.log);
    const part = (Math.log(place(ns)) - low) / (high - low);
    return part < 0.35 ? 'left' : part > 0.65 ? 'right' : 'center';
  };
  const closed = (steps, value) => [
    ...steps.map((step) => [place(step.from), value(step)]),
    [place(steps[steps.length - 1].to), value(steps[steps.length - 1])],
  ];
  return new Chart({
    label,
    height: 400,
    toggles: [
      { name: 'log', words: 'Log share' },
      { name: 'cumulative', words: 'Cumulative', on: true },
    ],
    option: ({ log, cumulative, narrow }) => ({
      // Where there is no room at the lines, the words stand above the chart.
      title: narrow
        ? windows.map((window, at) => ({
            text: `${window.name}: ${windowWords(window.windows)}`,
            left: 4,
            top: 2 + at * 18,
            textStyle: { fontSize: 12, color: colour(window.colour) },
          }))
        : [],
      grid: { left: narrow ? 58 : 72, right: cumulative ? (narrow ? 56 : 72) : 18, top: 46, bottom: 78 },
      xAxis: axis({
        type: 'log',
        name: 'idle time',
        nameLocation: 'middle',
        min: place(ends[0]),
        max: most,
        axisLabel: { formatter: tick },
        minorTick: { show: true, splitNumber: 9, lineStyle: { color: colour('line') } },
      }),
      yAxis: [
        axis({
          type: log ? 'log' : 'value',
          name: 'share of episodes',
          nameLocation: 'middle',
          nameGap: narrow ? 42 : 52,
          axisLabel: { formatter: (value) => percent(value).replace(/\.0+ /, ' ') },
        }),
        axis({
          type: 'value',
          show: cumulative,
          min: 0,
          max: 1,
          name: 'cumulative',
          nameLocation: 'middle',
          nameGap: narrow ? 42 : 52,
          splitLine: { show: false },
          axisLabel: { formatter: (value) => `${Math.round(value * 100)} %` },
        }),
      ],
      dataZoom: zooms({ xAxisIndex: 0 }),
      tooltip: {
        trigger: 'axis',
        axisPointer: { type: 'line', lineStyle: { color: colour('soft') } },
        formatter: (points) => {
          const at = points[0].axisValue;
          const number = Math.max(
            0,
            ends.findLastIndex((edge) => place(edge) <= at * 1.0001),
          );
          const shown = data.filter((line) => points.some((point) => point.seriesName === line.name));
          const step = data[0].steps[number];
          return tip(
            `${step.from ? span(step.from) : '0'} to ${span(step.to)}`,
            (shown.length ? shown : data).map((line) => {
              const { here, share, upTo } = line.steps[number];
              return [
                colour(line.colour),
                `${line.name}: ${percent(share)}, ${count(here)} episodes; ${percent(upTo)} up to here`,
              ];
            }),
          );
        },
      },
      series: [
        ...data.map((line, index) => ({
          name: line.name,
          type: 'line',
          step: 'end',
          symbol: 'none',
          color: colour(line.colour),
          lineStyle: { width: line.bold ? 2 : 1.2 },
          areaStyle: line.bold && !log ? { color: colour(line.colour), opacity: 0.14 } : undefined,
          data: closed(line.steps, (step) => (log && !step.share ? null : step.share)),
          markLine: index
            ? undefined
            : {
                silent: true,
                symbol: ['none', 'none'],
                animation: false,
                data: windows.map((window, at) => ({
                  xAxis: place(Math.max(window.windows.p50_ns, ends[0])),
                  lineStyle: { color: colour(window.colour), width: 2, type: at ? 'dashed' : 'solid' },
                  label: {
                    show: !narrow,
                    color: colour(window.colour),
                    fontWeight: 'bold',
                    distance: [0, 4 + at * 17],
                    formatter: `${window.name}: ${windowWords(window.windows)}`,
                    position: 'end',
                    align: side(window.windows.p50_ns),
                  },
                })),
              },
          markArea: index
            ? undefined
            : {
                silent: true,
                data: windows
                  .filter((window) => window.windows.p95_ns > window.windows.p5_ns)
                  .map((window) => [
                    {
                      xAxis: place(Math.max(window.windows.p5_ns, ends[0])),
                      itemStyle: { color: colour(window.colour), opacity: 0.1 },
                    },
                    { xAxis: place(window.windows.p95_ns) },
                  ]),
              },
        })),
        ...(cumulative
          ? data.map((line) => ({
              name: line.name,
              silentInLegend: true,
              type: 'line',
              yAxisIndex: 1,
              symbol: 'none',
              silent: true,
              color: colour(line.colour),
              lineStyle: { width: 1.3, type: [4, 3] },
              data: line.steps.map((step) => [place(step.to), step.upTo]),
            }))
          : []),
      ],
    }),
    columns: [['from'], ['to'], ...lines.flatMap((line) => [[`${line.name}: episodes`], ['up to here']])],
    rows: () =>
      ends.map((from, at) => [
        span(from),
        span(after(at)),
        ...data.flatMap((line) => [count(line.steps[at].here), percent(line.steps[at].upTo)]),
      ]),
  });
};

const idle = (recording) => {
  const { figures } = recording;
  const lines = figures.idle.map((distribution, at) => ({
    name:
      distribution.idler === null
        ? figures.idle.length > 1
          ? 'all idlers'
          : recording.info.idlers[0].name
        : distribution.idler,
    colour: at ? IDLERS[(at - 1) % IDLERS.length] : 'idle',
    distribution,
    bold: at === 0,
  }));
  const windows = figures.policies.map((policy) => ({
    name: policy.policy.split(',')[0],
    colour: inkOf(policy.policy),
    windows: policy.windows,
  }));
  const chart = idleChart(lines, windows, `Distribution of idle times of ${nameOf(recording)}, on a logarithmic scale`);
  lines.slice(1).forEach((line) => {
    if (lines.length > 4) chart.hidden.add(line.name);
  });
  const left = figures.idlers_left_out
    ? ` ${count(figures.idlers_left_out)} idlers with fewer episodes are included in the sum only.`
    : '';
  return card(
    'Idle times',
    `Twenty buckets a decade; dashed: cumulative. A line marks the median window of a policy and its shade 90 % of the windows: episodes left of it end in the poll, episodes right of it are a failed poll and a halt.${left}`,
    chart.node,
  );
};
