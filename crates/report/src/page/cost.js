// What it costs, and what could be gained.

const verdict = (recording) => {
  const tune = recording.tune;
  if (!tune) {
    return element(
      'section',
      { class: 'card' },
      element('h2', {}, 'No advice'),
      element('p', { class: 'note' }, recording.no_advice),
      recording.notes.map((note) => element('p', { class: 'note' }, `Note: ${note}.`)),
    );
  }
  const change = tune.verdict === 'change';
  const gain = Math.max(0, tune.upper_bound.gain_ns_per_s) / 1e9;
  const tile = (role, value, name) =>
    element(
      'div',
      { class: `tile ${role}` },
      element('div', { class: 'value' }, value),
      element('div', { class: 'name' }, name),
    );
  const price = span(tune.halt_cost_ns);
  return element(
    'section',
    { class: 'card', id: 'verdict' },
    element(
      'div',
      { class: 'tiles' },
      tile(
        'present',
        percent(tune.upper_bound.present_cost_ns_per_s / 1e9),
        `of a CPU: price of the present setting, of which ${percent(pollingShare(rowOf(recording, 'present')))} CPU time polled`,
      ),
      tile(
        'recommended',
        change ? percent(costShare(recording, rowOf(recording, 'recommended'))) : 'leave it',
        change
          ? `of a CPU: price of the recommended one, of which ${percent(pollingShare(rowOf(recording, 'recommended')))} CPU time polled`
          : 'no better setting is certain',
      ),
      tile('bound', percent(tune.upper_bound.optimum_cost_ns_per_s / 1e9), 'of a CPU: price that no policy can go below'),
      tile('gain', `${percent(gain)}`, 'of a CPU: the largest possible gain in price'),
      tile('latency', latencyWords(recording), 'latency that halts add to a wakeup, on average'),
    ),
    element('p', { class: 'advice' }, `Advice: ${tune.advice}`),
    element(
      'p',
      { class: 'note' },
      `Cost is polling CPU plus ${price} for each halt, of all ${tune.idlers === 1 ? 'episodes' : 'idlers together, in shares of one CPU,'} on the second half of the recording, which was not used for the choice. Goal: ${goalWords(tune.goal)}. ${count(tune.settings_tried)} settings were tried. ${tune.work ? 'These figures keep the idle times of the recording; the table by work lets them change with the setting' : 'Replay is open loop: episodes do not change when the policy does'}.`,
    ),
    element('p', { class: 'note' }, `Halt cost: ${haltCostWords(tune)}.`),
    learnersWords(recording),
    // The self-check has a mark of its own.
    tune.notes
      .filter((note) => !note.startsWith('self-check:'))
      .map((note) => element('p', { class: 'note' }, `Note: ${note}.`)),
    tune.lines.length
      ? details(
          'How to set it',
          element(
            'div',
            {},
            tune.lines.map(({ about, lines }) =>
              element(
                'div',
                {},
                element('p', { class: 'note' }, about),
                copyable(lines.join('\n')),
              ),
            ),
          ),
        )
      : null,
  );
};

/** What settings do to the work, by a replay of causes. */
const byWork = ({ tune }) => {
  const work = tune && tune.work;
  if (!work) return null;
  const range = ({ middle, low, high }, words) => `${words(middle)} (${words(low)} to ${words(high)})`;
  return element(
    'section',
    { class: 'card', id: 'by-work' },
    element('h2', {}, 'By work'),
    element(
      'p',
      { class: 'note' },
      `Causes were replayed, which let the idle times change with the setting. Unit of work: a segment of ${work.unit_of_work.join(', ')}; ${rate(work.recorded_work_per_s)} a second were recorded. In brackets: what the constants, the recording's length and the model leave open.`,
    ),
    table(
      [['policy', true], ['work a second'], ['cost of a unit'], ['cycle'], ['CPU time'], ['polling'], ['halts a second'], ['setting', true]],
      work.settings.map((row) => [
        row.role,
        range(row.speed, fixed),
        range(row.cost_ns, span),
        span(row.cycle_ns.middle),
        percent(row.cpu_s.middle),
        percent(row.polled_s.middle),
        rate(row.halts_per_s.middle),
        settingText(row.setting),
      ]),
    ),
  );
};

