//! The configuration that libvirt keeps of a domain: the `<poll>` element of an I/O thread.
//!
//! `virsh dumpxml --inactive` is read, the element put in or taken out, and the whole given back to `virsh define`;
//! everything else stays as it is, to the letter. A running domain keeps what it has until it is started anew.

use dwell_machine::Writable;
use dwell_machine::domain::child;
use roxmltree::{Document, Node};
use std::io;

const VIRSH: &str = "/usr/bin/virsh";

/// The `<poll …/>` of an I/O thread as the file has it; `None` if it has none.
pub(crate) fn poll(machine: &dyn Writable, domain: &str, number: u32) -> io::Result<Option<String>> {
    poll_in(&dump(machine, domain)?, domain, number)
}

/// The `<poll …/>` of an I/O thread in the text of a domain, as it is written there; `None` if it has none.
///
/// # Errors
/// `InvalidData` if the text is not XML, or the domain has no such I/O thread.
pub fn poll_in(xml: &str, domain: &str, number: u32) -> io::Result<Option<String>> {
    let document = parse(xml, domain)?;
    let poll = child(iothread(&document, domain, number)?, "poll");
    Ok(poll.and_then(|poll| xml.get(poll.range())).map(str::to_owned))
}

/// The text of a domain with this element in place of the `<poll …/>` of an I/O thread, or without one.
///
/// # Errors
/// As [`poll_in`].
pub fn with_poll(xml: &str, domain: &str, number: u32, element: Option<&str>) -> io::Result<String> {
    let document = parse(xml, domain)?;
    let thread = iothread(&document, domain, number)?;
    let element = element.unwrap_or_default();
    let (range, text) = match (child(thread, "poll"), thread.first_child()) {
        (Some(poll), _) => (poll.range(), element.to_owned()),
        (None, Some(first)) => (first.range().start..first.range().start, element.to_owned()),
        (None, None) if element.is_empty() => return Ok(xml.to_owned()),
        (None, None) => {
            let whole = xml.get(thread.range()).unwrap_or_default();
            match whole.strip_suffix("/>") {
                Some(head) => (thread.range(), format!("{head}>{element}</iothread>")),
                // `<iothread …></iothread>`, with whatever white space.
                None => {
                    let end = thread.range().start + whole.rfind("</").unwrap_or(whole.len());
                    (end..end, element.to_owned())
                }
            }
        }
    };
    let mut changed = xml.to_owned();
    changed.replace_range(range, &text);
    Ok(changed)
}

/// Whether libvirt has no such domain any more, or this domain no such I/O thread; `false` if that cannot be determined.
pub(crate) fn is_gone(machine: &dyn Writable, domain: &str, number: u32) -> bool {
    match dump(machine, domain) {
        Ok(xml) => parse(&xml, domain).is_ok_and(|document| iothread(&document, domain, number).is_err()),
        Err(_) => machine
            .run(VIRSH, &["list", "--all", "--name"], "")
            .is_ok_and(|names| names.lines().all(|name| name.trim() != domain)),
    }
}

/// Puts a `<poll …/>` there, or takes away the one that is there.
pub(crate) fn set_poll(
    machine: &dyn Writable,
    domain: &str,
    number: u32,
    element: Option<&str>,
) -> io::Result<()> {
    let xml = dump(machine, domain)?;
    let changed = with_poll(&xml, domain, number, element)?;
    machine.run(VIRSH, &["define", "/dev/stdin"], &changed).map(drop)
}

/// Whether a text is one `<poll …/>` with nothing but numbers: what dwell writes, and the only thing that it puts back.
pub fn is_poll(text: &str) -> bool {
    let Ok(document) = Document::parse(text) else { return false };
    let poll = document.root_element();
    let is_number =
        |value: &str| !value.is_empty() && value.len() <= 20 && value.bytes().all(|b| b.is_ascii_digit());
    text.starts_with("<poll")
        && text.ends_with('>')
        && poll.has_tag_name("poll")
        && poll.tag_name().namespace().is_none()
        && !poll.has_children()
        && document.root().children().count() == 1
        && poll.attributes().all(|attribute| {
            attribute.namespace().is_none()
                && ATTRIBUTES.contains(&attribute.name())
                && is_number(attribute.value())
        })
}

/// What a `<poll>` may have.
const ATTRIBUTES: [&str; 4] = ["max", "grow", "shrink", "weight"];

fn dump(machine: &dyn Writable, domain: &str) -> io::Result<String> {
    machine.run(VIRSH, &["dumpxml", "--inactive", "--security-info", domain], "")
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn parse<'x>(xml: &'x str, domain: &str) -> io::Result<Document<'x>> {
    Document::parse(xml)
        .map_err(|error| invalid(format!("what virsh prints of domain {domain} is no XML: {error}")))
}

fn iothread<'d, 'x>(document: &'d Document<'x>, domain: &str, number: u32) -> io::Result<Node<'d, 'x>> {
    let is_it = |node: &Node<'_, '_>| {
        node.has_tag_name("iothread")
            && node.attribute("id").and_then(|id| id.trim().parse().ok()) == Some(number)
    };
    child(document.root_element(), "iothreadids").and_then(|ids| ids.children().find(is_it)).ok_or_else(
        || invalid(format!("domain {domain} has no <iothread id='{number}'> in its <iothreadids>")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: &str = "<poll max='300000'/>";

    fn changed(xml: &str, number: u32, element: &str) -> String {
        with_poll(xml, "vm", number, Some(element)).unwrap()
    }

    #[test]
    fn the_element_is_put_in_and_taken_out_and_the_rest_stays() {
        let bare = "<domain>\n <iothreads>2</iothreads>\n <iothreadids><iothread id='1'/><iothread id=\"2\" x='y'/></iothreadids>\n</domain>\n";
        let with = changed(bare, 2, POLL);
        assert_eq!(with, bare.replace(" x='y'/>", &format!(" x='y'>{POLL}</iothread>")));
        assert_eq!(changed(&with, 2, ""), bare.replace(" x='y'/>", " x='y'></iothread>"));
        assert_eq!(changed(&with, 2, "<poll max='1'/>"), with.replace("300000", "1"));
        assert_eq!(changed(bare, 1, ""), bare);
        // White space in the end tag is no reason to lose an attribute.
        let odd = "<domain><iothreadids><iothread id='1' x='y'></iothread ></iothreadids></domain>";
        assert_eq!(changed(odd, 1, POLL), odd.replace("></iothread >", &format!(">{POLL}</iothread >")));
    }

    #[test]
    fn only_numbers_are_put_back() {
        for poll in
            [POLL, "<poll max=\"1\" grow='2' shrink='0' weight='3'/>", "<poll/>", "<poll max='1'></poll>"]
        {
            assert!(is_poll(poll), "{poll}");
        }
        for other in [
            "",
            "<emulator>/tmp/evil</emulator>",
            "<poll max='1'/><emulator/>",
            "<poll max='1'/></iothread></iothreadids><devices/>",
            "<poll max='1'><x/></poll>",
            "<poll max='-1'/>",
            "<poll max='&#10;'/>",
            "<poll path='1'/>",
            "<poll xmlns='urn:x' max='1'/>",
            "<!DOCTYPE poll><poll max='1'/>",
            " <poll max='1'/>",
        ] {
            assert!(!is_poll(other), "{other}");
        }
    }

    #[test]
    fn a_thread_that_is_not_there_is_an_error() {
        for xml in ["<domain/>", "<domain><iothreadids><iothread id='2'/></iothreadids></domain>", "<domain>"]
        {
            assert!(poll_in(xml, "vm", 1).is_err(), "{xml}");
        }
    }
}
