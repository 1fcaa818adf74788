//! The configuration that libvirt keeps of a domain: the `<poll>` element of an I/O thread.
//!
//! `virsh dumpxml --inactive` is read, the element put in or taken out, and the whole given back to `virsh define`;
//! everything else stays as it is, to the letter. A running domain keeps what it has until it is started anew.

use dwell_machine::Writable;
use roxmltree::{Document, Node};
use std::io;
use std::ops::Range;

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
    let thread = Thread::find(xml, domain, number)?;
    Ok(thread.poll.and_then(|range| xml.get(range)).map(str::to_owned))
}

/// The text of a domain with this element in place of the `<poll …/>` of an I/O thread, or without one.
///
/// # Errors
/// As [`poll_in`].
pub fn with_poll(xml: &str, domain: &str, number: u32, element: Option<&str>) -> io::Result<String> {
    Ok(Thread::find(xml, domain, number)?.with(xml, element.unwrap_or("")))
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

/// Where an `<iothread>` and its `<poll>` are in the text of a domain.
struct Thread {
    range: Range<usize>,
    poll: Option<Range<usize>>,
    /// Where the content begins, unless the element is `<iothread …/>`.
    content: Option<usize>,
}

impl Thread {
    fn find(xml: &str, domain: &str, number: u32) -> io::Result<Thread> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let document = Document::parse(xml)
            .map_err(|error| wrong(format!("what virsh prints of domain {domain} is no XML: {error}")))?;
        let is = |node: &Node<'_, '_>, name: &str| node.has_tag_name(name);
        let ids = document.root_element().children().find(|node| is(node, "iothreadids"));
        let same = |node: &Node<'_, '_>| {
            is(node, "iothread") && node.attribute("id").and_then(|id| id.trim().parse().ok()) == Some(number)
        };
        let Some(thread) = ids.and_then(|ids| ids.children().find(same)) else {
            return Err(wrong(format!(
                "domain {domain} has no <iothread id='{number}'> in its <iothreadids>"
            )));
        };
        Ok(Thread {
            range: thread.range(),
            poll: thread.children().find(|node| is(node, "poll")).map(|node| node.range()),
            content: thread.first_child().map(|child| child.range().start),
        })
    }

    /// The text with this element in place of the `<poll>` that is there.
    fn with(&self, xml: &str, element: &str) -> String {
        let (range, text) = match (&self.poll, self.content) {
            (Some(poll), _) => (poll.clone(), element.to_owned()),
            (None, Some(content)) => (content..content, element.to_owned()),
            (None, None) if element.is_empty() => return xml.to_owned(),
            (None, None) => {
                let whole = xml.get(self.range.clone()).unwrap_or_default();
                match whole.strip_suffix("/>") {
                    Some(head) => (self.range.clone(), format!("{head}>{element}</iothread>")),
                    // `<iothread …></iothread>`, with whatever white space.
                    None => {
                        let end = self.range.start + whole.rfind("</").unwrap_or(whole.len());
                        (end..end, element.to_owned())
                    }
                }
            }
        };
        let mut changed = xml.to_owned();
        changed.replace_range(range, &text);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: &str = "<poll max='300000'/>";

    fn changed(xml: &str, number: u32, element: &str) -> String {
        Thread::find(xml, "vm", number).unwrap().with(xml, element)
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
            assert!(Thread::find(xml, "vm", 1).is_err(), "{xml}");
        }
    }
}
