// What a recording has to say.

const layerOf = (recording) => recording.info.metadata.layer;
const nameOf = (recording) => {
  const name = recording.file.split('/').pop();
  return recording.role === 'recording' ? name : `${recording.role}: ${name}`;
};
const rowOf = (recording, role) => recording.tune && recording.tune.rows.find((row) => row.role === role);
const seconds = (recording) => recording.info.span_ns / 1e9;
const pollingShare = (row) => row.polling_ns_per_s / 1e9;
const goalWords = (goal) => {
  if (goal === 'least_cost') return 'least cost';
  if ('max_cpu' in goal) return `fewest halts with at most ${percent(goal.max_cpu)} of a CPU polling`;
  return `least polling CPU with at most ${rate(goal.max_halts_per_second)} halts per second`;
};
const costShare = (recording, row) => row.cost_ns / recording.tune.judged_span_ns;
const settingText = (setting) =>
  Object.entries(setting || {})
    .map(([name, value]) => `${name}=${value}`)
    .join(' ');
const haltCostWords = (tune) =>
  `${span(tune.halt_cost_ns)}${
    {
      measured_own_cpu: ', measured by dwell-lab calibrate: halts of the system\'s own CPUs, between two threads',
      measured_vcpu: ', measured by dwell-lab calibrate: halts of a vCPU of the machine\'s KVM',
      recorded: ', halt_cost_ns of the driver dwell_idle',
      segments: ', what a halt takes at least of the CPUs, its waker\'s included',
      default: ', the default, not measured; dwell-lab calibrate measures it, --halt-cost sets it',
    }[tune.halt_cost_origin] || ''
  }`;
/** The recording compared with itself: a mark, the sentence, and the figures. */
const selfCheck = (recording) => {
  const { self_check: check, self_check_words: words } = recording;
  const checked = check.result === 'checked';
  const [kind, mark, label] = checked
    ? {
        agrees: ['agrees', '\u2713', 'agrees'],
        differs: ['differs', '!', 'differs'],
        contradicts: ['contradicts', '\u2717', 'contradicts'],
      }[check.verdict]
    : ['unknown', '?', 'not known'];
  return element(
    'div',
    { class: `check ${kind}`, id: 'check' },
    element('p', {}, element('span', { class: 'mark', role: 'img', 'aria-label': label }, mark), `Self-check: ${words}.`),
    checked
      ? details(
          'What was compared',
          table(
            [['figure', true], ['recorded'], ['replayed'], ['difference']],
            check.figures.map((one) => [
              plain(one.figure),
              figure(one.figure, one.recorded),
              figure(one.figure, one.replayed),
              percent(one.difference),
            ]),
            true,
          ),
        )
      : null,
  );
};
