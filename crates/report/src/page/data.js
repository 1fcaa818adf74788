// The report, as the program wrote it, and the page it goes to.

const text = document.getElementById('data').textContent;
const report = JSON.parse(text);
// Roles are shown in words.
for (const { tune } of report.recordings) {
  for (const row of tune ? tune.rows : []) row.role = row.role.replaceAll('_', ' ');
}
const main = document.getElementById('main');
const root = document.documentElement;
