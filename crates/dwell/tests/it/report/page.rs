//! The page in a browser.

use super::browser::{Browser, Tab};
use super::inputs::{HOSTILE, Inputs, bundled, done};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dwell_policy::Layer;
use dwell_testing::say;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) const DESKTOP: (u32, u32) = (1280, 900);
pub(crate) const PHONE: (u32, u32) = (360, 740);

/// A browser is a load on a small machine: one at a time.
static ONE: Mutex<()> = Mutex::new(());

pub(crate) fn browser(test: &str) -> Option<(MutexGuard<'static, ()>, Browser)> {
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let started = Browser::start();
    if started.is_none() {
        dwell_testing::skip!("programs", test, "no Chromium");
    }
    started.map(|browser| (alone, browser))
}

/// A report of everything that a report can have.
fn full(inputs: &Inputs) -> Vec<String> {
    let before = inputs.host("before", &["vcpu0", "vcpu1"], 1);
    let after = inputs.host("after", &["vcpu0", "vcpu1"], 2);
    let guest = bundled("guest-mix.parquet");
    let words =
        ["report", &guest, "--before", &before, "--after", &after, "--layer", "host", "--halt-cost", "20us"];
    let words = words.into_iter().map(str::to_owned);
    let more =
        ["--exits", &inputs.exits(), "--measured", &inputs.measured(), "--decisions", &inputs.decisions()];
    let why = ["--why".to_owned(), inputs.why()];
    words.chain(more.map(str::to_owned)).chain(why).collect()
}

fn make(inputs: &Inputs, args: &[String]) -> PathBuf {
    let page = inputs.path("report.html");
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    args.extend(["-o", page.to_str().unwrap(), "--force"]);
    done(&args);
    page
}

pub(crate) fn assert_quiet(tab: &Tab<'_>) {
    assert!(tab.complaints().is_empty(), "{:#?}", tab.complaints());
    for address in tab.requests() {
        assert!(
            ["file:", "data:", "blob:"].iter().any(|own| address.starts_with(own)),
            "asked for {address}"
        );
    }
}

/// How many charts there are; each has to have drawn something.
pub(crate) fn drawn_charts(tab: &mut Tab<'_>) -> usize {
    let marks = tab.value(
        "[...document.querySelectorAll('.chart')].map((box) => [box.getAttribute('aria-label'), \
         box.querySelectorAll('svg path, svg text').length])",
    );
    let marks = marks.as_array().unwrap();
    for mark in marks {
        assert!(mark[1].as_u64().unwrap() >= 12, "not drawn: {mark}");
        assert!(
            mark[0].as_str().is_some_and(|label| label.len() > 10),
            "no words for who cannot see it: {mark}"
        );
    }
    marks.len()
}

/// Where in a chart something is, in the viewport: the middle of the data of the first series that shows any.
const A_VALUE: &str = "(() => {
    const box = document.querySelectorAll('.chart')[NUMBER];
    box.scrollIntoView({ block: 'center', behavior: 'instant' });
    const drawn = echarts.getInstanceByDom(box);
    const { left, top, width, height } = box.getBoundingClientRect();
    const { series, xAxis } = drawn.getOption();
    const upright = (one) => xAxis[one.xAxisIndex || 0].type === 'category';
    for (const [seriesIndex, one] of series.entries()) {
        if (one.silent) continue;
        const data = one.data || [];
        const order = data.map((_, at) => (at + (data.length >> 1)) % data.length);
        for (const at of order) {
            const half = one.type === 'bar' ? data[at] / 2 : data[at];
            const value = Array.isArray(data[at]) ? data[at].slice(0, 2) : upright(one) ? [at, half] : [half, at];
            const place = drawn.convertToPixel({ seriesIndex }, value);
            if (place && place.every(Number.isFinite) && place[0] > 30 && place[1] > 5 && place[0] < width - 5 && place[1] < height - 40)
                return [left + place[0], top + place[1]];
        }
    }
    return null;
})()";

