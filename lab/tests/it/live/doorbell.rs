//! A served guest on the real KVM: every loop of the I/O thread answers every request.

use super::alone::{self, Alone, figure, holds, median_us, repeated, say, trial};
use dwell_lab::experiment::doorbell::{IoThreadSetting, Work, block};
use dwell_lab::experiment::{KvmCountsByArm, Rig};
use dwell_lab::gaps::Gaps;
use dwell_policy::Nanos;
use dwell_stats::Block;
use std::sync::atomic::AtomicBool;

const REQUESTS: usize = 300;
const NEITHER: &str = "busy+suppress+guest:fixed=10ms";

fn served(text: &str) -> IoThreadSetting {
    text.parse().unwrap()
}

fn work(requests: usize) -> Work {
    let think = Gaps::open("constant:50us".parse().unwrap(), Nanos::MAX).unwrap();
    Work { think, seed: 1, requests, service: Nanos::from_micros(5) }
}

/// The blocks of some arms, which have answered every request.
struct Blocks(Vec<(&'static str, Block)>);

impl Blocks {
    fn run(rig: &Rig, arms: &[&'static str]) -> Blocks {
        say!(
            "served                                       p50 us  I/O us  sleeps   polls   hits  doorbells  irqs"
        );
        let never = AtomicBool::new(false);
        let run = |arm: &&'static str| {
            let (setting, kept) = (served(arm), &mut KvmCountsByArm::default());
            let block = block(rig, &work(REQUESTS), &trial(arm, &setting), kept, &never).unwrap();
            let of = |name: &str| figure(&block, name);
            say!(
                "{arm:<42} {:>8.1} {:>7.1} {:>7.2} {:>7.2} {:>6.2} {:>10.2} {:>5.2}",
                median_us(&block),
                of("io_cpu_ns_per_request") / 1e3,
                of("sleeps_per_request"),
                of("polls_per_request"),
                of("polls_succeeded_per_request"),
                of("doorbells_per_request"),
                of("interrupts_per_request"),
            );
            assert_eq!(block.samples_ns.len(), REQUESTS, "{arm}");
            let doorbells = of("doorbells_per_request") + of("doorbells_suppressed_per_request");
            assert!((doorbells - 1.0).abs() < 1e-9, "{arm}: {doorbells}");
            (*arm, block)
        };
        Blocks(arms.iter().map(run).collect())
    }

    fn of(&self, arm: &str) -> &Block {
        &self.0.iter().find(|(name, _)| *name == arm).unwrap().1
    }

    fn value(&self, arm: &str, name: &str) -> f64 {
        figure(self.of(arm), name)
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn who_blocks_sleeps_and_who_is_busy_does_not() {
    let test = "who_blocks_sleeps_and_who_is_busy_does_not";
    let Some(Alone { rig, .. }) = &alone::rig(1, test) else { return };
    repeated(test, || {
        let blocks = Blocks::run(rig, &["blocking", "busy", "busy+suppress", NEITHER]);
        assert_eq!(blocks.value("blocking", "polls_per_request"), 0.0);
        assert_eq!(blocks.value("busy", "doorbells_suppressed_per_request"), 0.0);
        assert_eq!(blocks.value("busy+suppress", "doorbells_per_request"), 0.0);
        for busy in ["busy", "busy+suppress", NEITHER] {
            assert_eq!(blocks.value(busy, "sleeps_per_request"), 0.0, "{busy}");
            let succeeded = blocks.value(busy, "polls_succeeded_per_request");
            holds!(succeeded > 0.9, "{busy}: {succeeded}");
        }
        let sleeps = blocks.value("blocking", "sleeps_per_request");
        holds!((0.8..1.2).contains(&sleeps), "{sleeps}");
        let [busy, neither] = ["busy", NEITHER].map(|arm| blocks.value(arm, "interrupts_per_request"));
        holds!(
            busy > 0.9 && neither < 0.1,
            "{busy} interrupts of a request, and {neither} if the guest polls"
        );
        let [neither, blocking] = [NEITHER, "blocking"].map(|arm| median_us(blocks.of(arm)));
        holds!(neither < blocking, "medians of {neither} us and {blocking} us");
        Ok(())
    });
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn policies_sleep_less_than_who_blocks() {
    let test = "policies_sleep_less_than_who_blocks";
    let Some(Alone { rig, .. }) = &alone::rig(1, test) else { return };
    let wide = [
        "adaptive:fixed=10ms",
        "adaptive:aio@7.2,poll_max_ns=10ms",
        "adaptive:aio@10.0,poll_max_ns=10ms",
        "adaptive:aio@11.1,poll_max_ns=10ms",
    ];
    let arms = [&["blocking", "adaptive:never"], &wide[..]].concat();
    repeated(test, || {
        let blocks = Blocks::run(rig, &arms);
        assert_eq!(blocks.value("adaptive:never", "polls_per_request"), 0.0);
        let never = blocks.value("adaptive:never", "sleeps_per_request");
        holds!(never > 0.8, "adaptive:never: {never}");
        let blocking = blocks.value("blocking", "sleeps_per_request");
        for arm in wide {
            let sleeps = blocks.value(arm, "sleeps_per_request");
            holds!(sleeps < 0.5 * blocking, "{arm}: {sleeps} sleeps, {blocking} of who blocks");
            let succeeded = blocks.value(arm, "polls_succeeded_per_request");
            holds!(succeeded > 0.5, "{arm}: {succeeded}");
        }
        Ok(())
    });
}

#[test]
fn a_suppressed_doorbell_is_never_missed() {
    // Windows about as long as the gaps: the I/O thread goes to sleep just when the guest asks. A request
    // whose doorbell was saved and that nobody sees would never be answered, and the block would fail.
    let Some(Alone { rig, .. }) = &alone::rig(1, "a_suppressed_doorbell_is_never_missed") else { return };
    let arms = [
        "adaptive:fixed=49us+suppress+guest:fixed=10ms",
        "adaptive:fixed=50us+suppress+guest:fixed=10ms",
        "adaptive:fixed=51us+suppress+guest:fixed=10ms",
        "adaptive:fixed=60us+suppress",
    ];
    Blocks::run(rig, &arms);
}

#[test]
fn what_is_stopped_ends() {
    alone::ends_when_stopped(&["blocking", "busy", "adaptive:aio@7.2"], |rig, text, stop| {
        let (setting, kept) = (served(text), &mut KvmCountsByArm::default());
        block(rig, &work(3_000), &trial(text, &setting), kept, stop)
    });
}

#[test]
fn what_is_written_is_read_back() {
    for text in ["blocking", "busy+suppress", "adaptive:fixed=32us+guest:always+host:200us", NEITHER] {
        assert_eq!(served(text).to_string(), text);
    }
    let long = served("adaptive:aio@11.1,poll_max_ns=100us + suppress").to_string();
    assert_eq!(served(&long).to_string(), long);
    for (text, told) in [
        ("", "adaptive:POLICY"),
        ("adaptive", "adaptive:POLICY"),
        ("adaptive:aoi", "`aoi` is not a policy"),
        ("blocking+suppress", "needs its doorbell"),
        ("busy+user:never", "halts are handled in the kernel"),
        ("busy+guest", "is not a policy"),
    ] {
        let error = text.parse::<IoThreadSetting>().unwrap_err().to_string();
        assert!(error.contains(told), "{text}: {error}");
    }
}
