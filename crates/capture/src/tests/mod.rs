pub(crate) mod fake;
mod overflow;
