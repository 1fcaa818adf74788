//! Prints the window that each policy has for each of the idle times that are given:
//!
//! `cargo run -p dwell-policy --example window -- 50us 15us 1ms`

use dwell_policy::guest::Haltpoll;
use dwell_policy::host::HaltPoll;
use dwell_policy::leader::Leader;
use dwell_policy::savings::Savings;
use dwell_policy::version::Version;
use dwell_policy::{Nanos, Outcome, Policy, guest, host};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let linux = Version::new(6, 18);
    let halt_cost = Nanos::from_micros(20);
    let (kvm, haltpoll) = (host::Revision::of(linux)?, guest::Revision::of(linux)?);
    let mut policies: [(&str, Box<dyn Policy>); 4] = [
        ("kvm", Box::new(HaltPoll::new(kvm, host::Params::default_for(kvm)))),
        ("haltpoll", Box::new(Haltpoll::new(haltpoll, guest::Params::default()))),
        ("savings", Box::new(Savings::new(halt_cost))),
        ("leader", Box::new(Leader::new(halt_cost))),
    ];
    print!("{:>10}", "idle");
    policies.iter().for_each(|(name, _)| print!("{name:>10}"));
    println!();
    for argument in std::env::args().skip(1) {
        let idle: Nanos = argument.parse()?;
        print!("{argument:>10}");
        for (_, policy) in &mut policies {
            print!("{:>10}", policy.window().0);
            policy.observe(Outcome::of(idle));
        }
        println!();
    }
    Ok(())
}