const TIP: &str = "[...document.querySelectorAll('.chart')][NUMBER].querySelector('.tip')?.innerText ?? ''";

/// Points at a value of each chart, and reads what is shown.
pub(crate) fn assert_values_on_hover(tab: &mut Tab<'_>, charts: usize) {
    for number in 0..charts {
        let of = |text: &str| text.replace("NUMBER", &number.to_string());
        let place = tab.value(&of(A_VALUE));
        let (x, y) = (place[0].as_f64(), place[1].as_f64());
        let label = tab.text(&of("document.querySelectorAll('.chart')[NUMBER].getAttribute('aria-label')"));
        let (Some(x), Some(y)) = (x, y) else { panic!("no value to point at: {label}") };
        tab.point(x - 3.0, y - 1.0);
        tab.point(x, y);
        tab.wait(&of("Boolean([...document.querySelectorAll('.chart')][NUMBER].querySelector('.tip'))"));
        let tip = tab.text(&of(TIP));
        assert!(tip.chars().any(|c| c.is_ascii_digit()), "{label}: {tip:?}");
        tab.point(1.0, 1.0);
    }
}

#[test]
fn every_chart_draws_and_tells_its_values_offline_without_an_error() {
    let Some((_alone, mut browser)) = browser("every chart draws") else { return };
    let inputs = Inputs::new();
    let page = make(&inputs, &full(&inputs));
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    let charts = drawn_charts(&mut tab);
    // Ratios, idle times and polls of the pair; costs, front, idle times, polls, timeline, close-up; exits;
    // measured; decisions.
    assert_eq!(charts, 12);
    assert_values_on_hover(&mut tab, charts);
    for number in 0..3 {
        tab.value(&format!("document.querySelectorAll('nav button')[{number}].click()"));
        tab.wait("document.documentElement?.dataset.drawn > 0");
        drawn_charts(&mut tab);
    }
    tab.value("document.getElementById('theme').click()");
    tab.wait("document.documentElement?.dataset.drawn > 0");
    drawn_charts(&mut tab);
    assert_quiet(&tab);
    say!("in Chromium: {charts} charts drawn, each told a value under the pointer");
}

#[test]
fn decisions_are_a_step_line_and_hostile_ones_stay_text() {
    let Some((_alone, mut browser)) = browser("decisions over time") else { return };
    let inputs = Inputs::new();
    let hostile = inputs.write(
        "hostile.json",
        &HOSTILE.map(|name| json!({ "layer": name, "originals": { name: 7 }, "changes": [{ "at_ns": 5, "from": { name: 7 }, "to": { name: 3 }, "cause": name, "reason": name }] }).to_string()).join("\n"),
    );
    let words = [
        "report",
        &bundled("guest-mix.parquet"),
        "--decisions",
        &inputs.decisions(),
        "--decisions",
        &hostile,
    ];
    let page = make(&inputs, &words.map(str::to_owned));
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    tab.value(
        "window.drawn = echarts.getInstanceByDom([...document.querySelectorAll('.chart')].find((box) => /Cost over time/.test(box.getAttribute('aria-label')))); 0",
    );
    let decisions: Value = serde_json::from_slice(&std::fs::read(inputs.decisions()).unwrap()).unwrap();
    let line = tab.value("drawn.getOption().series.find((one) => one.name === 'guest_halt_poll_ns').data");
    let line = line.as_array().unwrap();
    let changes = decisions["changes"].as_array().unwrap();
    assert!(changes.len() >= 2 && line.len() == changes.len() + 2, "{line:?}");
    assert_eq!(line[0], json!([0, decisions["originals"]["guest_halt_poll_ns"]]));
    for (point, change) in line[1..].iter().zip(changes) {
        assert_eq!(point, &json!([change["at_ns"], change["to"]["guest_halt_poll_ns"]]));
    }
    let text = tab.text("document.body.innerText");
    for change in changes {
        assert!(text.contains(change["reason"].as_str().unwrap()), "{text}");
    }
    assert_eq!(tab.value("window.harmed ?? null"), Value::Null);
    assert_quiet(&tab);
    // They may stand alone.
    tab.open(&make(&inputs, &["report", "--decisions", &inputs.decisions()].map(str::to_owned)));
    let alone = tab.text("document.body.innerText");
    assert!(alone.contains(changes[0]["reason"].as_str().unwrap()), "{alone}");
    assert_quiet(&tab);
}