/** What policies that learn would cost. */
const learnersWords = (recording) => {
  const over = (role) => {
    const row = rowOf(recording, role);
    return row && row.cost_over_optimum !== null ? fixed(row.cost_over_optimum) : '-';
  };
  return element(
    'p',
    { class: 'note' },
    `A learning policy would cost ${over('leader')} times the optimum (leader) or ${over('savings')} (savings); the best setting of today's rule in hindsight costs ${over('best in hindsight')}.`,
  );
};

/** Of the present setting, and of the recommended one where there is one. */
const latencyWords = (recording) =>
  ['present', 'recommended']
    .map((role) => rowOf(recording, role))
    .filter(Boolean)
    .map((row) => span(row.mean_added_latency_ns))
    .join(' \u2192 ');

const costs = (recording) => {
  const rows = recording.tune.rows;
  const halts = (row) => costShare(recording, row) - pollingShare(row);
  const chart = new Chart({
    label: `Cost of every policy in shares of a CPU: ${rows.map((row) => `${row.role} ${percent(costShare(recording, row))}`).join(', ')}`,
    height: 64 + rows.length * 54,
    option: ({ narrow }) => {
      const total = (row) => costShare(recording, row);
      // What is far off the scale, such as always polling on a quiet machine, ends at the edge; its label has the value.
      const sorted = rows.map(total).sort((a, b) => b - a);
      const most = sorted[0] > 3 * sorted[1] ? sorted[1] * 1.25 : undefined;
      const rich = Object.fromEntries(
        ['present', 'recommended', 'bound'].map((name) => [
          name,
          { color: colour(name), fontWeight: 'bold', lineHeight: 15 },
        ]),
      );
      const style = { present: 'present', recommended: 'recommended', optimum: 'bound' };
      return {
        grid: { left: narrow ? 124 : 190, right: 18, top: 8, bottom: 44 },
        xAxis: axis({
          type: 'value',
          max: most,
          splitNumber: narrow ? 3 : 5,
          name: 'share of one CPU',
          nameLocation: 'middle',
          axisLabel: { formatter: shareTick(most ?? sorted[0]) },
        }),
        yAxis: axis({
          type: 'category',
          inverse: true,
          splitLine: { show: false },
          data: rows.map((row) => row.role),
          axisLabel: {
            hideOverlap: false,
            interval: 0,
            color: colour('ink'),
            lineHeight: 15,
            rich,
            formatter: (name, at) => {
              const words = narrow ? `${name}\n${percent(total(rows[at]))}` : `${name}   ${percent(total(rows[at]))}`;
              return style[name]
                ? words
                    .split('\n')
                    .map((line) => `{${style[name]}|${line}}`)
                    .join('\n')
                : words;
            },
          },
        }),
        tooltip: {
          trigger: 'axis',
          axisPointer: { type: 'shadow' },
          formatter: ([{ dataIndex }]) => {
            const row = rows[dataIndex];
            return tip(`${row.role}: ${percent(total(row))} of a CPU`, [
              [colour('polling'), `polling ${percent(pollingShare(row))}`],
              [colour('idle'), `halts ${percent(halts(row))}: ${rate(row.halts_per_s)} per second`],
              [null, row.cost_over_optimum === null ? '' : `${fixed(row.cost_over_optimum)} times optimum`],
              [null, `latency added: ${span(row.mean_added_latency_ns)} on average`],
              [null, settingText(row.setting)],
            ]);
          },
        },
        series: [
          {
            name: 'polling',
            type: 'bar',
            stack: 'cost',
            barWidth: '58%',
            color: colour('polling'),
            data: rows.map((row) => pollingShare(row)),
          },
          {
            name: `halts, at ${span(recording.tune.halt_cost_ns)} each`,
            type: 'bar',
            stack: 'cost',
            color: colour('idle'),
            data: rows.map(halts),
          },
        ],
      };
    },
    columns: [
      ['policy', true],
      ['cost'],
      ['/optimum'],
      ['polling CPU'],
      ['polls'],
      ['success'],
      ['halts/s'],
      ['mean latency'],
      ['setting', true],
    ],
    rows: () =>
      rows.map((row) => [
        row.role,
        percent(costShare(recording, row)),
        row.cost_over_optimum === null ? null : fixed(row.cost_over_optimum),
        percent(pollingShare(row)),
        count(row.polls),
        row.polls ? percent(row.polls_succeeded / row.polls) : null,
        rate(row.halts_per_s),
        span(row.mean_added_latency_ns),
        settingText(row.setting),
      ]),
  });
  return card(
    'What each policy costs',
    'From never polling to always polling; the learning policies savings and leader, which no kernel has; and the offline optimum, which no policy can beat.',
    chart.node,
  );
};

