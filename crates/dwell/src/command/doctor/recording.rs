//! The part of `dwell doctor` about what can be recorded.

use super::{LABEL, Page, known, list};
use crate::output;
use dwell_capture::doctor::{Bpf, Facilities, Mounted, Perf, Recorder, Support};

pub(super) fn facilities(page: &mut Page, facilities: &Facilities) {
    page.section("facilities");
    let user = facilities.euid.map_or_else(|| "not known".to_owned(), |uid| uid.to_string());
    page.line("user", &format!("{user}, with {}", list(&facilities.capabilities)));
    for (name, mounted) in [("tracefs", &facilities.tracefs), ("debugfs", &facilities.debugfs)] {
        let state = match mounted {
            Mounted::Unknown if facilities.perf == Perf::NotAsked => "not known".to_owned(),
            Mounted::Unknown => "not in this kernel".to_owned(),
            Mounted::No if facilities.may_mount() => {
                "not mounted; dwell opens one of its own, which no other program sees".to_owned()
            }
            Mounted::No => "not mounted".to_owned(),
            Mounted::Denied { at } => format!("{at}, not readable by this user"),
            Mounted::At { at } => at.clone(),
        };
        page.line(name, &state);
    }
    let perf = match facilities.perf {
        Perf::Allowed => "all tasks may be traced",
        Perf::Denied => "not permitted for all tasks",
        Perf::Missing => "not in this kernel, or hidden",
        Perf::NotAsked => "not asked",
    };
    let paranoid = facilities.perf_event_paranoid.map_or_else(|| "-".to_owned(), |level| level.to_string());
    page.line("perf", &format!("{perf} (kernel.perf_event_paranoid = {paranoid})"));
    let btf = if facilities.perf == Perf::NotAsked && !facilities.btf { None } else { Some(facilities.btf) };
    page.line("kernel type information (BTF)", known(btf));
    let bpf = match &facilities.bpf {
        Bpf::Allowed { left_out } if left_out.is_empty() => "programs can be loaded".to_owned(),
        Bpf::Allowed { left_out } => format!("programs can be loaded, but not for {}", left_out.join(", ")),
        Bpf::Refused { why } => why.clone(),
        Bpf::NotAsked => "not asked".to_owned(),
    };
    page.line("BPF", &bpf);
}

pub(super) fn recorders(page: &mut Page, recorders: &[Recorder]) {
    page.section("what can be recorded");
    for recorder in recorders {
        let (verdict, painted) = match recorder.verdict {
            Support::Yes => ("yes", page.paint.good("yes")),
            Support::Partly => ("partly", page.paint.warning("partly")),
            Support::No => ("no", page.paint.danger("no")),
            Support::NotKnown => ("not known", page.paint.warning("not known")),
        };
        // Painted after the lines are broken, as colours have no width.
        let indent = " ".repeat(LABEL + 3);
        let lines = output::hanging(&indent, &indent, &format!("{verdict}: {}", recorder.about));
        let (_, after) = lines.split_at(indent.len() + verdict.len());
        page.text.push_str(&format!("  {:<LABEL$} {painted}{after}", format!("dwell {}", recorder.name)));
        // That of a copy is the same for all.
        for obstacle in recorder.obstacles.iter().filter(|_| recorder.verdict != Support::NotKnown) {
            page.line("", &obstacle.what);
            page.line("", &format!("-> {}", obstacle.remedy));
        }
    }
}
