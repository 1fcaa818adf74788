//! A layer from its recording to the reverted change: what dwell predicts, sets, measures and puts back,
//! beside what the kernel itself counts.

use crate::counted::Counted;
use crate::machine::{Job, Ran};
use dwell_testing::say;
use std::time::Instant;

/// A layer and the load under which it is recorded.
pub(crate) struct Cycle<'a> {
    pub(crate) layer: &'a str,
    /// Shell: what is done first, and the load, which runs on.
    pub(crate) load: &'a str,
    /// How long it is recorded.
    pub(crate) record: &'a str,
    /// Options of `dwell tune`.
    pub(crate) tune: &'a str,
    /// Options of `dwell verify`.
    pub(crate) verify: &'a str,
    /// Shell: what else is done while the change is applied.
    pub(crate) applied: &'a str,
    /// The files in which the kernel counts polls: what is in their paths and how these end.
    pub(crate) polls: (&'a str, &'a str),
}

impl Cycle<'_> {
    /// Runs it in the machine of `job`; the error is the cause why it cannot run here.
    pub(crate) fn run(&self, test: &str, job: Job<'_>) -> Result<Ran, String> {
        let Cycle { layer, load, record, tune, verify, applied, .. } = self;
        let script = format!(
            "
            {load}
            sleep 0.1
            counted begun
            sleep 0.1
            counted before
            keep record dwell record {layer} --duration {record} -o /out/{layer}.parquet
            keep tune.json dwell tune /out/{layer}.parquet {tune} --plan /out/plan.toml --format json
            keep apply.json dwell apply /out/plan.toml --format json
            sleep 0.2
            counted applied
            sleep 0.1
            counted later
            keep status.json dwell status --format json
            {applied}
            keep verify.json dwell verify {verify} --format json
            keep revert.json dwell revert --format json
            sleep 0.2
            counted reverted
            sleep 0.1
            counted ended
            keep history.json dwell status --history --format json
        "
        );
        let begun = Instant::now();
        let ran = Job { script: &script, ..job }.run(test)?;
        for command in
            ["record", "tune.json", "apply.json", "status.json", "verify.json", "revert.json", "history.json"]
        {
            ran.succeeded(command);
        }
        say!("{test}: {}", ran.json("tune.json")["advice"].as_str().unwrap_or_default());

        // What was written is what was advised, and what was restored is what was there.
        let parameters = |when: &str| Counted::of(&ran, when).parameters;
        assert_ne!(parameters("applied"), parameters("begun"));
        assert_eq!(parameters("later"), parameters("applied"));
        assert_eq!(parameters("reverted"), parameters("begun"));
        let places = ran.json("status.json")[0]["places"].as_array().cloned().unwrap_or_default();
        assert!(
            !places.is_empty() && places.iter().all(|place| place["standing"] == "in_force"),
            "{places:?}"
        );
        assert_eq!(ran.json("history.json")[0]["state"], "reverted");

        // The plan is for less cost: here, fewer polls that fail. The kernel counts them itself.
        let (begin, end) = self.polls;
        let polls_per_s = [("begun", "before"), ("applied", "later"), ("reverted", "ended")]
            .map(|(from, to)| Counted::of(&ran, from).per_s(&Counted::of(&ran, to), begin, end));
        let [before, after, back] = polls_per_s;
        let verify = ran.json("verify.json");
        let verdict = verify["verdict"].as_str().unwrap_or_default();
        let rounds = verify["rounds"].as_u64().unwrap_or(0);
        say!(
            "{test}: {before:.0} polls/s before, {after:.0} applied, {back:.0} reverted; verify: {verdict} in {rounds} rounds; {:.0} s",
            begun.elapsed().as_secs_f64()
        );
        assert!(["confirmed", "not_as_predicted"].contains(&verdict) && rounds >= 6, "{verify}");
        assert!((before - after).abs() > 0.1 * before, "{before} {after}");
        // How long windows are depends on those before them, so that the same setting polls more or less often.
        assert!((back - after).abs() > 0.1 * before, "{after} {back}");
        Ok(ran)
    }
}
