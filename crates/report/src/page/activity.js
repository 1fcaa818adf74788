// What it did to the machine, as far as anybody counted.

const layerReplayed = (recording) => (recording.tune ? recording.tune.layer : layerOf(recording));
const HALT = {
  guest: 'HLT exits',
  host: 'context switches of vCPU threads',
  iothread: 'sleeps of the thread (context switches)',
};

const activity = (recording) => {
  const { recorded, policies } = recording.figures;
  const per = (value) => (seconds(recording) > 0 ? rate(value / seconds(recording)) : '-');
  const cpu = (ns) => (seconds(recording) > 0 ? percent(ns / 1e9 / seconds(recording)) : '-');
  const rows = policies.map((policy) => [
    policy.policy,
    per(policy.halts),
    per(policy.polls),
    policy.polls ? percent(policy.polls_succeeded / policy.polls) : '-',
    cpu(policy.polled_ns),
    cpu(policy.wasted_ns),
  ]);
  rows.unshift([
    'as recorded',
    recorded.known ? per(recorded.halts) : 'not recorded',
    recorded.windows_known ? per(recorded.polls) : 'not recorded',
    recorded.polls ? percent(recorded.polls_succeeded / recorded.polls) : '-',
    recorded.windows_known ? cpu(recorded.polled_ns) : 'not recorded',
    recorded.windows_known ? cpu(recorded.wasted_ns) : 'not recorded',
  ]);
  const wakes = Object.entries(recorded.wakes)
    .map(([kind, n]) => `${kind} ${count(n)}`)
    .join(', ');
  const energy = recording.info.metadata['dwell.energy_uj'];
  return card(
    'Halts, CPU time and energy',
    `By the rule of the ${layerReplayed(recording)} layer, whose halts are ${HALT[layerReplayed(recording)] || 'halts'}. Rates per second, over the whole recording, all idlers together.`,
    table(
      [
        ['', true],
        [`${HALT[layerReplayed(recording)] || 'halts'}/s`],
        ['polls/s'],
        ['success'],
        ['polling CPU'],
        ['of that in failed polls'],
      ],
      rows,
      true,
    ),
    element('p', { class: 'note' }, wakes ? `Wake causes: ${wakes}.` : 'Wake events: their kind was not recorded.'),
    element(
      'p',
      { class: 'note' },
      energy
        ? `Energy while recording: ${Object.entries(energy)
            .map(
              ([zone, uj]) =>
                `${zone} ${fixed(uj / 1e6)} J${seconds(recording) > 0 ? ` (${fixed(uj / 1e6 / seconds(recording))} W)` : ''}`,
            )
            .join(', ')}.`
        : 'Energy: not recorded. RAPL (/sys/class/powercap) was not read while recording.',
    ),
  );
};

const exits = () =>
  report.exits.length
    ? report.exits.map((one) => {
        const shown = one.rows.slice(0, 12);
        const chart = new Chart({
          label: `Time outside of the guest by reason: ${shown.map((row) => row.reason).join(', ')}`,
          height: 70 + shown.length * 30,
          option: ({ narrow }) => ({
            grid: { left: narrow ? 130 : 190, right: 20, top: 8, bottom: 46 },
            xAxis: axis({
              type: 'value',
              name: 'share of exits and of time',
              nameLocation: 'middle',
              axisLabel: { formatter: (value) => percent(value).replace(/\.0+ /, ' ') },
              max: 1,
            }),
            yAxis: axis({
              type: 'category',
              inverse: true,
              data: shown.map((row) => row.reason),
              splitLine: { show: false },
              axisLabel: {
                hideOverlap: false,
                width: narrow ? 118 : 178,
                overflow: 'truncate',
                color: colour('ink'),
              },
            }),
            tooltip: {
              trigger: 'axis',
              axisPointer: { type: 'shadow' },
              formatter: ([{ dataIndex }]) => {
                const row = shown[dataIndex];
                return tip(row.reason, [
                  [null, `${count(row.samples)} exits, ${percent(row.samples / one.total_samples)}`],
                  [null, `${span(row.total_ns)}, ${percent(row.total_ns / one.total_ns)} of the time`],
                  [null, `${span(row.total_ns / row.samples)} on average, ${span(row.min_ns)} to ${span(row.max_ns)}`],
                ]);
              },
            },
            series: [
              {
                name: 'share of exits',
                type: 'bar',
                color: colour('recommended'),
                data: shown.map((row) => row.samples / one.total_samples),
              },
              {
                name: 'share of time',
                type: 'bar',
                color: colour('other'),
                data: shown.map((row) => row.total_ns / one.total_ns),
              },
            ],
          }),
          columns: [['reason', true], ['samples'], ['samples %'], ['time'], ['time %'], ['min'], ['max'], ['mean']],
          rows: () =>
            one.rows.map((row) => [
              row.reason,
              count(row.samples),
              percent(row.samples / one.total_samples),
              span(row.total_ns),
              percent(row.total_ns / one.total_ns),
              span(row.min_ns),
              span(row.max_ns),
              span(row.total_ns / row.samples),
            ]),
        });
        return card(
          `VM exits: ${one.file.split('/').pop()}`,
          `${count(one.total_samples)} exits, ${span(one.total_ns)} outside of the guest; HLT includes the whole sleep.`,
          chart.node,
        );
      })
    : [
        card(
          'VM exits',
          'Absent: no exits were given. Record them with `perf record -a -e kvm:kvm_exit,kvm:kvm_entry`, and give the text of `perf script` as --exits.',
        ),
      ];

const why = () =>
  report.why.map((one) =>
    card(
      `CPU time by cause: ${one.file.split('/').pop()}`,
      `Watched for ${span(one.span_ns)} by dwell why, apart from the recordings of this page.`,
      ...one.words.map((words) => element('pre', { tabindex: 0 }, words)),
    ),
  );
