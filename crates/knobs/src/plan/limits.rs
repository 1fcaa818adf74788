//! How long the texts and lists of a plan may be. They come from recordings and from people, and go into the journal.

use super::{Plan, PlanError, RecordingFacts};

/// The longest text for people, and the longest name \[characters\].
const LONGEST_TEXT: usize = 400;
/// The idlers that are listed by name.
const MOST_IDLERS: usize = 64;
/// The quantiles that are kept.
const MOST_QUANTILES: usize = 64;

/// Cuts a text to so many characters, with `…` for what is left out.
pub(crate) fn shorten(text: &mut String, most: usize) {
    if let Some((at, _)) = text.char_indices().nth(most) {
        text.truncate(at);
        text.push('…');
    }
}

impl Plan {
    /// With texts and lists of bounded length: what is longer is cut, and of the idlers the first are listed
    /// and the rest are counted in [`RecordingFacts::more_idlers`].
    #[must_use]
    pub fn bounded(mut self) -> Plan {
        let Plan { tool, version, advice, conditions, recording, writes, .. } = &mut self;
        let RecordingFacts { file, idlers, more_idlers, quantiles, .. } = recording;
        *more_idlers += idlers.len().saturating_sub(MOST_IDLERS) as u64;
        idlers.truncate(MOST_IDLERS);
        quantiles.truncate(MOST_QUANTILES);
        let optional = [&mut conditions.kernel, &mut conditions.qemu, &mut conditions.cpu_model];
        let texts = [tool, version, advice, file];
        let whys = writes.iter_mut().filter_map(|write| write.why.as_mut());
        let all = texts.into_iter().chain(optional.into_iter().flatten()).chain(idlers).chain(whys);
        all.for_each(|text| shorten(text, LONGEST_TEXT));
        self
    }

    /// Names are used as they are, so they cannot be cut.
    pub(super) fn check_names(&self) -> Result<(), PlanError> {
        let Some(target) = &self.iothread else { return Ok(()) };
        let names = [Some(&*target.socket), Some(&*target.id), target.domain.as_deref()];
        match names.into_iter().flatten().all(|name| name.chars().nth(LONGEST_TEXT).is_none()) {
            true => Ok(()),
            false => Err(PlanError::Syntax(format!(
                "a name of [iothread] is longer than {LONGEST_TEXT} characters"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::guest_plan;

    #[test]
    fn what_a_plan_takes_over_is_bounded() {
        let mut plan = guest_plan(&[("guest_halt_poll_ns", 50_000)]);
        plan.advice = "ä".repeat(2_000_000);
        plan.conditions.cpu_model = Some("x".repeat(1_100_000));
        plan.recording.idlers = (0..60_000).map(|n| format!("cpu{n}")).collect();
        let bounded = plan.bounded();
        assert_eq!((bounded.recording.idlers.len(), bounded.recording.more_idlers), (64, 59_936));
        assert!(bounded.advice.ends_with('…'));
        assert!(bounded.to_toml().unwrap().len() < 10_000);
        assert_eq!(bounded.clone().bounded(), bounded);
    }
}
