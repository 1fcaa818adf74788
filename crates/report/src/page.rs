//! One self-contained page: markup, style, script, chart library and data in one file that loads nothing else.
//!
//! The page shows recordings, or, where the data has a `fleet`, choices for many VMs, or with `timers` a
//! recording of timers. The data of a report goes in as the JSON text that `dwell report --format json`
//! prints, byte for byte, so that what the page offers as a download is the same. The script builds all text
//! through the DOM and never as markup; names out of a hostile recording stay text. A content security policy
//! forbids every request, and every script but the two that are here.
//!
//! The charts are drawn by Apache ECharts; `vendor/echarts` has the official minified build, its licence and origin.

use crate::harmless;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::io;
use std::sync::LazyLock;

const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// One script in one scope, in an order in which each part finds what it needs.
const SCRIPT: &str = concat!(
    "'use strict';\n(() => {\n",
    include_str!("page/data.js"),
    include_str!("page/quantity.js"),
    include_str!("page/element.js"),
    include_str!("page/chart.js"),
    include_str!("page/recording.js"),
    include_str!("page/cost.js"),
    include_str!("page/idle.js"),
    include_str!("page/polls.js"),
    include_str!("page/time.js"),
    include_str!("page/activity.js"),
    include_str!("page/proof.js"),
    include_str!("page/decisions.js"),
    include_str!("page/provenance.js"),
    include_str!("page/fleet.js"),
    include_str!("page/timer.js"),
    include_str!("page/page.js"),
    "})();\n",
);
/// The chart library. Packed it takes a third of its size, which would be a twentieth of the program.
static LIBRARY: LazyLock<String> = LazyLock::new(|| {
    let packed: &[u8] = include_bytes!("../vendor/echarts/echarts.common.min.js.gz");
    io::read_to_string(GzDecoder::new(packed)).expect("a test reads it")
});

/// JSON for a page: the one character that could end its element, and those that steer a terminal or an
/// editor, are written as escapes, which mean the same to every reader of JSON.
pub fn embeddable(json: &str) -> String {
    harmless::json(json, |c| c == '<')
}

/// The page that shows a report. `json` is its figures, made [`embeddable`].
///
/// ```
/// let json = dwell_report::page::embeddable(r#"{"recordings": [], "note": "</script>"}"#);
/// let page = dwell_report::page::page("a < b", &json);
/// assert!(page.contains("<title>a &lt; b</title>") && !page.contains(r#""</script>""#));
/// ```
pub fn page(title: &str, json: &str) -> String {
    let title = harmless::line(title).replace('&', "&amp;").replace('<', "&lt;");
    let policy = policy();
    let fill = |name: &str| match name {
        "title" => &title,
        "policy" => &policy,
        "style" => STYLE,
        "data" => json,
        "library" => &LIBRARY,
        "script" => SCRIPT,
        _ => "",
    };
    let mut page =
        String::with_capacity(TEMPLATE.len() + STYLE.len() + SCRIPT.len() + LIBRARY.len() + json.len());
    let mut parts = TEMPLATE.split("{{");
    page.extend(parts.next());
    for part in parts {
        let (name, after) = part.split_once("}}").unwrap_or((part, ""));
        page.push_str(fill(name));
        page.push_str(after);
    }
    page
}

/// Nothing from elsewhere, no script but ours. The chart library sets styles of its own on what it draws.
fn policy() -> String {
    let allowed = |script: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(script)));
    format!(
        "default-src 'none'; script-src {} {}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'",
        allowed(&LIBRARY),
        allowed(SCRIPT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is recorded in `vendor/echarts/README.md`.
    const CHECKSUM: &str = "61f13280aba3161f77fc801bf5f9c786f55f10432153a0683fc5cc0700b013d5";

    #[test]
    fn the_chart_library_is_the_one_that_is_documented() {
        let sum: String =
            Sha256::digest(LIBRARY.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum, CHECKSUM);
        assert!(include_str!("../vendor/echarts/README.md").contains(CHECKSUM));
    }

    #[test]
    fn no_script_ends_its_own_element() {
        for text in [LIBRARY.as_str(), SCRIPT] {
            let lower = text.to_ascii_lowercase();
            assert!(!lower.contains("</script") && !lower.contains("<!--"));
            // The browser hashes a script after it has made line ends one character.
            assert!(!text.contains('\r'));
        }
        assert!(!STYLE.contains("</"));
    }

    #[test]
    fn data_cannot_leave_its_element_and_is_no_template() {
        let json = embeddable(r#"{"a": "</script><script>alert(1)</script>{{style}}"}"#);
        let page = page("<b>{{data}}", &json);
        assert_eq!(page.matches("<script").count(), 3);
        assert_eq!(page.matches("</script>").count(), 3);
        assert!(page.contains("<title>&lt;b>{{data}}</title>"));
        assert!(page.contains("{{style}}"));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["a"], "</script><script>alert(1)</script>{{style}}");
    }

    #[test]
    fn nothing_is_asked_of_anybody() {
        let page = page("x", "{}").replace(LIBRARY.as_str(), "");
        for attribute in ["src=", "href=", "url(", "@import", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(attribute), "{attribute}");
        }
    }
}