const FRONT_HEIGHT = 430;
/** Below the front: its axis and its slider. */
const FRONT_BOTTOM = 78;
const LABEL_SIZE = 11.5;
const LABEL_HEIGHT = 14;

/**
 * Moves labels beside points up or down, as little as needed to be over no other and not below `lowest`; returns by how much.
 * `labels`: {x, y, side, lines}, in pixels.
 */
const apart = (labels, lowest) => {
  const pen = document.createElement('canvas').getContext('2d');
  pen.font = `${LABEL_SIZE}px ${getComputedStyle(document.body).fontFamily}`;
  const placed = [];
  return labels.map(({ x, y, side, lines }) => {
    const width = Math.max(...lines.map((line) => pen.measureText(line).width)) + 8;
    const height = lines.length * LABEL_HEIGHT + 2;
    const left = side === 'left' ? x - 10 - width : x + 10;
    const free = (top) =>
      top >= 0 &&
      top + height <= lowest &&
      placed.every(
        (other) =>
          left >= other.left + other.width ||
          other.left >= left + width ||
          top >= other.top + other.height ||
          other.top >= top + height,
      );
    const moves = Array.from({ length: 161 }, (_, step) => (step % 2 ? 1 : -1) * Math.ceil(step / 2) * 3);
    const move = moves.find((one) => free(y - height / 2 + one)) || 0;
    placed.push({ left, width, top: y - height / 2 + move, height });
    return move;
  });
};

