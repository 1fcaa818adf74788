//! Lets one of the benchmarked policies live through episodes, for a look at it with other tools:
//!
//! `cargo run --release -p dwell-testing --features learners --example learners -- leader 100000`
//!
//! `.ci/instructions` runs this under callgrind and prints the instructions of each policy for one episode.

use dwell_policy::Policy;
use dwell_testing::learners::{Measure, Stream, each};

struct Named {
    name: String,
    stream: Stream,
    found: bool,
}

impl Measure for Named {
    fn measure(&mut self, name: &str, mut policy: impl Policy + Clone) {
        if name.contains(&self.name) {
            self.found = true;
            println!("{name}: polled {} ns", self.stream.live(&mut policy));
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const USAGE: &str = "usage: learners POLICY EPISODES";
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or(USAGE)?;
    let episodes = arguments.next().ok_or(USAGE)?.parse()?;
    let mut named = Named { name, stream: Stream::new(episodes), found: false };
    each(&mut named);
    if named.found { Ok(()) } else { Err(format!("no policy has `{}` in its name", named.name).into()) }
}