#[test]
fn a_plan_without_a_prediction_has_its_writes() {
    let Some((_alone, mut browser)) = browser("a plan by hand") else { return };
    let inputs = Inputs::new();
    let plan = inputs.write("plan.toml", &dwell_testing::fixture::guest_plan().to_toml().unwrap());
    let mut tab = browser.tab(DESKTOP, "light");
    let words = ["report", &bundled("guest-mix.parquet"), "--plan", &plan];
    tab.open(&make(&inputs, &words.map(str::to_owned)));
    let text = tab.text("document.body.innerText");
    assert!(text.contains("What it writes") && !text.contains("Predicted from the recording"), "{text}");
    assert_quiet(&tab);
}

#[test]
fn lines_can_be_hidden_axes_made_logarithmic_and_charts_zoomed_by_keys() {
    let Some((_alone, mut browser)) = browser("legend, axes, zoom") else { return };
    let inputs = Inputs::new();
    let words =
        ["report", &bundled("guest-memcached_poisson10k.parquet"), "--layer", "host", "--halt-cost", "20us"];
    let page = make(&inputs, &words.map(str::to_owned));
    let mut tab = browser.tab(DESKTOP, "dark");
    tab.open(&page);
    assert_eq!(tab.text("document.documentElement.dataset.theme"), "dark");
    tab.value(
        "window.front = [...document.querySelectorAll('.chart')].find((box) => /Pareto/.test(box.getAttribute('aria-label'))); \
         window.option = () => echarts.getInstanceByDom(front).getOption(); \
         window.press = (words) => [...front.parentNode.querySelectorAll('button')].find((button) => button.textContent === words).click(); 0",
    );
    assert_eq!(tab.text("option().xAxis[0].type"), "value");
    tab.value("press('Log CPU')");
    assert_eq!(tab.text("option().xAxis[0].type"), "log");
    tab.value("press('always')");
    assert_eq!(tab.value("option().legend[0].selected.always"), false);
    tab.value("front.focus()");
    tab.press("+");
    assert!(tab.value("option().dataZoom[0].end - option().dataZoom[0].start").as_f64().unwrap() < 90.0);
    tab.press("0");
    assert_eq!(tab.value("option().dataZoom[0].end - option().dataZoom[0].start"), json!(100));
    tab.press("ArrowRight");
    tab.wait("Boolean(front.querySelector('.tip'))");
    tab.value("front.parentNode.querySelector('summary').click()");
    tab.wait("front.parentNode.querySelectorAll('tbody tr').length > 20");
    assert_quiet(&tab);
}

#[test]
fn what_is_downloaded_is_what_the_program_prints() {
    let Some((_alone, mut browser)) = browser("download") else { return };
    let inputs = Inputs::new();
    let args = full(&inputs);
    let page = make(&inputs, &args);
    let printed = done(&args.iter().map(String::as_str).chain(["--format", "json"]).collect::<Vec<_>>());
    let mut tab = browser.tab(DESKTOP, "light");
    let folder = inputs.path("downloads");
    std::fs::create_dir(&folder).unwrap();
    let allow = json!({ "behavior": "allow", "downloadPath": folder });
    tab.ask("Browser.setDownloadBehavior", &allow);
    tab.open(&page);
    tab.value("document.getElementById('download').click()");
    let file = folder.join("dwell-report.json");
    let began = std::time::Instant::now();
    while !file.exists() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The name appears when the file is complete.
    assert!(std::fs::read(&file).expect("it is downloaded") == printed, "the download differs");
    assert_quiet(&tab);
}

