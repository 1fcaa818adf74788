// The report, as the program wrote it, and the page it goes to.

const text = document.getElementById('data').textContent;
const report = JSON.parse(text);
const main = document.getElementById('main');
const root = document.documentElement;
