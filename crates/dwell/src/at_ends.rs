//! What is read at the beginning and at the end of a recording, while events count.

use dwell_capture::Observer;

/// Reads something at both ends.
pub(crate) struct AtEnds<T, F> {
    read: F,
    ends: Vec<anyhow::Result<T>>,
}

impl<T, F: FnMut() -> anyhow::Result<T>> AtEnds<T, F> {
    pub(crate) fn new(read: F) -> AtEnds<T, F> {
        AtEnds { read, ends: vec![] }
    }

    /// What was read; `None` if the recorder did not begin.
    pub(crate) fn both(self) -> anyhow::Result<Option<[T; 2]>> {
        let ends: Vec<T> = self.ends.into_iter().collect::<anyhow::Result<_>>()?;
        Ok(ends.try_into().ok())
    }
}

impl<T, F: FnMut() -> anyhow::Result<T>> Observer for AtEnds<T, F> {
    fn begins(&mut self) {
        self.ends.push((self.read)());
    }

    fn ends(&mut self) {
        self.ends.push((self.read)());
    }
}
