use super::*;
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn planned(words: &[&str]) -> anyhow::Result<(u128, u64)> {
    let cli = Cli::try_parse_from([&["bound"], words].concat())?;
    plan(&cli.args).map(|plan| (plan.interval.as_millis(), plan.count))
}

#[test]
fn intervals_from_what_was_asked() {
    assert_eq!(planned(&[]).unwrap(), (10_000, 1));
    assert_eq!(planned(&["--interval", "1s"]).unwrap(), (1_000, 10));
    assert_eq!(planned(&["--interval", "3s", "--duration", "10s"]).unwrap(), (3_000, 4));
    assert_eq!(planned(&["--interval", "1s", "--count", "3"]).unwrap(), (1_000, 3));
    assert_eq!(planned(&["--count", "3"]).unwrap(), (10_000, 3));
    assert!(planned(&["--interval", "1ms"]).unwrap_err().to_string().contains("10ms"));
    assert!(planned(&["--count", "0"]).is_err());
}

fn example(halts_exact: bool) -> Interval {
    let bound = Bound {
        polls: 9_000,
        polls_succeeded: 3_000,
        polled_ns: 400_000_000,
        wasted_ns: 300_000_000,
        halts: 6_000,
        halts_exact,
        cost_ns: 520_000_000,
        least_cost_ns: 160_000_000,
        gain_ns: 360_000_000,
    };
    let figures = Figures::of(bound, 2_000_000_000);
    let of_vm = |pid| OfVm {
        vm: VmId { pid, fd: 9 },
        process: "qemu".to_owned(),
        source: Some(Source::Debugfs),
        figures,
    };
    Interval {
        at_ns: 2_000_000_000,
        span_ns: 2_000_000_000,
        halt_cost_ns: 20_000,
        ended: 0,
        total: figures,
        vms: vec![of_vm(7), of_vm(8)],
    }
}

#[test]
fn lines_say_what_is_exact_and_what_is_a_bound() {
    assert_eq!(
        line(&example(false), true),
        "    after  CPU polled   success    failed       halts/s          gain  of a CPU\n\
         \x20  2.00 s      20.0 %    33.3 %    75.0 %       <=3,000    <=180 ms/s  <=18.0 %\n"
    );
    assert!(line(&example(true), false).contains("       3,000  "));
}

#[test]
fn page_explains_one_interval() {
    let page = page(&example(true));
    assert!(page.contains("polling CPU        200 ms/s, 20.0 % of a CPU\n"), "{page}");
    assert!(page.contains("  in failed polls  150 ms/s, 75.0 %\n"), "{page}");
    assert!(
        page.contains("gain               at most 180 ms/s, 18.0 % of a CPU, for any setting\n"),
        "{page}"
    );
    assert!(!page.contains("note"));
    let page = super::page(&example(false));
    assert!(page.contains("the bound is loose"));
    let note = page.split("note: ").nth(1).unwrap();
    assert!(note.lines().all(|line| line.len() <= 120), "{note}");
}

#[test]
fn csv_has_one_heading() {
    let first = csv_lines(&example(true), true).unwrap();
    assert!(first.starts_with("at_ns,span_ns,vm,process,polled_share"), "{first}");
    assert_eq!(first.lines().count(), 4);
    let next = csv_lines(&example(true), false).unwrap();
    assert!(next.starts_with("2000000000,2000000000,7-9,qemu,0.2,0.75"), "{next}");
}
