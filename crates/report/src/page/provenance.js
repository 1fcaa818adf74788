// Where it all comes from.

const contents = (recording) => {
  const { all, idlers, span_ns } = recording.info;
  const number = idlers.length + recording.summaries_left_out;
  return `${counted(all.episodes, 'episode')} of ${counted(number, 'idler')} over ${span(span_ns)}`;
};

const provenance = (recording) => {
  const { metadata } = recording.info;
  const lost = metadata.lost;
  const settings = metadata.settings.map(
    (change) =>
      `${change.layer}${change.at_ns === null ? '' : `, from ${span(change.at_ns)} on`}: ${settingText(change.values)}`,
  );
  const rows = [
    ['file', recording.file],
    ['holds', contents(recording)],
    ['layer', metadata.layer],
    ['kernel', metadata.kernel],
    ['QEMU', metadata.qemu],
    ['CPU', metadata.cpu_model],
    ['recorded with', [metadata.source.tool, (metadata.source.events || []).join(', ')].filter(Boolean).join(': ')],
    ['command', metadata.source.command],
    ['written by', metadata.tool_version],
    ['clock', metadata.clock],
    [
      'idle times end at',
      { event: 'the wakeup event', wake: 'the wakeup (its latency included)', unknown: 'not known' }[
        metadata.idle_includes
      ],
    ],
    ['resolution', metadata.resolution_ns ? span(metadata.resolution_ns) : null],
    ['settings in force', settings.length ? settings.join('; ') : 'not known; the defaults are used'],
    [
      'rule replayed',
      recording.tune
        ? `${recording.tune.layer} of ${recording.tune.version}; halt cost ${haltCostWords(recording.tune)}, added wakeup latency of a halt ${span(recording.tune.wakeup_latency_ns)}`
        : null,
    ],
    [
      'losses',
      `${lost.events === null || lost.events === undefined ? 'events not counted' : `${lost.at_least ? 'at least ' : ''}${counted(lost.events, 'event')}`}${(lost.by_cpu || []).map(({ cpu, events }) => `, CPU ${cpu}: ${count(events)}`).join('')}; ${counted(lost.incomplete_episodes || 0, 'incomplete episode')} left out`,
    ],
    ['notes', recording.notes.join('; ')],
    ['provenance', metadata.provenance],
    ['this report', `dwell ${report.dwell}: ${report.command}`],
  ].filter(([, value]) => value);
  const quantile = (stats, wanted) => {
    const found = stats.quantiles.find((one) => Math.abs(one.quantile - wanted) < 1e-9);
    return found ? span(found.idle_ns) : '-';
  };
  const all = [
    ...(recording.info.idlers.length > 1 ? [{ name: 'all', ...recording.info.all }] : []),
    ...recording.info.idlers,
  ];
  return card(
    'Provenance',
    null,
    element(
      'dl',
      {},
      rows.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]),
    ),
    details(
      'Idlers',
      table(
        [['idler', true], ['episodes'], ['min'], ['p5'], ['p50'], ['p95'], ['p99'], ['max'], ['mean']],
        all.map((one) => [
          one.name,
          count(one.episodes),
          span(one.min_ns),
          quantile(one, 0.05),
          quantile(one, 0.5),
          quantile(one, 0.95),
          quantile(one, 0.99),
          span(one.max_ns),
          span(one.mean_ns),
        ]),
      ),
    ),
  );
};
