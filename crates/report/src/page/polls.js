// Where polls end.

/** What a lower end is labelled with: 1, 2 or 5 times a power of ten, where a bucket begins as near as can be to one. */
const round = (ns) => {
  const mantissa = ns / 10 ** Math.floor(Math.log10(ns || 1));
  const nice = [1, 2, 5].find((candidate) => Math.abs(mantissa / candidate - 1) < 0.005);
  return nice ? nice * 10 ** Math.floor(Math.log10(ns || 1)) : null;
};

/** Where polls end: one panel for each of `lanes` {name, colour, ends, polls, polls_succeeded, wasted_ns, polled_ns}. */
const pollsChart = (lanes, label) => {
  const ends = lowerEnds(lanes.map((lane) => lane.ends));
  const lane = lanes.map((one) => ({ ...one, held: new Map(one.ends.map((bucket) => [bucket.from_ns, bucket])) }));
  const panel = 190;
  const heights = lanes.map((one) => (one.polls ? panel : 46));
  const tops = heights.map((_, at) => heights.slice(0, at).reduce((sum, one) => sum + one, 0));
  const drawn = lane.filter((one) => one.polls);
  const topOf = (one) => tops[lane.indexOf(one)];
  return new Chart({
    label,
    height: 84 + heights.reduce((sum, one) => sum + one, 0),
    toggles: [{ name: 'log', words: 'Log counts' }],
    option: ({ log, narrow }) => ({
      title: lane.map((one, at) => ({
        text: one.polls
          ? narrow
            ? `${one.name}: ${percent(one.polls_succeeded / one.polls)} succeed`
            : `${one.name}: ${count(one.polls)} polls, ${percent(one.polls_succeeded / one.polls)} succeed; ${percent(one.polled_ns ? one.wasted_ns / one.polled_ns : 0)} of the time polled is in failed polls`
          : `${one.name}: does not poll`,
        left: narrow ? 4 : 10,
        top: tops[at] + (one.polls ? 4 : 16),
        textStyle: {
          fontSize: 13,
          fontWeight: 600,
          color: colour(one.colour),
          width: narrow ? 320 : 800,
          overflow: 'truncate',
        },
      })),
      grid: drawn.map((one) => ({ left: narrow ? 62 : 70, right: 14, top: 34 + topOf(one), height: panel - 62 })),
      xAxis: drawn.map((_, at) =>
        axis({
          type: 'category',
          gridIndex: at,
          data: ends,
          axisTick: { show: false },
          splitLine: { show: false },
          name: at === drawn.length - 1 ? 'time polled' : '',
          nameLocation: 'middle',
          axisLabel: {
            interval: (_, value) => round(Number(value)) !== null,
            formatter: (value) => tick(round(Number(value)) || 0),
          },
        }),
      ),
      yAxis: drawn.map((_, at) =>
        axis({
          type: log ? 'log' : 'value',
          gridIndex: at,
          min: log ? 1 : 0,
          name: 'polls',
          nameLocation: 'middle',
          nameGap: 44,
          axisLabel: {
            formatter: (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e3 ? `${value / 1e3}k` : String(value)),
          },
        }),
      ),
      dataZoom: zooms({ xAxisIndex: drawn.map((_, at) => at) }),
      axisPointer: { link: [{ xAxisIndex: 'all' }] },
      tooltip: {
        trigger: 'axis',
        axisPointer: { type: 'shadow' },
        formatter: (points) => {
          const from = Number(points[0].axisValue);
          const to = EDGES.find((edge) => edge > from);
          return tip(
            `polled ${span(from)} to ${span(to)}`,
            lane.flatMap((one) => {
              const { succeeded = 0, wasted = 0 } = one.held.get(from) || {};
              return [
                [colour('success'), `${one.name}: ${count(succeeded)} succeeded`],
                [colour('wasted'), `${one.name}: ${count(wasted)} failed`],
              ];
            }),
          );
        },
      },
      series: drawn.flatMap((one, at) =>
        ['succeeded', 'wasted'].map((end) => ({
          name: end === 'wasted' ? 'failed: the window ended, then it halted' : 'successful: the wakeup came',
          type: 'bar',
          stack: log ? undefined : `lane${at}`,
          barCategoryGap: '8%',
          xAxisIndex: at,
          yAxisIndex: at,
          color: colour(end === 'wasted' ? 'wasted' : 'success'),
          data: ends.map((from) => (one.held.get(from) || {})[end] || (log ? null : 0)),
        })),
      ),
    }),
    columns: [['polled from'], ['to'], ...lanes.flatMap((one) => [[`${one.name}: successful`], ['failed']])],
    rows: () =>
      ends.map((from) => [
        span(from),
        span(EDGES.find((edge) => edge > from)),
        ...lane.flatMap((one) => {
          const { succeeded = 0, wasted = 0 } = one.held.get(from) || {};
          return [count(succeeded), count(wasted)];
        }),
      ]),
  });
};

const recordedLane = (recording, name) => {
  const { recorded } = recording.figures;
  return recorded.windows_known ? [{ ...recorded, name, colour: 'ink' }] : [];
};

const polls = (recording) => {
  const lanes = recording.figures.policies.map((policy) => ({
    ...policy,
    name: policy.policy,
    colour: inkOf(policy.policy),
  }));
  const recorded = recordedLane(recording, 'as recorded');
  const all = [...recorded, ...lanes];
  if (!all.some((lane) => lane.polls)) return card('Where polls end', 'No policy that is shown here polls at all.');
  const chart = pollsChart(
    all,
    `Polls by the time that they took, successful and failed: ${all.map((lane) => lane.name).join(', ')}`,
  );
  return card(
    'Where polls end',
    'Poll time against counts, over the whole recording: a successful poll ends at the wakeup, a failed one at the end of the window. A good setting has many of the first and few of the second.',
    chart.node,
  );
};
