pub(crate) fn check(_case: &serde_json::Value) -> Result<usize, String> {
    Err("not written yet".into())
}
