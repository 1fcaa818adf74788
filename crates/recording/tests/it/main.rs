//! Recordings, good and damaged. `untrusted` is a program of its own: it measures the memory of its process.

mod damage;
mod roundtrip;
mod summary;
