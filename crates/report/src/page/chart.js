// Charts: drawn before the page counts as loaded, as far as that is quick; the rest one a frame. Again when the theme or
// the width changes.

const charts = [];
const waiting = [];
let working = false;
/** For this long charts are drawn without a break [ms]: what prints a page when it has loaded prints them all. */
const AT_ONCE_MS = 1500;
const work = () => {
  const next = waiting.shift();
  if (!next) {
    working = false;
    root.dataset.drawn = String(charts.length);
    return;
  }
  next.draw();
  requestAnimationFrame(work);
};
const enqueue = (all) => {
  waiting.push(...all);
  if (!working) {
    working = true;
    delete root.dataset.drawn;
    const end = performance.now() + AT_ONCE_MS;
    while (waiting.length && performance.now() < end) waiting.shift().draw();
    work();
  }
};

/**
 * A chart with its legend, its toggles and the table of its numbers. `option(state)` gives ECharts' option; `state` has the
 * toggles by name and whether the chart is narrow. `arrange(drawn, state)` moves what is drawn, where it matters. `rows()` is called when its table is opened.
 */
class Chart {
  constructor({ label, height, toggles = [], option, arrange, columns, rows }) {
    Object.assign(this, { label, height, option, arrange });
    this.state = Object.fromEntries(toggles.map(({ name, on }) => [name, Boolean(on)]));
    this.hidden = new Set();
    this.box = element('div', {
      class: 'chart',
      role: 'img',
      tabindex: 0,
      'aria-label': label,
      style: `height:${height}px`,
      on: { keydown: (event) => this.key(event) },
    });
    this.legend = element('div', { class: 'controls legend', role: 'group', 'aria-label': 'Lines shown' });
    const buttons = toggles.map(({ name, words }) =>
      element(
        'button',
        {
          type: 'button',
          class: 'toggle',
          'aria-pressed': String(this.state[name]),
          on: {
            click: (event) => {
              this.state[name] = !this.state[name];
              event.currentTarget.setAttribute('aria-pressed', String(this.state[name]));
              this.draw();
            },
          },
        },
        words,
      ),
    );
    this.reset = element(
      'button',
      { type: 'button', class: 'toggle reset', on: { click: () => this.zoom(0, 100) } },
      'Whole range',
    );
    this.numbers = element(
      'details',
      {
        on: {
          toggle: () => {
            if (this.numbers.open && this.numbers.childElementCount === 1) this.numbers.append(table(columns, rows()));
          },
        },
      },
      element('summary', {}, 'The numbers as a table'),
    );
    this.node = element(
      'div',
      {},
      this.legend,
      element('div', { class: 'controls' }, buttons, this.reset),
      this.box,
      this.numbers,
    );
    charts.push(this);
  }

  get narrow() {
    return this.box.clientWidth < 480;
  }

  /** Draws it as wide as there is room, or as is asked for. */
  draw(width) {
    if (!this.box.isConnected) return;
    if (this.drawn) this.drawn.dispose();
    this.wasNarrow = this.narrow && !width;
    this.drawn = echarts.init(this.box, null, { renderer: 'svg', width });
    const made = this.option({ ...this.state, narrow: this.wasNarrow });
    this.made = made;
    this.reset.hidden = !made.dataZoom;
    const selected = Object.fromEntries([...this.hidden].map((name) => [name, false]));
    this.drawn.setOption({
      animation: false,
      textStyle: { color: colour('soft'), fontFamily: getComputedStyle(document.body).fontFamily },
      aria: { enabled: true, label: { description: this.label } },
      ...made,
      legend: { show: false, selected },
      tooltip: {
        confine: true,
        backgroundColor: colour('card'),
        borderColor: colour('line'),
        textStyle: { color: colour('ink'), fontSize: 12.5 },
        transitionDuration: 0,
        ...made.tooltip,
      },
    });
    this.rearrange();
    this.box.setAttribute('aria-label', this.label);
    this.drawLegend(made.series);
    this.at = -1;
  }

  rearrange() {
    if (this.arrange) this.arrange(this.drawn, { ...this.state, narrow: this.wasNarrow });
  }

  drawLegend(series) {
    const names = [...new Set(series.filter((one) => one.name && !one.silentInLegend).map((one) => one.name))];
    this.legend.replaceChildren(
      ...(names.length < 2
        ? []
        : names.map((name) => {
            const one = series.find((candidate) => candidate.name === name);
            const style = one.color || (one.itemStyle && one.itemStyle.color);
            const key = element('span', {
              class: one.type === 'scatter' || one.type === 'bar' ? 'key dot' : 'key',
              'aria-hidden': 'true',
            });
            key.style.background = style;
            return element(
              'button',
              {
                type: 'button',
                'aria-pressed': String(!this.hidden.has(name)),
                on: {
                  click: (event) => {
                    if (this.hidden.has(name)) this.hidden.delete(name);
                    else this.hidden.add(name);
                    event.currentTarget.setAttribute('aria-pressed', String(!this.hidden.has(name)));
                    this.drawn.dispatchAction({ type: 'legendToggleSelect', name });
                  },
                },
              },
              key,
              name,
            );
          })),
    );
  }

