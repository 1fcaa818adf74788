//! Knobs in the forms in which people write them elsewhere.

use crate::knob::{Knob, Module};
use dwell_policy::Layer;

/// A parameter with the name of another module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtherModule {
    /// Of a module.
    #[error(
        "{name} is a parameter of {module}, not of {given}: the kernel ignores {given}.{name}; write {module}.{name}"
    )]
    Module {
        name: &'static str,
        /// The module that has it.
        module: &'static str,
        /// The one that was named.
        given: String,
    },
    /// Of an I/O thread.
    #[error("{name} is a property of QEMU's I/O threads, not of {given}; write {name}")]
    IoThread { name: &'static str, given: String },
}

/// Words such as `kvm.halt_poll_ns=0`, `/sys/module/kvm/parameters/halt_poll_ns=0`, `options kvm halt_poll_ns=0`, `echo 0 >
/// /sys/...`, a line of tmpfiles.d, of `virsh domstats` `iothread.1.poll-max-ns=0`, and those of an I/O thread as
/// `NAME=VALUE`; what has none of these forms stays as it is.
///
/// # Errors
/// [`OtherModule`] for a parameter with the name of another module.
pub fn plain(words: &[String]) -> Result<Vec<String>, OtherModule> {
    let text = words.join(" ").replace(" = ", "=");
    if let Some(properties) = of_iothread(&text) {
        return Ok(properties);
    }
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words.as_slice() {
        ["echo", value, ">" | "|", .., path] | [_, path, "-", "-", "-", "-", value] => {
            Ok(vec![one(&format!("{path}={value}"), None)?])
        }
        ["options" | "modprobe", module, rest @ ..] => {
            rest.iter().map(|word| one(word, Some(module))).collect()
        }
        all => all.iter().map(|word| one(word, None)).collect(),
    }
}

/// The properties in libvirt's `<poll max='32768'/>`, QEMU's `iothread,id=a,poll-max-ns=32768`, also in JSON, and
/// `virsh iothreadset vm 1 --poll-max-ns 32768`.
fn of_iothread(text: &str) -> Option<Vec<String>> {
    let forms = ["<poll ", "iothread,", "\"iothread\"", "virsh iothread"];
    if !forms.iter().any(|form| text.contains(form)) {
        return None;
    }
    let is_between = |c: char| c.is_whitespace() || "<>{}\"'/,=:".contains(c);
    let words: Vec<&str> = text.split(is_between).filter(|word| !word.is_empty()).collect();
    let property = |pair: &[&str]| {
        let &[name, value] = pair else { return None };
        let name = match name.trim_start_matches('-') {
            "max" => "poll-max-ns",
            "grow" => "poll-grow",
            "shrink" => "poll-shrink",
            name => name,
        };
        let knob = Knob::of(Layer::Iothread, name)?;
        Some(format!("{}={value}", knob.param.name))
    };
    let properties: Vec<String> = words.windows(2).filter_map(property).collect();
    (!properties.is_empty()).then_some(properties)
}

fn one(word: &str, module: Option<&str>) -> Result<String, OtherModule> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let path = name.strip_prefix("/sys/").unwrap_or(name).strip_prefix("module/");
    let of_path = path.and_then(|rest| rest.split_once("/parameters/"));
    let (given, name) = match (of_path.or_else(|| name.rsplit_once('.')), module) {
        (Some((module, name)), _) => (Some(module), name),
        (None, module) => (module, name),
    };
    check(given, name)?;
    Ok(value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}")))
}

/// That a knob is of the module that is named with it, dashes and underscores being alike.
fn check(given: Option<&str>, name: &str) -> Result<(), OtherModule> {
    let Some((given, knob)) = given.zip(Knob::find(name)) else { return Ok(()) };
    let (name, given) = (knob.param.name, given.replace('-', "_"));
    // The governor's parameters are often given to its driver.
    match knob.module().map(Module::name) {
        Some(module) if given == module => Ok(()),
        Some(module) => Err(OtherModule::Module { name, module, given }),
        None if given.starts_with("iothread") => Ok(()),
        None => Err(OtherModule::IoThread { name, given }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_people_write() {
        let plain = |text: &str| plain(&[text.to_owned()]).unwrap().join(" ");
        for text in [
            "halt_poll_ns=0",
            "kvm.halt_poll_ns=0",
            "options kvm halt_poll_ns=0",
            "modprobe kvm halt_poll_ns=0",
            "/sys/module/kvm/parameters/halt_poll_ns=0",
            "echo 0 > /sys/module/kvm/parameters/halt_poll_ns",
            "echo 0 | sudo tee /sys/module/kvm/parameters/halt_poll_ns",
            "w /sys/module/kvm/parameters/halt_poll_ns - - - - 0",
            "module/kvm/parameters/halt_poll_ns = 0",
        ] {
            assert_eq!(plain(text), "halt_poll_ns=0", "{text}");
        }
        assert_eq!(plain("haltpoll.guest_halt_poll_ns"), "guest_halt_poll_ns");
        assert_eq!(
            plain("options kvm halt_poll_ns=0 halt_poll_ns_grow=2"),
            "halt_poll_ns=0 halt_poll_ns_grow=2"
        );
        assert_eq!(plain("iothread.1.poll-max-ns=0 iothread1.poll-grow=2"), "poll-max-ns=0 poll-grow=2");
        for text in [
            "<iothread id='1'><poll max='0' grow='2'/></iothread>",
            "iothread,id=a,poll-max-ns=0,poll-grow=2",
            r#"{"qom-type":"iothread","id":"a","poll-max-ns":0,"poll-grow":2}"#,
            "virsh iothreadset vm 1 --poll-max-ns 0 --poll-grow 2",
        ] {
            assert_eq!(plain(text), "poll-max-ns=0 poll-grow=2", "{text}");
        }
        assert_eq!(plain("what=ever"), "what=ever");
    }

    #[test]
    fn the_prefix_of_another_module_is_refused() {
        for text in [
            "kvm_intel.halt_poll_ns=0",
            "options kvm_amd halt_poll_ns=0",
            "cpuidle-haltpoll.guest_halt_poll_ns=1",
        ] {
            let error = plain(&[text.to_owned()]).unwrap_err().to_string();
            assert!(error.contains("the kernel ignores"), "{error}");
        }
        let error = plain(&["kvm.poll-max-ns=0".to_owned()]).unwrap_err().to_string();
        assert_eq!(error, "poll-max-ns is a property of QEMU's I/O threads, not of kvm; write poll-max-ns");
    }
}
