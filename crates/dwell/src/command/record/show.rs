//! What was recorded, as text and tables.

use super::{Idler, Recorded};
use crate::output;
use crate::progress::per_second;
use dwell_report::{Column, Table, count, duration, number_of};
use dwell_trace::import::quoted;

/// At most this many idlers are listed.
const LISTED: usize = 10;

pub(super) fn words(recorded: &Recorded) -> String {
    let seconds = recorded.elapsed_ns as f64 / 1e9;
    let mut text = output::wrapped(&format!(
        "{}: {} in {}, {} per second; {} events, {}{} lost",
        recorded.output,
        crate::model::episodes_of(recorded.episodes, recorded.idlers.len()),
        duration(recorded.elapsed_ns as f64),
        per_second(recorded.episodes, seconds),
        count(recorded.events.into()),
        if recorded.lost_at_least { "at least " } else { "" },
        count(recorded.lost_events.into()),
    ));
    let mut by_rate: Vec<&Idler> = recorded.idlers.iter().collect();
    by_rate.sort_by_key(|idler| std::cmp::Reverse(idler.episodes));
    for idler in by_rate.iter().take(LISTED) {
        text += &format!("  {}: {}\n", idler.name, crate::model::episodes(idler.episodes));
    }
    if by_rate.len() > LISTED {
        text += &format!("  and {} more\n", by_rate.len() - LISTED);
    }
    for loss in &recorded.lost_by_cpu {
        text += &format!("  {} events lost on CPU {}\n", count(loss.events.into()), loss.cpu);
    }
    if recorded.incomplete_episodes > 0 {
        let number = number_of(recorded.incomplete_episodes.into(), "incomplete episode");
        text += &format!("  {number} left out (start or end not recorded)\n");
    }
    text + &match crate::model::too_few(recorded.episodes) {
        _ if recorded.is_sketch => {
            "next: dwell fleet FOLDER, with the sketches of all VMs in it\n".to_owned()
        }
        Some(few) => output::wrapped(&format!("note: {few}; record for longer, or under load")),
        None => format!("next: dwell tune {}\n", quoted(&recorded.output)),
    }
}

/// One row per idler; figures of the whole recording are repeated in each.
pub(super) fn table(recorded: &Recorded) -> Table {
    Table::of(&recorded.idlers)
        .column(Column::text("output", "output"), |_| recorded.output.clone())
        .column(Column::text("layer", "layer"), |_| recorded.layer)
        .column(Column::text("idler", "idler"), |idler| idler.name.clone())
        .column(Column::number("episodes", "episodes"), |idler| idler.episodes)
        .column(Column::number("elapsed_ns", "elapsed_ns"), |_| recorded.elapsed_ns)
        .column(Column::number("events", "events"), |_| recorded.events)
        .column(Column::number("lost_events", "lost_events"), |_| recorded.lost_events)
        .column(Column::number("incomplete_episodes", "incomplete_episodes"), |_| {
            recorded.incomplete_episodes
        })
        .table()
}

/// Why nothing was recorded.
pub(super) fn nothing(layer: &str) -> &'static str {
    match layer {
        "host" => "no vCPU halted; is a VM running? its vCPUs may be busy, or idle without exits",
        "guest" => "every CPU was busy; record for longer",
        _ => "no such thread waited in poll, ppoll, epoll, select or io_uring_enter",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_replay::tune::MIN_EPISODES;

    #[test]
    fn what_follows_depends_on_how_much_was_recorded() {
        let text = |episodes| {
            let recorded = Recorded {
                output: "a b.parquet".to_owned(),
                layer: "guest",
                is_sketch: false,
                elapsed_ns: 5_000_000_000,
                events: 9,
                lost_events: 0,
                lost_at_least: false,
                lost_by_cpu: vec![],
                episodes,
                incomplete_episodes: 0,
                span_ns: 1,
                idlers: vec![],
            };
            words(&recorded).split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let (few, enough) = (text(MIN_EPISODES - 1), text(MIN_EPISODES));
        assert!(few.ends_with("are needed; record for longer, or under load"), "{few}");
        assert!(enough.ends_with(" next: dwell tune 'a b.parquet'"), "{enough}");
    }
}
