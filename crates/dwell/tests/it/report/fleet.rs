//! The page of a fleet, in a browser.

use super::inputs::{Inputs, bundled, done};
use super::page::{DESKTOP, PHONE, assert_quiet, assert_values_on_hover, browser, drawn_charts};
use std::path::PathBuf;

/// The page of the bundled recordings of guests, of two classes, with one that is none.
fn page(inputs: &Inputs, halt_cost: &str) -> PathBuf {
    let folder = inputs.path("fleet");
    std::fs::create_dir(&folder).unwrap();
    let mut classes = "vm,class\n".to_owned();
    for name in ["redis_c1", "redis_poisson5k", "idle", "nginx_wrk1", "fio_qd1", "mix"] {
        let name = format!("guest-{name}");
        std::fs::copy(bundled(&format!("{name}.parquet")), folder.join(format!("{name}.parquet"))).unwrap();
        classes += &format!("{name},{}\n", if name.contains("redis") { "redis" } else { "<b>other</b>" });
    }
    std::fs::write(folder.join("bad.parquet"), "no recording").unwrap();
    let (page, table) = (inputs.path("fleet.html"), inputs.write("classes.csv", &classes));
    let folder = folder.to_str().unwrap();
    let options = ["--class", &table, "--held-out", "0", "--halt-cost", halt_cost, "--report"];
    done(&[&["fleet", folder], &options[..], &[page.to_str().unwrap()]].concat());
    page
}

#[test]
fn where_halts_are_free_no_regret_is_drawn() {
    let Some((_alone, mut browser)) = browser("the page of a fleet") else { return };
    let inputs = Inputs::new();
    let page = page(&inputs, "0");
    let mut tab = browser.tab(DESKTOP, "light");
    tab.open_until(&page, "document.getElementById('main')?.innerText.includes('bad.parquet')");
    let text = tab.text("document.getElementById('main').innerText");
    assert!(!text.contains("Regret of the VMs"), "{text}");
    assert!(!tab.text("document.getElementById('main').textContent").contains("NaN"));
    assert_quiet(&tab);
}

#[test]
fn a_fleet_is_drawn_and_its_worst_vms_are_named() {
    let Some((_alone, mut browser)) = browser("the page of a fleet") else { return };
    let inputs = Inputs::new();
    let page = page(&inputs, "20us");
    for size in [DESKTOP, PHONE] {
        let mut tab = browser.tab(size, "light");
        tab.open(&page);
        // Totals and regrets.
        let charts = drawn_charts(&mut tab);
        assert_eq!(charts, 2);
        if size == DESKTOP {
            assert_values_on_hover(&mut tab, charts);
        }
        let text = tab.text("document.getElementById('main').innerText");
        let words =
            ["own best", "1 setting", "1 a class", "guest-redis_c1", "bad.parquet", "VMs that lose most"];
        for words in words {
            assert!(text.contains(words), "{words}: {text}");
        }
        // Ticks of ratios are told apart.
        let ticks = tab.value("[...document.querySelectorAll('.chart')].map((box) => [...box.querySelectorAll('svg text')].map((one) => one.textContent).filter((text) => /^[0-9.,]+$/.test(text)))");
        for ticks in ticks.as_array().unwrap() {
            let ticks: Vec<&str> =
                ticks.as_array().unwrap().iter().map(|tick| tick.as_str().unwrap()).collect();
            let beside = ticks.windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert_eq!(beside, 0, "{ticks:?}");
        }
        // Names of classes stay text.
        assert!(text.contains("<b>other</b>"), "{text}");
        assert_eq!(tab.value("document.querySelectorAll('main td b').length"), 0);
        let wide = tab.value("document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().unwrap() <= 0, "{size:?}: {wide} too wide");
        assert_quiet(&tab);
    }
}
