//! Advice, and the policies of the kernel module.

mod kernel_policy;
mod tune;
