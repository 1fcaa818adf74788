//! Traces as text, and the same traces live. `exit_table` is a program of its own: each of its cases is a test.

mod import;
mod same_trace;