#[test]
fn names_out_of_a_hostile_recording_stay_text() {
    let Some((_alone, mut browser)) = browser("hostile names") else { return };
    let inputs = Inputs::new();
    let recording = inputs.host("<b onmouseover=window.harmed=1>", &HOSTILE, 1);
    let page = make(&inputs, &["report".to_owned(), recording]);
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    let charts = drawn_charts(&mut tab);
    assert_values_on_hover(&mut tab, charts);
    tab.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })");
    assert_eq!(tab.value("window.harmed"), Value::Null);
    assert_eq!(tab.value("document.querySelectorAll('main img, main script, main b[onmouseover], [onerror], [onload]').length"), json!(0));
    let shown = tab.text("document.body.textContent");
    for name in HOSTILE {
        assert!(shown.contains(name), "{name} is not shown as it is");
    }
    assert_quiet(&tab);
}

#[test]
fn a_guest_and_its_host_share_one_axis_of_time() {
    let inputs = Inputs::new();
    let (guest, host) = (inputs.at("guest", Layer::Guest, 0), inputs.at("its-host", Layer::Host, 30_000_000));
    let page = make(&inputs, &["report".to_owned(), guest.clone(), host.clone()]);
    let json: Value = serde_json::from_slice(&done(&["report", &guest, &host, "--format", "json"])).unwrap();
    assert_eq!(json["time_axis"], "common");
    let starts = [0, 1].map(|at| json["recordings"][at]["axis_start_ns"].as_u64().unwrap());
    assert_eq!(starts, [0, 30_000_000]);
    let Some((_alone, mut browser)) = browser("one axis of time") else { return };
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    let axes = tab.value(
        "echarts.getInstanceByDom([...document.querySelectorAll('.chart')].find((box) => /over time/.test( \
         box.getAttribute('aria-label')))).getOption().xAxis.map(({ min, max }) => [min, max])",
    );
    let axes = axes.as_array().unwrap();
    assert_eq!(axes.len(), 4, "windows and idle times of both");
    assert!(axes.iter().all(|axis| axis == &axes[0] && axis[0] == 0), "{axes:?}");
    assert!(axes[0][1].as_u64().unwrap() > 125_000_000, "{axes:?}");
    assert_quiet(&tab);
}

/// Two recordings of the job `a_guest_and_its_host_on_one_timeline` of `cargo test --test box`, Linux 6.12.95
/// in Linux 6.12.95.
#[test]
fn a_nested_guest_and_its_host_are_aligned_by_their_halts() {
    let inputs = Inputs::new();
    let [guest, host] = ["guest", "host"].map(|name| {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/report/nested/{name}.parquet"));
        path.to_str().expect("the path is UTF-8").to_owned()
    });
    let json: Value = serde_json::from_slice(&done(&["report", &guest, &host, "--format", "json"])).unwrap();
    say!("{}", super::timeline::shows_who_polls(&json));
    let page = make(&inputs, &["report".to_owned(), guest, host]);
    let Some((_alone, mut browser)) = browser("a guest and its host") else { return };
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    const CHART: &str = "[...document.querySelectorAll('.chart')].find((box) => /over time/.test(box.getAttribute('aria-label')))";
    let axes = tab.value(&format!("echarts.getInstanceByDom({CHART}).getOption().xAxis.length"));
    assert_eq!(axes, 6, "windows, idle times and counts of both");
    let names =
        tab.value(&format!("echarts.getInstanceByDom({CHART}).getOption().series.map(({{ name }}) => name)"));
    for name in ["window, recorded", "halts", "successful polls"] {
        let of_both = names.as_array().unwrap().iter().filter(|other| *other == name).count();
        assert_eq!(of_both, 2, "{name}: {names}");
    }
    let words = tab
        .text(&format!("{CHART}.closest('section, article, .card')?.innerText ?? document.body.innerText"));
    assert!(words.contains("lie within halts of cpu0"), "{words}");
    let charts = drawn_charts(&mut tab);
    assert_values_on_hover(&mut tab, charts);
    assert_quiet(&tab);
}

