// The page.

const heading = (recording) => {
  const { metadata } = recording.info;
  return [
    element('h1', {}, nameOf(recording)),
    element(
      'p',
      { class: 'sub' },
      [
        contents(recording),
        `${metadata.layer} layer`,
        metadata.kernel && `Linux ${metadata.kernel}`,
        metadata.qemu && `QEMU ${metadata.qemu}`,
        metadata.cpu_model,
      ]
        .filter(Boolean)
        .join(' · '),
    ),
    selfCheck(recording),
  ];
};

const show = (number) => {
  const recording = report.recordings[number];
  [...document.getElementById('recordings').children].forEach((button, at) =>
    button.setAttribute('aria-current', String(at === number)),
  );
  charts.splice(0).forEach((chart) => chart.drawn && chart.drawn.dispose());
  waiting.length = 0;
  const together = report.time_axis === 'common' ? report.recordings : [recording];
  // Decisions of a controller may stand alone.
  const ofRecording = (...parts) => (recording ? parts.map((part) => part(recording)) : []);
  const tuned = ({ tune }) => (tune ? element('div', { class: 'pair' }, costs(recording), pareto(recording)) : null);
  const parts = [
    ...ofRecording(heading),
    report.comparison ? changed() : null,
    ...ofRecording(verdict, byWork),
    report.plan ? plan() : null,
    report.comparison ? comparison() : null,
    ...ofRecording(tuned, idle, polls, () => timeline(together), closeup, activity),
    exits(),
    measured(),
    why(),
    decisions(),
    ...ofRecording(provenance),
    footer(),
  ];
  main.replaceChildren(...parts.flat(2).filter(Boolean));
  enqueue([...charts]);
};

const themeButton = document.getElementById('theme');
const setTheme = (dark) => {
  root.dataset.theme = dark ? 'dark' : 'light';
  themeButton.setAttribute('aria-pressed', String(dark));
  enqueue([...charts]);
};
const preferred = matchMedia('(prefers-color-scheme: dark)');
preferred.addEventListener('change', (event) => setTheme(event.matches));
themeButton.addEventListener('click', () => setTheme(root.dataset.theme !== 'dark'));
document.getElementById('print').addEventListener('click', () => window.print());
document.getElementById('download').addEventListener('click', () => {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  element('a', { href: url, download: 'dwell-report.json' }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
});
let asked = null;
addEventListener('resize', () => {
  clearTimeout(asked);
  asked = setTimeout(resized, 120);
});
let themeBefore = null;
let folded = [];
addEventListener('beforeprint', () => {
  themeBefore = root.dataset.theme;
  root.dataset.theme = 'light';
  // Paper cannot be unfolded. The numbers behind charts are left out by the style sheet.
  folded = [...document.querySelectorAll('details:not([open])')];
  folded.forEach((one) => (one.open = true));
  // The layout of the paper is not known yet; the style sheet makes this width fit.
  charts.forEach((chart) => chart.draw(840));
});
addEventListener('afterprint', () => {
  root.dataset.theme = themeBefore;
  folded.forEach((one) => (one.open = false));
  charts.forEach((chart) => chart.draw());
});

root.dataset.theme = preferred.matches ? 'dark' : 'light';
themeButton.setAttribute('aria-pressed', String(preferred.matches));
if (report.recordings.length > 1) {
  document
    .getElementById('recordings')
    .append(
      ...report.recordings.map((recording, number) =>
        element('button', { type: 'button', on: { click: () => show(number) } }, nameOf(recording)),
      ),
    );
}
if (report.fleet) showFleet(report.fleet);
else if (report.timers_before) showTimersChange(report.timers_before, report.timers);
else if (report.timers) showTimers(report.timers);
else show(0);
