//! Which releases of Linux and QEMU the rules and defaults are taken from.

use dwell_policy::param::known_version;
use dwell_policy::version::{NEWEST_KERNEL, NEWEST_QEMU, Version};
use dwell_policy::{Layer, Owner};
use dwell_recording::Metadata;

/// The releases whose rules are replayed: of Linux for the layers guest, host and driver, of QEMU for
/// I/O threads.
///
/// The one place that decides the default: the recording's release, else the newest known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub kernel: Version,
    pub qemu: Version,
}

impl Versions {
    /// The newest releases whose rules are known.
    pub const NEWEST: Versions = Versions { kernel: NEWEST_KERNEL, qemu: NEWEST_QEMU };

    /// The releases that the recording names, as far as their rules are known, else [`Versions::NEWEST`].
    pub fn of_recording<O>(metadata: &Metadata<O>) -> Versions {
        let known = |layer, text: &Option<String>| {
            let version = text.as_deref().and_then(Version::parse)?;
            known_version(layer, version).is_ok().then_some(version)
        };
        // Of its architecture, whose defaults differ.
        let newest = || {
            let newest = NEWEST_KERNEL.on(Version::parse(metadata.kernel.as_deref()?)?.arch);
            known_version(Layer::Host, newest).is_ok().then_some(newest)
        };
        Versions {
            kernel: known(Layer::Host, &metadata.kernel).or_else(newest).unwrap_or(NEWEST_KERNEL),
            qemu: known(Layer::Iothread, &metadata.qemu).unwrap_or(NEWEST_QEMU),
        }
    }

    /// The release that the recording names for a layer, if its rule is not known.
    pub fn unknown(metadata: &Metadata, layer: Layer) -> Option<&str> {
        let text = if layer == Layer::Iothread { &metadata.qemu } else { &metadata.kernel };
        let is_known = |text: &&str| Version::parse(text).is_some_and(|v| known_version(layer, v).is_ok());
        text.as_deref().filter(|text| !is_known(text))
    }

    /// The release that decides the rule of a layer, or of timers.
    pub fn of(self, owner: impl Into<Owner>) -> Version {
        if owner.into() == Layer::Iothread { self.qemu } else { self.kernel }
    }
}

impl Default for Versions {
    fn default() -> Versions {
        Versions::NEWEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::arch::Arch;

    #[test]
    fn recorded_releases_are_taken_if_their_rules_are_known() {
        let mut metadata = Metadata::new(Layer::Host);
        assert_eq!(Versions::of_recording(&metadata), Versions::NEWEST);
        metadata.kernel = Some("6.1.0-32-amd64".to_owned());
        metadata.qemu = Some("7.2.22 (Debian 1:7.2+dfsg-7)".to_owned());
        let recorded = Versions::of_recording(&metadata);
        assert_eq!(recorded, Versions { kernel: Version::new(6, 1), qemu: Version::new(7, 2) });
        assert_eq!(recorded.of(Layer::Iothread), recorded.qemu);
        assert_eq!(Versions::unknown(&metadata, Layer::Iothread), None);
        metadata.kernel = Some("4.19.0".to_owned());
        metadata.qemu = Some("a fork".to_owned());
        assert_eq!(Versions::of_recording(&metadata), Versions::NEWEST);
        assert_eq!(Versions::unknown(&metadata, Layer::Iothread), Some("a fork"));
        assert_eq!(Versions::unknown(&metadata, Layer::Guest), Some("4.19.0"));
        metadata.kernel = Some("4.19.90-52.22.v2207.ky10.aarch64".to_owned());
        assert_eq!(Versions::of_recording(&metadata).kernel, Versions::NEWEST.kernel.on(Arch::Arm64));
        metadata.kernel = Some("6.8.0.ppc64le".to_owned());
        assert_eq!(Versions::of_recording(&metadata), Versions::NEWEST);
    }

    #[test]
    fn newest_releases_are_known_and_no_later_ones_are() {
        for layer in Layer::ALL {
            let newest = Versions::NEWEST.of(layer);
            assert_eq!(known_version(layer, newest), Ok(()), "{layer:?}");
            assert!(known_version(layer, Version::new(newest.major, newest.minor + 1)).is_err(), "{layer:?}");
        }
    }
}
