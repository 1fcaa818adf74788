//! Control of loads that answer to the setting.

mod loops;
mod mixed;

use crate::core::pricing::play;
use crate::core::{Episode, Observed};
use dwell_policy::param::{Param, Setting};
use dwell_replay::Player;

/// The least and the greatest value that the settings give each parameter, in the order of the table of parameters.
pub(crate) fn permitted(settings: &[Setting]) -> Vec<(&'static str, i64, i64)> {
    let Some(first) = settings.first() else { return vec![] };
    let range = |(place, (param, value)): (usize, (&'static Param, i64))| {
        let values = settings.iter().filter_map(|setting| Some(setting.iter().nth(place)?.1));
        let (least, most) =
            values.fold((value, value), |(least, most), value| (least.min(value), most.max(value)));
        (param.name, least, most)
    };
    first.iter().enumerate().map(range).collect()
}

impl Observed {
    /// What a rule does in a period of these episodes, all of them seen.
    pub(crate) fn played(player: &mut Player, episodes: Vec<Episode>) -> Observed {
        let play = |episode: &Episode| play(player, *episode);
        let counted = episodes.iter().map(play).sum();
        Observed::new(7, counted, episodes)
    }
}
