// A fleet: choices of settings for many VMs.

const SERIES = ['present', 'recommended', 'success', 'polling', 'other', 'focus', 'wasted', 'bound'];
const share = (value) => (value === null || value === undefined ? '-' : percent(value));
const settingsOf = (choice) =>
  choice.settings
    .map(({ setting, vms }) =>
      choice.settings.length === 1 ? settingText(setting) : `${settingText(setting)} (${counted(vms, 'VM')})`,
    )
    .join('; ') || '-';
const CHOICE_COLUMNS = [
  ['choice', true],
  ['VMs', false],
  ['cost', false],
  ['cost / optimum', false],
  ['gain over today', false],
  ['regret', false],
  ['p50', false],
  ['p95', false],
  ['p99', false],
  ['worst', false],
  ['worst VM', true],
  ['worse than today', false],
  ['settings', true],
];
const choiceRow = (choice, name) => [
  name,
  count(choice.vms),
  span(choice.cost_ns),
  choice.cost_over_optimum === null ? '-' : choice.cost_over_optimum.toFixed(3),
  share(choice.gain_over_today),
  share(choice.regret),
  share(choice.regret_p50),
  share(choice.regret_p95),
  share(choice.regret_p99),
  share(choice.regret_worst),
  choice.worst_vm,
  count(choice.vms_worse_than_today),
  settingsOf(choice),
];

/** Regret of each VM, in order: the part of the VMs that has at most so much. */
const regrets = (fleet) =>
  card(
    'Regret of the VMs',
    `What each of ${counted(fleet.vms_reported_on, 'VM')} costs more than under its own best setting. ${fleet.held_out}.`,
    new Chart({
      label: `Regret against the share of VMs that has at most so much, one line for each of ${fleet.curves.length} choices`,
      height: 340,
      option: ({ narrow }) => ({
        grid: { left: narrow ? 58 : 70, right: 18, top: 18, bottom: 76 },
        xAxis: axis({ type: 'value', min: 0, max: 100, name: 'share of the VMs [%]', nameLocation: 'middle' }),
        yAxis: axis({
          type: 'value',
          name: 'regret [%]',
          nameLocation: 'middle',
          nameGap: 46,
          axisLabel: { formatter: fixed },
        }),
        dataZoom: zooms(),
        tooltip: {
          trigger: 'axis',
          formatter: (points) =>
            tip(
              `${fixed(points[0].value[0])} % of the VMs: at most`,
              points.map((point) => [point.color, `${point.seriesName}: ${fixed(point.value[1])} %`]),
            ),
        },
        series: fleet.curves.map((curve, at) => ({
          name: curve.choice,
          type: 'line',
          symbol: 'none',
          color: colour(SERIES[at % SERIES.length]),
          data: curve.regret.map((regret, step) => [(100 * step) / (curve.regret.length - 1), 100 * regret]),
        })),
      }),
      columns: [['choice', true], ['share of the VMs', false], ['regret at most', false]],
      rows: () =>
        fleet.curves.flatMap((curve) =>
          [0.5, 0.75, 0.9, 0.95, 0.99, 1].map((part) => [
            curve.choice,
            percent(part),
            percent(curve.regret[Math.round(part * (curve.regret.length - 1))]),
          ]),
        ),
    }).node,
  );

/** What all VMs cost together under each choice. */
const totals = (fleet) => {
  const whole = fleet.choices.filter((choice) => choice.class === null && choice.cost_over_optimum !== null);
  if (!whole.length) return null;
  return card(
    'Cost of all VMs',
    `By that of the offline optimum, at a halt cost of ${span(fleet.halt_cost_ns)}.`,
    bars({
      label: `Cost of all VMs over that of the offline optimum, a bar for each of ${whole.length} choices`,
      height: 300,
      unit: 'cost / optimum',
      tick: fixed,
      words: (value) => `${value.toFixed(3)} times the optimum`,
      categories: whole.map((choice) => choice.choice),
      axisLabel: (narrow) => ({ interval: 0, rotate: narrow ? 40 : 0 }),
      series: () => [
        { name: 'cost / optimum', color: colour('recommended'), data: whole.map((choice) => choice.cost_over_optimum) },
      ],
      columns: CHOICE_COLUMNS,
      rows: () => whole.map((choice) => choiceRow(choice, choice.choice)),
    }),
  );
};

const classes = (fleet) => {
  const rows = fleet.choices.filter((choice) => choice.class !== null && choice.choice === fleet.of_classes);
  if (!rows.length) return null;
  return card(
    'One setting for each class',
    null,
    table([['class', true], ...CHOICE_COLUMNS.slice(1)], rows.map((choice) => choiceRow(choice, choice.class)), true),
  );
};

const worst = (fleet) =>
  card(
    'The VMs that lose most',
    `Under ${fleet.worst.choice}: cost today, under this choice, and under the best setting for the VM.`,
    table(
      [['VM', true], ['class', true], ['today', false], ['chosen', false], ['own best', false], ['regret', false], ['against today', false]],
      fleet.worst.vms.map((vm) => [
        vm.vm,
        vm.class,
        span(vm.today_ns),
        span(vm.chosen_ns),
        span(vm.own_ns),
        share(vm.regret),
        vm.today_ns ? percent(vm.chosen_ns / vm.today_ns - 1) : '-',
      ]),
    ),
  );

const leftOut = (fleet) =>
  fleet.left_out.length
    ? card(
        'Recordings that do not count',
        null,
        table([['recording', true], ['why', true]], fleet.left_out.map(({ recording, why }) => [recording, why]), true),
      )
    : null;

const showFleet = (fleet) => {
  const whole = fleet.choices.filter((choice) => choice.class === null);
  main.replaceChildren(
    ...[
      element('h1', {}, fleet.folder),
      element(
        'p',
        { class: 'sub' },
        [
          `${count(fleet.episodes)} episodes in ${counted(fleet.recordings - fleet.left_out.length, 'recording')}`,
          `${fleet.layer} layer, rule of ${fleet.version}`,
          `${count(fleet.settings_tried)} settings at a halt cost of ${span(fleet.halt_cost_ns)}`,
          `chosen on ${counted(fleet.vms_chosen_on, 'VM')}, figures of ${counted(fleet.vms_reported_on, 'VM')}`,
        ].join(' · '),
      ),
      card('Choices', null, table(CHOICE_COLUMNS, whole.map((choice) => choiceRow(choice, choice.choice)), true)),
      totals(fleet),
      fleet.curves.length > 0 && regrets(fleet),
      worst(fleet),
      classes(fleet),
      leftOut(fleet),
      notesCard(fleet.notes),
      footer(),
    ].filter(Boolean),
  );
  enqueue([...charts]);
};
