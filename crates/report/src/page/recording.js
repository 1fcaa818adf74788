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
