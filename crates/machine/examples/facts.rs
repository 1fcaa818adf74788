//! Prints what this machine reports about its kernel and KVM's parameters:
//!
//! `cargo run -p dwell-machine --example facts`

use dwell_machine::{Facts, Sysroot};

fn main() {
    let facts = Facts::read(&Sysroot::of_this_machine());
    println!("kernel: {}", facts.kernel.release.as_deref().unwrap_or("not known"));
    println!("architecture: {}", facts.kernel.arch.map_or("not known", |arch| arch.name()));
    println!("guest of KVM: {:?}", facts.guest.kvm_guest);
    for parameter in &facts.host.parameters {
        println!("{parameter:?}");
    }
}
