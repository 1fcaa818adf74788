//! The page of a recording of timers, in a browser, and the same figures in the other forms.

use super::browser::Browser;
use super::inputs::{Inputs, done};
use super::page::{DESKTOP, PHONE, assert_quiet, assert_values_on_hover, browser, drawn_charts};
use dwell_recording::timer::{Fire, TimerPart, TimerRow};
use dwell_testing::timers::exits_by_interrupts;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const VM: [&str; 10] = [
    "--kernel",
    "5.10.114",
    "--disable-exits",
    "mwait",
    "--pcpu",
    "isolated",
    "--tsc-khz",
    "2000000",
    "--min-gain",
    "0",
];

/// A recording under a name that would be markup, with known delays.
fn recording(inputs: &Inputs) -> PathBuf {
    let mut recording = exits_by_interrupts(2_000, 400);
    recording.metadata.clock = dwell_recording::Clock::Monotonic;
    for timer in &mut recording.rows.timers {
        timer.expires_ns = timer.fired_ns.map(|fired| fired - 1_500);
        timer.entered_ns = timer.fired_ns.map(|fired| fired + 3_000);
    }
    let file = inputs.path("<b>timer.parquet");
    recording.write(&file).unwrap();
    file
}

/// The same vCPU where the timers that fired elsewhere were posted, and everything took twice as long to the guest.
fn posted(inputs: &Inputs) -> PathBuf {
    let mut recording = exits_by_interrupts(2_000, 400);
    recording.metadata.clock = dwell_recording::Clock::Monotonic;
    let lacks = serde_json::json!({ "left_out": ["kvm:kvm_apic"] });
    recording.metadata.other.insert("dwell.tracing".to_owned(), lacks);
    let elsewhere = |timer: &TimerRow| timer.fired_on != timer.vcpu_on;
    let saved: BTreeSet<Option<u64>> =
        recording.rows.timers.iter().filter(|timer| elsewhere(timer)).map(|timer| timer.fired_ns).collect();
    recording
        .rows
        .exits
        .retain(|exit| exit.cause != Some(TimerPart::Fire) || !saved.contains(&Some(exit.start_ns)));
    for timer in &mut recording.rows.timers {
        if elsewhere(timer) {
            timer.fire = Some(Fire::Posted);
        }
        timer.expires_ns = timer.fired_ns.map(|fired| fired - 3_000);
        timer.entered_ns = timer.fired_ns.map(|fired| fired + 6_000);
    }
    let file = inputs.path("posted.parquet");
    recording.write(&file).unwrap();
    file
}

#[test]
fn timers_are_drawn_with_their_exits_and_delays() {
    let Some((_alone, mut browser)) = browser("the page of timers") else { return };
    let inputs = Inputs::new();
    let (file, page) = (recording(&inputs), inputs.path("timer.html"));
    let tune = ["timer", "tune", file.to_str().unwrap(), "--page", page.to_str().unwrap()];
    done(&[tune.as_slice(), &VM].concat());
    // Exits, and both delays.
    let words = ["Exits by reason", "Advice", "pi_inject_timer", "Load of CPUs", "Advance", "<b>timer"];
    assert_page(&mut browser, &page, "light", 3, &words);
}

#[test]
fn before_and_after_are_drawn_beside_each_other() {
    let Some((_alone, mut browser)) = browser("the page of timers before and after") else { return };
    let inputs = Inputs::new();
    let (before, page) = (recording(&inputs), inputs.path("change.html"));
    let after = posted(&inputs);
    let files = [after.to_str().unwrap(), "--before", before.to_str().unwrap()];
    done(&[&["timer", "tune", "--page", page.to_str().unwrap()], files.as_slice(), &VM].concat());
    // Exits, both delays, CPUs.
    let words = ["before: ", "after: ", "Exits by reason", "Load of CPUs", "<b>timer", "posted"];
    assert_page(&mut browser, &page, "dark", 4, &words);
}