#[test]
fn a_change_comes_first_and_lines_can_be_copied() {
    let Some((_alone, mut browser)) = browser("change first, copy") else { return };
    let inputs = Inputs::new();
    let page = make(&inputs, &full(&inputs));
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    assert_eq!(tab.text("document.querySelector('main section').id"), "changed");
    assert!(tab.text("document.querySelector('#changed .advice').textContent").contains("fter the change"));
    assert!(tab.text("document.querySelector('#verdict').textContent").contains("latency that halts add"));
    let words =
        ["report", &bundled("guest-memcached_poisson10k.parquet"), "--layer", "host", "--halt-cost", "20us"];
    let plain = make(&inputs, &words.map(str::to_owned));
    tab.open(&plain);
    let copied = tab.value(
        "[...document.querySelectorAll('#verdict .copyable')].map((one) => { one.closest('details').open = true; \
         one.querySelector('button').click(); return getSelection().toString().trim() === \
         one.querySelector('pre').textContent.trim(); })",
    );
    let copied = copied.as_array().unwrap();
    assert!(copied.len() >= 2 && copied.iter().all(|one| *one == true), "{copied:?}");
    assert_quiet(&tab);
}

/// Chromium prints backgrounds only where the page asks for it, as it is told by default.
#[test]
fn paper_has_the_colours_of_legends_and_what_was_folded() {
    let Some((_alone, mut browser)) = browser("print") else { return };
    let inputs = Inputs::new();
    let page = make(&inputs, &full(&inputs));
    // A page of paper is this wide.
    let mut tab = browser.tab((720, 1000), "dark");
    tab.open(&page);
    let folded = "document.querySelectorAll('details:not([open])').length";
    let before = tab.value(folded).as_u64().unwrap();
    assert!(before > 5, "{before}");
    // The page's own listener is before this one; the colour is none of the page.
    tab.value(
        "addEventListener('beforeprint', () => { \
           window.printed = [document.querySelectorAll('details:not([open])').length, document.documentElement.dataset.theme]; \
           document.querySelector('.legend .key').style.background = '#010203'; \
         }); 0",
    );
    // Nothing scrolls on paper.
    let dark = json!([{ "name": "prefers-color-scheme", "value": "dark" }]);
    tab.ask("Emulation.setEmulatedMedia", &json!({ "media": "print", "features": dark }));
    let cut =
        "[...document.querySelectorAll('pre')].filter((one) => one.scrollWidth > one.clientWidth + 1).length";
    tab.value("document.querySelectorAll('#verdict details').forEach((one) => { one.open = true; })");
    assert!(tab.value("document.querySelectorAll('#verdict pre').length").as_u64().unwrap() >= 2);
    assert_eq!(tab.value(cut), json!(0));
    tab.value("document.querySelectorAll('#verdict details').forEach((one) => { one.open = false; })");
    tab.ask("Emulation.setEmulatedMedia", &json!({ "media": "", "features": dark }));

    let paper = decoded(&tab.ask("Page.printToPDF", &json!({ "printBackground": false })));
    assert_eq!(tab.value("window.printed"), json!([0, "light"]));
    tab.wait("document.documentElement.dataset.theme === 'dark'");
    assert_eq!(tab.value(folded).as_u64(), Some(before));
    let fills = fill_colours(&paper);
    assert!(fills.len() > 5 && fills.contains("1 2 3"), "{fills:?}");
    assert_quiet(&tab);
}

