//! The lab's VMM and experiments on the real KVM, in one program, so that experiments do not run beside each other.

mod alone;
mod coupled;
mod doorbell;
mod timer;
mod validate;
mod vm;
