//! Windows of haltpoll that outlast the setting under which they have grown.
//!
//! haltpoll changes a window only after a halt, and makes it shorter only if that lasted longer than the
//! maximum. A poll that sees its wakeup is followed by no halt: under a load whose polls all succeed a window
//! stays as it is, whatever the parameters become. With a divisor of 1, or where it may not shrink, it stays
//! for ever.

use crate::core::pricing::{fresh, play};
use crate::core::sample::Episode;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_replay::Player;
use dwell_replay::causal::maximum;

/// The parameter that bounds the growth of a window.
const MAX: &str = "guest_halt_poll_ns";

/// The longest window that a setting gives \[ns\]; 0 under other rules.
pub(crate) fn longest(setting: &Setting) -> i64 {
    if setting.layer() == Layer::Guest { maximum(setting) } else { 0 }
}

/// What a window is divided by where it becomes shorter: 0 is to nothing, and 1 not at all.
fn divisor(setting: &Setting) -> i64 {
    let value = |name| setting.get(name).unwrap_or(0);
    if value("guest_halt_poll_allow_shrink") == 0 { 1 } else { value("guest_halt_poll_shrink") }
}

/// Whether a window of this length stays for ever though it is longer than any that the setting gives.
pub(crate) fn stays(window_ns: i64, setting: &Setting) -> bool {
    setting.layer() == Layer::Guest && divisor(setting) == 1 && window_ns > longest(setting)
}

/// Whether windows that have grown under one of two settings stay under the other one for ever, so that the
/// two cannot take turns.
pub(crate) fn cannot_take_turns([one, other]: [&Setting; 2]) -> bool {
    stays(longest(one), other) || stays(longest(other), one)
}

/// The longest window that can be left of one of this length after these episodes.
pub(crate) fn longest_left(window_ns: i64, setting: &Setting, episodes: &[Episode]) -> i64 {
    let (longest, divisor) = (longest(setting), divisor(setting));
    let mut left_ns = window_ns.max(longest);
    if divisor == 1 {
        return left_ns;
    }
    for episode in episodes {
        if left_ns == longest {
            break;
        }
        // Even after a poll that long the halt was longer than the maximum.
        let polled_ns = left_ns.saturating_add(episode.idle_loop.poll_step_ns().into());
        if i64::try_from(episode.idle_ns).unwrap_or(i64::MAX) > polled_ns.saturating_add(longest) {
            left_ns = left_ns.checked_div(divisor).unwrap_or(0).max(longest);
        }
    }
    left_ns
}

/// The rule in a CPU whose window has grown to `window_ns`. `None` for other rules.
pub(crate) fn widened(setting: Setting, window_ns: i64) -> Option<Player> {
    if setting.layer() != Layer::Guest {
        return None;
    }
    let mut wide = setting;
    wide.set(MAX, window_ns).ok()?;
    wide.set("guest_halt_poll_grow_start", window_ns).ok()?;
    let mut player = fresh(wide).ok()?;
    // The first growth is to grow_start.
    play(&mut player, Episode::of(u64::try_from(window_ns).ok()?));
    player.set(&setting);
    Some(player)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::Version;
    use proptest::prelude::*;

    fn setting(max: i64, first: i64, shrink: i64, allow: i64) -> Setting {
        let mut setting = Setting::defaults(Layer::Guest, Version::new(6, 12));
        for (name, value) in [
            (MAX, max),
            ("guest_halt_poll_grow_start", first),
            ("guest_halt_poll_shrink", shrink),
            ("guest_halt_poll_allow_shrink", allow),
        ] {
            setting.set(name, value).unwrap();
        }
        setting
    }

    #[test]
    fn a_fixed_window_below_one_that_is_left_stays_too_long() {
        let (default, fixed) = (setting(200_000, 50_000, 2, 1), setting(20_000, 20_000, 1, 1));
        let after_short = setting(20_000, 20_000, 0, 1);
        assert!(stays(200_000, &fixed) && !stays(20_000, &fixed) && !stays(200_000, &after_short));
        assert!(stays(200_000, &setting(20_000, 20_000, 2, 0)));
        assert!(cannot_take_turns([&default, &fixed]) && cannot_take_turns([&fixed, &default]));
        assert!(!cannot_take_turns([&default, &after_short]));
        // The rule itself: under the fixed window it goes on polling for 200 us, and under the other one it does not.
        for (setting, halts) in [(fixed, 0), (after_short, 1)] {
            let mut player = widened(setting, 200_000).unwrap();
            play(&mut player, Episode::of(900_000));
            assert_eq!(play(&mut player, Episode::of(150_000)).halts, halts);
        }
        let host = Setting::defaults(Layer::Host, Version::new(6, 12));
        assert!(!stays(1_000_000, &host) && longest(&host) == 0 && widened(host, 9).is_none());
    }

    proptest! {
        /// No window is longer than the longest that is said to be left.
        #[test]
        fn what_is_left_is_no_longer_than_said(
            window_ns in 1i64..400_000,
            (max, first, shrink, allow) in (0i64..300_000, 0i64..100_000, 0i64..5, 0i64..2),
            lengths in prop::collection::vec(prop_oneof![1u64..30_000, 1u64..800_000], 0..20),
        ) {
            let setting = setting(max, first, shrink, allow);
            let episodes: Vec<Episode> = lengths.into_iter().map(Episode::of).collect();
            let left_ns = longest_left(window_ns, &setting, &episodes);
            let mut player = widened(setting, window_ns).unwrap();
            episodes.iter().for_each(|episode| _ = play(&mut player, *episode));
            let longer = Episode::of(u64::try_from(left_ns).unwrap() + 1);
            prop_assert_eq!(play(&mut player, longer).halts, 1);
        }
    }
}