/// The colours with which a PDF fills: red, green and blue, up to 255.
fn fill_colours(pdf: &[u8]) -> BTreeSet<String> {
    let find = |from: usize, what: &[u8]| {
        pdf[from..].windows(what.len()).position(|window| window == what).map(|at| from + at)
    };
    let (mut colours, mut at) = (BTreeSet::new(), 0);
    while let Some(begin) = find(at, b"stream\n").map(|begin| begin + 7) {
        at = find(begin, b"endstream").expect("a stream ends");
        let mut content = vec![];
        // What is no Flate stream is no content.
        let _ = flate2::read::ZlibDecoder::new(&pdf[begin..at]).read_to_end(&mut content);
        for line in String::from_utf8_lossy(&content).lines() {
            let parts: Vec<f64> = line.split_ascii_whitespace().map_while(|part| part.parse().ok()).collect();
            if let ([red, green, blue], true) = (parts.as_slice(), line.ends_with(" rg")) {
                colours.insert([red, green, blue].map(|part| format!("{:.0}", part * 255.0)).join(" "));
            }
        }
        at += 9;
    }
    colours
}

/// Of every chart whose points have labels, which text is over another or beyond the edge of the chart.
const OVERLAPS: &str = "(() => {
    const front = [...document.querySelectorAll('.chart')].find((box) => /Pareto/.test(box.getAttribute('aria-label')));
    const { recordings } = JSON.parse(document.getElementById('data').textContent);
    const roles = new Set(recordings[0].tune.rows.map((row) => row.role.replaceAll('_', ' ')));
    const edge = front.getBoundingClientRect();
    const texts = [...front.querySelectorAll('svg text')].filter((text) => text.textContent.trim());
    const labels = texts.filter((text) => text.textContent.split(/, ?/).filter(Boolean).some((name) => roles.has(name)));
    const place = (text) => text.getBoundingClientRect();
    const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
    const wrong = [];
    for (const label of labels) {
        const here = place(label);
        if (here.left < edge.left || here.right > edge.right || here.top < edge.top) wrong.push(`${label.textContent} is cut`);
        for (const other of texts)
            if (other !== label && over(here, place(other))) wrong.push(`${label.textContent} over ${other.textContent}`);
    }
    return [labels.length, wrong];
})()";

#[test]
fn labels_of_points_do_not_overlap() {
    let Some((_alone, mut browser)) = browser("labels") else { return };
    let inputs = Inputs::new();
    for name in ["guest-memcached_poisson10k", "guest-mix", "guest-redis_c1", "guest-idle"] {
        for layer in ["host", "guest"] {
            let file = bundled(&format!("{name}.parquet"));
            let words = ["report", &file, "--layer", layer, "--halt-cost", "20us"];
            let page = make(&inputs, &words.map(str::to_owned));
            let mut tab = browser.tab(DESKTOP, "light");
            tab.open(&page);
            for toggle in ["", "Log CPU", "Log halts"] {
                tab.value(&format!(
                    "[...document.querySelectorAll('button.toggle')].filter((one) => one.textContent === '{toggle}').forEach((one) => one.click())"
                ));
                let found = tab.value(OVERLAPS);
                assert!(found[0].as_u64().unwrap() >= 2, "{name} {layer} {toggle}: {found}");
                assert_eq!(found[1], json!([]), "{name} {layer} {toggle}");
            }
        }
    }
}

