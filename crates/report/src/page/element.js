// Elements. All text goes through textContent: names come from recordings that anybody may have written.
// What changes the direction of text, breaks a line or cannot be seen is written as an escape.
const HARMFUL =
  /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const harmless = (child) =>
  typeof child === 'string' ? child.replace(HARMFUL, (c) => `\\u{${c.codePointAt(0).toString(16)}}`) : child;

const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'on') for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  const there = children.flat().filter((child) => child !== null && child !== undefined && child !== '');
  made.append(...there.map(harmless));
  return made;
};
const table = (columns, rows, all = false) =>
  element(
    'div',
    { class: all ? 'scroll all' : 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table' },
    element(
      'table',
      {},
      element(
        'thead',
        {},
        element(
          'tr',
          {},
          columns.map(([name, words]) => element('th', { scope: 'col', class: words ? 'words' : null }, name)),
        ),
      ),
      element(
        'tbody',
        {},
        rows.map((row) =>
          element(
            'tr',
            {},
            row.map((cell, at) =>
              element(
                'td',
                { class: columns[at][1] ? 'words' : null },
                cell === null || cell === undefined ? '-' : String(cell),
              ),
            ),
          ),
        ),
      ),
    ),
  );
/** Text that can be copied by a button. */
const copyable = (text) => {
  const shown = element('pre', { tabindex: 0 }, text);
  const copied = (done) => {
    button.textContent = done ? 'Copied' : 'Select and copy';
    setTimeout(() => (button.textContent = 'Copy'), 1500);
  };
  const button = element(
    'button',
    {
      type: 'button',
      class: 'copy',
      'aria-label': 'Copy these lines',
      on: {
        click: () => {
          // A page that is opened from a file may not use the clipboard's own interface.
          const range = document.createRange();
          range.selectNodeContents(shown);
          getSelection().removeAllRanges();
          getSelection().addRange(range);
          copied(document.execCommand('copy'));
        },
      },
    },
    'Copy',
  );
  return element('div', { class: 'copyable' }, shown, button);
};
const details = (summary, content) => element('details', {}, element('summary', {}, summary), content);
const card = (title, note, ...content) =>
  element(
    'section',
    { class: 'card' },
    element('h2', {}, title),
    note ? element('p', { class: 'note' }, note) : null,
    ...content,
  );
const notesCard = (notes) =>
  notes.length ? card('Notes', null, element('ul', {}, notes.map((note) => element('li', {}, note)))) : null;
const footer = () =>
  element(
    'footer',
    {},
    `Made with dwell ${report.dwell}: ${report.command}. Charts: Apache ECharts, Apache-2.0. In a focused chart the arrow keys walk along the values, + and - zoom, 0 shows all.`,
  );
const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const ROLE_COLOURS = {
  present: 'present',
  recommended: 'recommended',
  rejected: 'polling',
  optimum: 'bound',
  plan: 'recommended',
  before: 'present',
  after: 'recommended',
};
/** The name of a policy's colour; what it is depends on the theme and is asked for when something is drawn. */
const inkOf = (name) => ROLE_COLOURS[name] || 'other';
const colourOf = (name) => colour(inkOf(name));
/** Idlers are not the colours of policies. */
const IDLERS = ['success', 'wasted', 'bound', 'polling', 'other', 'focus', 'soft', 'good'];
const MANY = ['recommended', 'present', 'success', 'wasted', 'bound', 'other', 'idle', 'focus'];
