//! The part of `dwell doctor` about its findings.

use super::Page;
use crate::output;
use dwell_knobs::finding::{Finding, Severity};
use dwell_report::{Column, Table};

pub(super) fn table(findings: &[Finding]) -> Table {
    Table::of(findings)
        .column(Column::text("severity", "severity"), |finding| finding.severity.name())
        .column(Column::text("what", "what"), |finding| finding.what.as_str())
        .column(Column::text("why", "why"), |finding| finding.why.as_str())
        .column(Column::text("remedy", "remedy"), |finding| finding.remedy.as_str())
        .table()
}

pub(super) fn list(page: &mut Page, findings: &[Finding]) {
    page.section("findings");
    if findings.is_empty() {
        page.line("none", "");
    }
    for finding in findings {
        let name = format!("{:<8}", finding.severity.name());
        let name = match finding.severity {
            Severity::Note => name,
            Severity::Warning => page.paint.warning(&name),
            Severity::Danger => page.paint.danger(&name),
        };
        let indent = " ".repeat(11);
        page.text.push_str(&output::hanging(&format!("  {name} "), &indent, &finding.what));
        let further = format!("{indent}     ");
        page.text.push_str(&output::hanging(&format!("{indent}why: "), &further, &finding.why));
        page.text.push_str(&output::hanging(&format!("{indent}do:  "), &further, &finding.remedy));
    }
}