/// Pictures for people, kept by CI; and on a phone nothing sticks out.
#[test]
fn it_fits_a_phone_and_pictures_are_taken() {
    let Some((_alone, mut browser)) = browser("screenshots") else { return };
    let inputs = Inputs::new();
    let change = make(&inputs, &full(&inputs));
    let kept = inputs.path("change.html");
    std::fs::rename(change, &kept).unwrap();
    let words =
        ["report", &bundled("guest-memcached_poisson10k.parquet"), "--layer", "host", "--halt-cost", "20us"];
    let plain = make(&inputs, &words.map(str::to_owned));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("report-screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, page) in [("report", &plain), ("change", &kept)] {
        for (screen, size) in [("desktop", DESKTOP), ("phone", PHONE)] {
            for theme in ["light", "dark"] {
                let mut tab = browser.tab(size, theme);
                tab.open(page);
                let width = tab.value("document.documentElement.scrollWidth");
                assert_eq!(width, json!(size.0), "{name} sticks out on a {screen}");
                let picture = picture(&mut tab);
                std::fs::write(folder.join(format!("{name}-{screen}-{theme}.png")), picture).unwrap();
                assert_quiet(&tab);
            }
        }
    }
    let mut tab = browser.tab(DESKTOP, "dark");
    tab.open(&plain);
    let printed = tab.ask("Page.printToPDF", &json!({ "printBackground": true }));
    let paper = decoded(&printed);
    assert!(paper.starts_with(b"%PDF"));
    std::fs::write(folder.join("report.pdf"), paper).unwrap();
    tab.wait("document.documentElement.dataset.theme === 'dark'");
    drawn_charts(&mut tab);
    assert_quiet(&tab);
    say!("screenshots in {}", folder.display());
}

/// What is in an answer as Base64.
fn decoded(answer: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
}

/// The whole page as PNG.
fn picture(tab: &mut Tab<'_>) -> Vec<u8> {
    let size = tab.ask("Page.getLayoutMetrics", &json!({}))["cssContentSize"].clone();
    let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
    decoded(&tab.ask("Page.captureScreenshot", &json!({ "captureBeyondViewport": true, "clip": clip })))
}

/// The page of a long recording, which `.ci/run` makes out of ten million episodes: below 5 MB beside the
/// chart library, and open within two seconds.
#[test]
#[ignore = "measures time; .ci/long runs it"]
fn the_page_of_a_long_recording_is_small_and_opens_at_once() {
    let page = std::env::var_os("DWELL_LONG_PAGE").map(PathBuf::from).expect("DWELL_LONG_PAGE names a page");
    let Some((_alone, mut browser)) = browser("the page of a long recording") else { return };
    let bytes = std::fs::metadata(&page).unwrap().len();
    let packed = include_bytes!("../../../../report/vendor/echarts/echarts.common.min.js.gz");
    let library =
        std::io::copy(&mut flate2::read::GzDecoder::new(&packed[..]), &mut std::io::sink()).unwrap();
    let least = (0..3).map(|_| {
        let mut tab = browser.tab(DESKTOP, "light");
        let took = tab.open(&page);
        drawn_charts(&mut tab);
        assert_quiet(&tab);
        took
    });
    let least = least.min().unwrap();
    say!("{bytes} bytes, {library} of them the chart library; opened and drawn in {} ms", least.as_millis());
    assert!(bytes - library < 5_000_000);
    assert!(least < Duration::from_secs(2));
}

#[test]
fn shares_of_a_quiet_machine_are_told_apart_on_the_axis() {
    let Some((_alone, mut browser)) = browser("the axis of a quiet machine") else { return };
    let inputs = Inputs::new();
    let mut csv = "start_ns,idle_ns\n".to_owned();
    (0..400u64).for_each(|at| csv += &format!("{},{}\n", at * 5_000_000_000, 4_999_000_000u64));
    let (table, recording) = (inputs.write("quiet.csv", &csv), inputs.text("quiet.parquet"));
    done(&["import", "--as", "csv", &table, "--layer", "guest", "-o", &recording]);
    let page = make(&inputs, &["report", &recording, "--halt-cost", "20us"].map(str::to_owned));
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    let ticks = tab.value(
        "[...[...document.querySelectorAll('.chart')].find((box) => /Cost of every policy/.test(box.getAttribute('aria-label'))).querySelectorAll('svg text')].map((one) => one.textContent).filter((text) => /^[0-9.]+ %$/.test(text))",
    );
    let ticks: BTreeSet<String> =
        ticks.as_array().unwrap().iter().map(|tick| tick.as_str().unwrap().to_owned()).collect();
    assert!(ticks.len() >= 3, "{ticks:?}");
}
