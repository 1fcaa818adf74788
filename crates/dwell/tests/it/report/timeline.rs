//! A guest and its host in one report: the guest polls, then its host, then the guest again.

use serde_json::Value;

/// A time on the axis that both recordings share, and what was recorded in the slice that begins there.
struct Slice {
    from_ns: f64,
    to_ns: f64,
    halts: u64,
    polls_succeeded: u64,
    window_ns: Option<u64>,
}

fn slices(report: &Value, layer: &str) -> Vec<Slice> {
    let recordings = report["recordings"].as_array().expect("a report has recordings");
    let of = |recording: &&Value| recording["info"]["metadata"]["layer"] == layer;
    let recording = recordings.iter().find(of).unwrap_or_else(|| panic!("no recording of the {layer}"));
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number: {value}"));
    let (start_ns, timeline) = (number(&recording["axis_start_ns"]), &recording["figures"]["timeline"]);
    let (slice_ns, idler) = (number(&timeline["slice_ns"]), &timeline["idlers"][0]);
    let count = |what: &str, at: usize| {
        idler["recorded"][what][at].as_u64().unwrap_or_else(|| panic!("{what} {at}: {idler}"))
    };
    let slice = |(at, slice): (usize, &Value)| {
        let from_ns = start_ns + number(slice) * slice_ns;
        Slice {
            from_ns,
            to_ns: from_ns + slice_ns,
            halts: count("halts", at),
            polls_succeeded: count("polls_succeeded", at),
            window_ns: idler["recorded"]["window_mean_ns"][at].as_u64(),
        }
    };
    idler["slice"].as_array().expect("a list of slices").iter().enumerate().map(slice).collect()
}

/// The clocks are aligned by halts, the guest's poll control is seen to switch polling of the host off and
/// on, and what both did is at the same places of the axis. What the report shows, in words.
pub(crate) fn shows_who_polls(report: &Value) -> String {
    assert_eq!(report["time_axis"], "common");
    let alignment = &report["alignment"];
    let figure = |name: &str| alignment[name].as_i64().unwrap_or_else(|| panic!("no {name}: {alignment}"));
    let (within, episodes) = (figure("within"), figure("host_episodes"));
    assert!(episodes > 200 && 100 * within >= 98 * episodes, "{alignment}");
    let exact_ns = figure("shift_most_ns") - figure("shift_least_ns");
    assert!((0..200_000).contains(&exact_ns), "{alignment}");

    let (guest, host) = (slices(report, "guest"), slices(report, "host"));
    // While the host polls, the guest does not: between the first and the last slice without a window.
    let without: Vec<&Slice> =
        guest.iter().filter(|slice| slice.window_ns == Some(0) && slice.halts > 0).collect();
    let polls_of_host: Vec<&Slice> = host.iter().filter(|slice| slice.polls_succeeded > 0).collect();
    assert!(without.len() > 20 && polls_of_host.len() > 20, "{} {}", without.len(), polls_of_host.len());
    let (from_ns, to_ns) = (polls_of_host[0].from_ns, polls_of_host[polls_of_host.len() - 1].to_ns);
    let polled = |slices: &[Slice], inside: bool| {
        let is_in = |slice: &&Slice| (from_ns <= slice.from_ns && slice.to_ns <= to_ns) == inside;
        let sum = |figure: fn(&Slice) -> u64| slices.iter().filter(is_in).map(figure).sum::<u64>();
        (sum(|slice| slice.polls_succeeded), sum(|slice| slice.halts))
    };
    let [guest_in, guest_out, host_in, host_out] =
        [(&guest, true), (&guest, false), (&host, true), (&host, false)]
            .map(|(slices, inside)| polled(slices, inside));
    let words = format!(
        "{within} of {episodes} episodes of the host within halts of the guest, clocks known to {exact_ns} ns; while the host polls, \
         {} successful polls and {} halts of the guest, {} and {} of the host; before and after, {} and {} of the guest, {} and {} of \
         the host",
        guest_in.0, guest_in.1, host_in.0, host_in.1, guest_out.0, guest_out.1, host_out.0, host_out.1
    );
    assert!(host_in.0 > 100 && host_out.0 == 0 && host_out.1 > 100, "{words}");
    assert!(guest_out.0 > 20 && 10 * guest_in.0 < guest_in.1, "{words}");
    words
}