/// The page has so many charts and these words, fits the screen, takes no name for markup and reports no error.
fn assert_page(browser: &mut Browser, page: &Path, scheme: &str, charts: usize, words: &[&str]) {
    for size in [DESKTOP, PHONE] {
        let mut tab = browser.tab(size, scheme);
        tab.open(page);
        assert_eq!(drawn_charts(&mut tab), charts);
        if size == DESKTOP {
            assert_values_on_hover(&mut tab, charts);
        }
        let text = tab.text("document.getElementById('main').innerText");
        for words in words {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(tab.value("document.querySelectorAll('main h1 b').length"), 0);
        let wide = tab.value("document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().unwrap() <= 0, "{size:?}: {wide} too wide");
        assert_quiet(&tab);
    }
}

#[test]
fn every_form_has_both_recordings_of_a_change() {
    let inputs = Inputs::new();
    let (before, after) = (recording(&inputs), posted(&inputs));
    let files = [after.to_str().unwrap(), "--before", before.to_str().unwrap()];
    let form = |form: &str| {
        let args = [&["timer", "tune", "--format", form], files.as_slice(), &VM].concat();
        String::from_utf8(done(&args)).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&form("json")).unwrap();
    let exits = |of: &str| &json[of]["recorded"]["reasons"]["EXTERNAL_INTERRUPT"]["exits"];
    assert_eq!((exits("timers_before").as_u64(), exits("timers").as_u64()), (Some(2_000), Some(400)));
    let csv = form("csv");
    assert!(csv.contains("EXTERNAL_INTERRUPT,2000") && csv.lines().count() == 3, "{csv}");
    let text = form("table");
    for words in ["before: ", "after: ", "Exits by reason:", "fired on each CPU:", "How late", "From firing"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    // What a recording lacks is noted beside the other one too.
    assert!(text.contains("posted.parquet: not recorded: kvm:kvm_apic"), "{text}");
}

#[test]
fn every_form_has_the_exits_and_the_delays() {
    let inputs = Inputs::new();
    let file = recording(&inputs);
    let form = |form: &str| {
        let args = ["timer", "tune", file.to_str().unwrap(), "--by-reason", "--format", form];
        let args = [args.as_slice(), VM.as_slice()].concat();
        String::from_utf8(done(&args)).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&form("json")).unwrap();
    let timers = &json;
    assert_eq!(timers["recorded"]["reasons"]["EXTERNAL_INTERRUPT"]["exits"], 2_000);
    assert_eq!(timers["delays"]["fired"][0]["count"], timers["timers"]);
    assert!(timers["delays"]["fired"][0]["from_ns"].as_u64().unwrap() <= 1_500);
    assert!(form("table").contains("Advice: pi_inject_timer"));
    assert!(form("csv").starts_with("reason,"));
}

#[test]
fn facts_are_those_that_the_prediction_uses() {
    let inputs = Inputs::new();
    // Posted timers need APICv.
    let file = posted(&inputs);
    let args = ["timer", "tune", file.to_str().unwrap(), "--apicv", "off", "--format", "json"];
    let found: serde_json::Value = serde_json::from_slice(&done(&[args.as_slice(), &VM].concat())).unwrap();
    let facts = found["facts"].as_array().unwrap();
    let apicv = facts.iter().find(|fact| fact["name"] == "APICv or AVIC").unwrap();
    assert_eq!((&apicv["value"], &apicv["origin"]), (&"on".into(), &"recording".into()), "{found}");
    assert!(found["notes"].to_string().contains("off was given, but the recording shows on"), "{found}");
}

#[test]
fn lengths_of_time_without_timers_are_on_the_axis() {
    let Some((_alone, mut browser)) = browser("the axis of delays") else { return };
    let inputs = Inputs::new();
    let mut timers = exits_by_interrupts(200, 40);
    timers.metadata.clock = dwell_recording::Clock::Monotonic;
    for (number, timer) in timers.rows.timers.iter_mut().enumerate() {
        let late = if number % 2 == 0 { 1_500 } else { 20_000 };
        timer.expires_ns = timer.fired_ns.map(|fired| fired - late);
    }
    let (file, page) = (inputs.path("timers.parquet"), inputs.path("timers.html"));
    timers.write(&file).unwrap();
    let tune = ["timer", "tune", file.to_str().unwrap(), "--page", page.to_str().unwrap()];
    done(&[tune.as_slice(), &VM].concat());
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open(&page);
    let axis = tab.value(
        "(() => { const box = [...document.querySelectorAll('.chart')].find((one) => /How late/.test(one.getAttribute('aria-label'))); \
         return echarts.getInstanceByDom(box).getOption().xAxis[0]; })()",
    );
    assert_eq!(axis["data"], serde_json::json!(["1.02 us", "2.05 us", "4.10 us", "8.19 us", "16.4 us"]));
    assert_eq!(axis["name"], "time, from");
}