const pareto = (recording) => {
  const { rows, front } = recording.tune;
  const MARKS = {
    never: 'triangle',
    always: 'rect',
    present: 'diamond',
    recommended: 'circle',
    'best in hindsight': 'pin',
    'best fixed window': 'arrow',
    optimum: 'roundRect',
  };
  const at = (row) => [pollingShare(row), row.halts_per_s, row];
  const widest = Math.max(...[...rows, ...front].map(pollingShare));
  const log = (on, point) =>
    point.map((value, dimension) => (dimension < 2 && on[dimension] ? Math.max(value, dimension ? 0.1 : 1e-6) : value));
  /** What stands beside each point, and on which side; nothing where the first of a group has the words of all. */
  const labelled = ({ logX, logY }) => {
    const on = [logX, logY];
    const scaled = rows.map((row) =>
      log(on, at(row))
        .slice(0, 2)
        .map((value, dimension) => (on[dimension] ? Math.log(value) : value)),
    );
    const extent = [0, 1].map(
      (dimension) =>
        Math.max(...scaled.map((point) => point[dimension])) - Math.min(...scaled.map((point) => point[dimension])) || 1,
    );
    const together = (a, b) =>
      [0, 1].every((dimension) => Math.abs(scaled[a][dimension] - scaled[b][dimension]) < extent[dimension] * 0.04);
    const middle = Math.max(...scaled.map(([x]) => x)) - extent[0] / 2;
    const important = (role) => ['optimum', 'present', 'recommended'].indexOf(role);
    const taken = new Set();
    return rows.map((_, number) => {
      const near = rows.map((_, other) => other).filter((other) => !taken.has(other) && together(number, other));
      if (taken.has(number)) return { lines: [] };
      near.forEach((other) => taken.add(other));
      const names = near.map((other) => rows[other].role).sort((a, b) => important(b) - important(a));
      const lines =
        names.length > 3
          ? [names.slice(0, 2).join(', '), `and ${names.length - 2} more`]
          : names.map((name, place) => (place < names.length - 1 ? `${name},` : name));
      return { lines, side: scaled[number][0] > middle ? 'left' : 'right' };
    });
  };
  const chart = new Chart({
    label: `Polling CPU against halts per second: the Pareto front of ${front.length} settings, with ${rows.map((row) => row.role).join(', ')}`,
    height: FRONT_HEIGHT,
    toggles: [
      { name: 'logX', words: 'Log CPU' },
      { name: 'logY', words: 'Log halts' },
    ],
    arrange: (drawn, { logX, logY, narrow }) => {
      if (narrow) return;
      const shown = labelled({ logX, logY })
        .map((label, number) => ({ ...label, number }))
        .filter(({ lines }) => lines.length);
      const placed = shown.map(({ number, ...label }) => {
        const [x, y] = drawn.convertToPixel({ seriesIndex: number + 1 }, log([logX, logY], at(rows[number])).slice(0, 2));
        return { ...label, x, y };
      });
      const moves = apart(placed, FRONT_HEIGHT - FRONT_BOTTOM - 2);
      drawn.setOption({
        series: shown.map(({ number }, place) => ({ name: rows[number].role, label: { offset: [0, moves[place]] } })),
      });
    },
    option: ({ logX, logY, narrow }) => {
      const on = [logX, logY];
      const words = labelled({ logX, logY });
      return {
        grid: { left: narrow ? 62 : 70, right: 22, top: 30, bottom: FRONT_BOTTOM },
        xAxis: axis({
          type: logX ? 'log' : 'value',
          name: 'polling CPU, share of one CPU',
          nameLocation: 'middle',
          axisLabel: { formatter: (value) => shareTick(logX ? 5 * value : widest)(value) },
        }),
        yAxis: axis({
          type: logY ? 'log' : 'value',
          name: 'halts per second',
          nameLocation: 'middle',
          nameGap: 44,
          axisLabel: { formatter: (value) => (value >= 1e4 ? `${value / 1e3}k` : String(value)) },
        }),
        dataZoom: zooms({ xAxisIndex: 0 }),
        tooltip: {
          trigger: 'item',
          formatter: ({ data, color, seriesName }) => {
            const row = data[2];
            return tip(seriesName, [
              [color, `${percent(pollingShare(row))} of a CPU polling`],
              [color, `${rate(row.halts_per_s)} halts per second`],
              [null, `latency added: ${span(row.mean_added_latency_ns)} on average`],
              [null, settingText(row.setting)],
            ]);
          },
        },
        series: [
          {
            name: 'Pareto front',
            type: 'line',
            color: colour('other'),
            symbol: 'circle',
            symbolSize: 5,
            showAllSymbol: true,
            lineStyle: { width: 1.5 },
            data: front.map((row) => log(on, at(row))),
          },
          ...rows.map((row, number) => ({
            name: row.role,
            type: 'scatter',
            symbol: MARKS[row.role],
            symbolSize: ['present', 'recommended'].includes(row.role) ? 17 : 12,
            color: colourOf(row.role),
            itemStyle: { borderColor: colour('card'), borderWidth: 1.5 },
            z: row.role === 'recommended' || row.role === 'present' ? 5 : 4,
            label: {
              show: !narrow && words[number].lines.length > 0,
              formatter: words[number].lines.join('\n'),
              position: words[number].side,
              color: colour('ink'),
              fontSize: LABEL_SIZE,
              lineHeight: LABEL_HEIGHT,
              verticalAlign: 'middle',
              // Readable over the front.
              textBorderColor: colour('card'),
              textBorderWidth: 3,
            },
            data: [log(on, at(row))],
          })),
        ],
      };
    },
    columns: [['point', true], ['polling CPU'], ['halts/s'], ['mean latency'], ['setting', true]],
    rows: () =>
      [...rows.map((row) => [row.role, row]), ...front.map((row) => ['front', row])].map(([name, row]) => [
        name,
        percent(pollingShare(row)),
        rate(row.halts_per_s),
        span(row.mean_added_latency_ns),
        settingText(row.setting),
      ]),
  });
  return card(
    'CPU against halts',
    'No setting that was tried has both less polling CPU and fewer halts than one on the front. A point left of and below the front is out of reach of this rule; only learning policies and the optimum are there.',
    chart.node,
  );
};
