// Quantities as people read them: three digits, ns to s.

const UNITS = [
  [1e9, 's'],
  [1e6, 'ms'],
  [1e3, 'us'],
  [1, 'ns'],
];
const digits = (value) => (Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2);
const fixed = (value) =>
  Number.isInteger(value) && Math.abs(value) < 1000 ? String(value) : value.toFixed(digits(value));
const count = (value) =>
  Math.round(value)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, ',');
/** A number of things, as in `1 episode`. */
const counted = (number, name) => `${count(number)} ${name}${number === 1 ? '' : 's'}`;
const percent = (share) => (share === 0 ? '0 %' : `${fixed(share * 100)} %`);
const span = (ns) => {
  if (!ns) return '0';
  const [scale, unit] = UNITS.find(([scale]) => Math.abs(ns) >= 0.9995 * scale) || [1, 'ns'];
  return `${fixed(ns / scale)} ${unit}`;
};
/** Round values on axes, without needless zeros. */
const tick = (ns) =>
  span(ns)
    .replace(/\.0+ /, ' ')
    .replace(/(\.\d*?)0+ /, '$1 ');
/** Shares on an axis up to `most`, with as many digits as tell its ticks apart. */
const shareTick = (most) => {
  const step = most > 0 ? Math.log10((100 * most) / 5) : 0;
  const places = Math.min(12, Math.max(0, 1 - Math.floor(step)));
  return (value) => {
    const text = (value * 100).toFixed(places);
    return `${text.includes('.') ? text.replace(/\.?0+$/, '') : text} %`;
  };
};
const rate = (value) => (value >= 1000 ? count(value) : fixed(value));
const figure = (name, value) => {
  if (value === null || value === undefined) return '-';
  if (name.endsWith('ns_per_s')) return `${percent(value / 1e9)} of a CPU`;
  if (name.endsWith('_ns')) return span(value);
  return rate(value);
};
const plain = (name) =>
  name
    .replace(/_ns_per_s$|_ns$/, '')
    .replace(/_per_s$/, ' per second')
    .replace(/_/g, ' ')
    .replace('wake latency', 'wakeup latency')
    .replace('cpu', 'CPU');
