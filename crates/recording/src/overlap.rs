//! Episodes that start before the one before them of the same idler has ended.

/// The latest end of the episodes so far, by number of the idler \[ns\].
#[derive(Clone, Debug, Default)]
pub struct Ends(Vec<u64>);

impl Ends {
    /// Takes the next episode of an idler. Whether it starts before the end of those before it by more than `tolerance_ns`,
    /// which is what the times of the source resolve.
    pub fn overlaps(&mut self, idler: usize, start_ns: u64, idle_ns: u64, tolerance_ns: u64) -> bool {
        if self.0.len() <= idler {
            self.0.resize(idler + 1, 0);
        }
        let Some(end_ns) = self.0.get_mut(idler) else { return false };
        let overlaps = start_ns.saturating_add(tolerance_ns) < *end_ns;
        *end_ns = (*end_ns).max(start_ns.saturating_add(idle_ns));
        overlaps
    }
}