  zoom(start, end) {
    const zooms = [this.made.dataZoom || []].flat();
    zooms.forEach((_, dataZoomIndex) => this.drawn.dispatchAction({ type: 'dataZoom', dataZoomIndex, start, end }));
  }

  /** Arrows walk along the values, + and - zoom, 0 shows all. */
  key(event) {
    const option = this.drawn && this.drawn.getOption();
    if (!option) return;
    const zoom = option.dataZoom && option.dataZoom[0];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const seriesIndex = Math.max(
        0,
        option.series.findIndex((one) => !one.silent && (one.data || []).length > 1),
      );
      const length = (option.series[seriesIndex].data || []).length;
      this.at = Math.min(length - 1, Math.max(0, this.at + step));
      this.drawn.dispatchAction({ type: 'showTip', seriesIndex, dataIndex: this.at });
    } else if (event.key === 'Escape') {
      this.drawn.dispatchAction({ type: 'hideTip' });
    } else if (zoom && '+-0='.includes(event.key)) {
      const middle = (zoom.start + zoom.end) / 2;
      const half = event.key === '0' ? 50 : ((zoom.end - zoom.start) / 2) * (event.key === '-' ? 1.6 : 0.6);
      const about = event.key === '0' ? 50 : middle;
      this.zoom(Math.max(0, about - half), Math.min(100, about + half));
    } else return;
    event.preventDefault();
  }
}

const resized = () =>
  charts.forEach((chart) => {
    if (!chart.drawn) return;
    if (chart.narrow !== chart.wasNarrow) chart.draw();
    else {
      chart.drawn.resize();
      chart.rearrange();
    }
  });

const axis = (more) => ({
  axisLine: { lineStyle: { color: colour('line') } },
  axisTick: { lineStyle: { color: colour('line') } },
  splitLine: { lineStyle: { color: colour('grid') } },
  axisLabel: { color: colour('soft'), hideOverlap: true, ...(more.axisLabel || {}) },
  nameTextStyle: { color: colour('soft') },
  nameGap: 26,
  ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== 'axisLabel')),
});
/** A slider below, and the wheel with Ctrl held, so that the page still scrolls. */
const zooms = (more = {}) => [
  {
    type: 'slider',
    height: 18,
    bottom: 6,
    borderColor: colour('line'),
    fillerColor: `${colour('focus')}22`,
    showDetail: false,
    brushSelect: false,
    dataBackground: { lineStyle: { color: colour('line') }, areaStyle: { color: colour('grid') } },
    selectedDataBackground: { lineStyle: { color: colour('other') }, areaStyle: { color: colour('line') } },
    handleStyle: { color: colour('card'), borderColor: colour('soft') },
    moveHandleStyle: { color: colour('line') },
    filterMode: 'none',
    ...more,
  },
  {
    type: 'inside',
    zoomOnMouseWheel: 'ctrl',
    moveOnMouseMove: true,
    moveOnMouseWheel: false,
    filterMode: 'none',
    ...more,
  },
];
/** What is shown under the pointer: a heading and rows of [colour, words]. */
const tip = (heading, rows) =>
  element(
    'div',
    { class: 'tip' },
    element('b', {}, heading),
    rows.map(([key, words]) => {
      const dot = element('span', { class: 'key' });
      dot.style.background = key || 'transparent';
      return element('div', { class: 'row' }, dot, element('span', {}, words));
    }),
  );
/** For each category a bar of each series; `across` is the name of the axis of categories; colours are asked for only when it is drawn. */
const bars = ({ label, height, unit, tick = rate, words = rate, categories, across, head = (name) => name, axisLabel = () => ({}), series, columns, rows }) =>
  new Chart({
    label,
    height,
    option: ({ narrow }) => ({
      grid: { left: narrow ? 58 : 70, right: 18, top: 18, bottom: 58 },
      xAxis: axis({
        type: 'category',
        data: categories,
        name: across,
        nameLocation: 'middle',
        axisLabel: axisLabel(narrow),
      }),
      yAxis: axis({ type: 'value', name: unit, nameLocation: 'middle', nameGap: 52, axisLabel: { formatter: tick } }),
      tooltip: {
        trigger: 'axis',
        axisPointer: { type: 'shadow' },
        formatter: (points) =>
          tip(
            head(points[0].name),
            points.map((point) => [
              point.color,
              `${points.length > 1 ? `${point.seriesName}: ` : ''}${words(point.value)}`,
            ]),
          ),
      },
      series: series().map((one) => ({ type: 'bar', ...one })),
    }),
    columns,
    rows,
  }).node;
/** A heading inside a chart. */
const above = (text, top, narrow) => ({
  text,
  left: 6,
  top,
  textStyle: { fontSize: 13, color: colour('ink'), fontWeight: 600, width: narrow ? 300 : 900, overflow: 'truncate' },
});
