//! The recording that a guest of the lab has made of itself: what ran on its two CPUs and what woke it, as `dwell record guest`
//! has them of a Linux guest.

use super::{LabError, Rig};
use crate::guest::pingpong::Exchanged;
use crate::host::{Tsc, monotonic};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::{
    Cause, Clock, Episode, IdleIncludes, Metadata, Packing, REALTIME_OFFSET, Reader, Segment, Segments,
    SettingValue, SettingsChange, Writer,
};

/// When something was, by CLOCK_MONOTONIC.
pub(super) struct Monotonic<'a> {
    rig: &'a Rig,
    at: (Tsc, u64),
}

impl<'a> Monotonic<'a> {
    pub(super) fn now(rig: &'a Rig) -> Monotonic<'a> {
        Monotonic { rig, at: (Tsc::now(), monotonic().get()) }
    }

    fn ns(&self, cycles: u64) -> u64 {
        let (tsc, ns) = self.at;
        match tsc.0.checked_sub(cycles) {
            Some(earlier) => ns.saturating_sub(self.rig.nanos(earlier)),
            None => ns.saturating_add(self.rig.nanos(cycles - tsc.0)),
        }
    }
}

/// Of the server and the other one, who wait for each other, under a setting of haltpoll above the host of this recording.
pub(super) fn recording(
    players: &[Vec<Exchanged>; 2],
    clock: &Monotonic<'_>,
    setting: &Setting,
    host: &Metadata,
) -> Result<Reader, LabError> {
    let mut metadata = Metadata::new(Layer::Guest);
    metadata.source.tool = "dwell-lab pingpong".to_owned();
    metadata.idle_includes = IdleIncludes::Wake;
    metadata.clock = Clock::Monotonic;
    metadata.kernel.clone_from(&host.kernel);
    metadata
        .other
        .extend(host.other.get_key_value(REALTIME_OFFSET).map(|(key, value)| (key.clone(), value.clone())));
    let values = setting.iter().map(|(param, value)| (param.name.to_owned(), SettingValue::Negative(value)));
    metadata.settings.push(SettingsChange {
        at_ns: None,
        owner: Layer::Guest.into(),
        values: values.collect(),
    });
    let mut writer = Writer::new(vec![], metadata, Packing::default())?;
    for (cpu, player) in players.iter().enumerate() {
        let name = format!("cpu{cpu}");
        for did in player.iter().filter(|did| did.woke > did.waited) {
            let [waited_ns, woke_ns] = [did.waited, did.woke].map(|cycles| clock.ns(cycles));
            let halted = Some(did.halted);
            writer.push(&Episode {
                halted,
                ..Episode::new(&*name, waited_ns, woke_ns.saturating_sub(waited_ns))
            })?;
        }
    }
    writer.set_segments(segments(players, clock));
    let (_, bytes) = writer.close()?;
    Ok(Reader::from_bytes("the guest's recording", bytes)?)
}

/// Each player runs from one wakeup to its next wait, woken by what the other sent.
fn segments([server, other]: &[Vec<Exchanged>; 2], clock: &Monotonic<'_>) -> Segments {
    let mut rows: Vec<Segment> = vec![];
    let mut sent_ns = None;
    let mut add = |task: u32, woke: u64, halted: bool, sends: u64, waits: u64| {
        // The counters of two CPUs may differ by a few cycles.
        let start_ns = clock.ns(woke).max(rows.last().map_or(0, |row| row.start_ns));
        let waker = rows.len().checked_sub(1);
        let cause = waker.zip(sent_ns).and_then(|(place, sent_ns): (usize, u64)| {
            let by = &rows[place];
            let offset_ns = sent_ns.saturating_sub(by.start_ns);
            Some(Cause::Task { waker: u32::try_from(place).ok()?, offset_ns })
        });
        let run_ns = clock.ns(waits).saturating_sub(start_ns);
        let cause = cause.unwrap_or(Cause::Unknown);
        rows.push(Segment { task, cpu: task, start_ns, run_ns, cause, halted: Some(halted), idle: None });
        sent_ns = Some(clock.ns(sends));
    };
    for (mine, its) in server.windows(2).zip(other.windows(2)) {
        let ([before, after], [it, next]) = (mine, its) else { continue };
        add(1, it.woke, it.halted, it.sent, next.waited);
        add(0, before.woke, before.halted, after.sent, after.waited);
    }
    Segments { tasks: vec!["serve/0".to_owned(), "reply/1".to_owned()], rows, ..Segments::default() }
}
