//! Where the choice between polling and halting is made, and whose a parameter is.

use core::fmt;

crate::named! {
    /// Where in the virtualization stack an idler chooses between polling and halting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Layer {
        /// A guest CPU: the cpuidle haltpoll governor.
        Guest = "guest",
        /// A vCPU seen from its host: KVM halt polling.
        Host = "host",
        /// A guest CPU under the idle driver dwell_idle. What is recorded under it is of the layer guest.
        Driver = "driver",
        /// An event loop: QEMU's adaptive polling, or any thread that waits for file descriptors.
        Iothread = "iothread",
    }

    /// The name used on the command line and in files.
    pub fn name

    /// The layer of this name, if there is one.
    pub fn from_name
}

/// Whose a parameter is: of a layer's rule, or of KVM's timers, which do not idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The rule of a layer.
    Layer(Layer),
    /// KVM's local APIC timer.
    Timer,
}

impl Owner {
    /// Every owner, in the order in which they are listed to a user.
    pub const ALL: [Owner; 5] = [
        Owner::Layer(Layer::Guest),
        Owner::Layer(Layer::Host),
        Owner::Timer,
        Owner::Layer(Layer::Driver),
        Owner::Layer(Layer::Iothread),
    ];

    /// The name used on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Owner::Layer(layer) => layer.name(),
            Owner::Timer => "timer",
        }
    }

    /// The owner of this name, if there is one.
    pub fn from_name(name: &str) -> Option<Owner> {
        Owner::ALL.into_iter().find(|owner| owner.name() == name)
    }
}

impl From<Layer> for Owner {
    fn from(layer: Layer) -> Owner {
        Owner::Layer(layer)
    }
}

impl PartialEq<Layer> for Owner {
    fn eq(&self, layer: &Layer) -> bool {
        *self == Owner::Layer(*layer)
    }
}

/// Timers are no layer: they have no episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotALayer;

impl fmt::Display for NotALayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timers have no idle times")
    }
}

impl core::error::Error for NotALayer {}

impl TryFrom<Owner> for Layer {
    type Error = NotALayer;

    fn try_from(owner: Owner) -> Result<Layer, NotALayer> {
        match owner {
            Owner::Layer(layer) => Ok(layer),
            Owner::Timer => Err(NotALayer),
        }
    }
}
