//! Nothing: the test includes the source of the doorbell.
