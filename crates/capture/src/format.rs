//! The `format` file of a tracepoint: where each field lies in a sample.
//!
//! Offsets differ between kernels, so that nothing here assumes one. A file has lines such as
//! `field:unsigned int vcpu_id; offset:12; size:4; signed:0;` and lines of which nothing is needed.

/// A tracepoint as its `format` file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Name without the category, such as `kvm_vcpu_wakeup`.
    pub name: String,
    /// The number by which samples are known, `common_type`.
    pub id: u16,
    /// All fields, the common ones included.
    pub fields: Vec<Field>,
}

/// One field of a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, without `[16]` of an array.
    pub name: String,
    /// Where it is and how it is to be read.
    pub at: At,
}

/// Where a number lies in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Bytes from the beginning of the sample.
    pub offset: u16,
    /// Length in bytes.
    pub size: u16,
    /// Whether it is signed.
    pub signed: bool,
}

impl At {
    /// The number in `sample`, sign-extended if it is signed; `None` if the sample is too short or the field is no
    /// integer.
    #[inline]
    pub fn read(self, sample: &[u8]) -> Option<u64> {
        let start = usize::from(self.offset);
        let bytes = sample.get(start..start + usize::from(self.size))?;
        Some(match (bytes, self.signed) {
            (&[a], false) => u64::from(a),
            (&[a], true) => i64::from(i8::from_ne_bytes([a])).cast_unsigned(),
            (&[a, b], false) => u64::from(u16::from_ne_bytes([a, b])),
            (&[a, b], true) => i64::from(i16::from_ne_bytes([a, b])).cast_unsigned(),
            (&[a, b, c, d], false) => u64::from(u32::from_ne_bytes([a, b, c, d])),
            (&[a, b, c, d], true) => i64::from(i32::from_ne_bytes([a, b, c, d])).cast_unsigned(),
            (&[a, b, c, d, e, f, g, h], _) => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => return None,
        })
    }
}

impl Format {
    /// Reads the text of a `format` file.
    ///
    /// # Errors
    /// What is wrong with it if it is not one.
    pub fn parse(text: &str) -> Result<Format, String> {
        let (mut name, mut id, mut fields) = (None, None, Vec::new());
        for (index, line) in text.lines().enumerate() {
            let wrong = || {
                let line: String = line.chars().take(80).collect();
                format!("line {}: cannot read `{line}`", index + 1)
            };
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("name:") {
                name = Some(rest.trim().to_owned());
            } else if let Some(rest) = line.strip_prefix("ID:") {
                id = Some(rest.trim().parse().map_err(|_| wrong())?);
            } else if line.starts_with("field:") {
                fields.push(field(line).ok_or_else(wrong)?);
            } else if line.starts_with("print fmt:") {
                break;
            }
        }
        let missing = |line| move || format!("has no line `{line}`");
        Ok(Format { name: name.ok_or_else(missing("name:"))?, id: id.ok_or_else(missing("ID:"))?, fields })
    }

    /// Where the field of this name lies, if there is one.
    pub fn at(&self, name: &str) -> Option<At> {
        self.fields.iter().find(|field| field.name == name).map(|field| field.at)
    }
}

/// The lists of names by number that the text of a `format` file prints values with (`__print_symbolic`), in
/// their order.
///
/// ```
/// use dwell_capture::format::symbols;
/// let text = "print fmt: \"%s\", __print_symbolic(REC->why, { 0x7, \"SEVEN\" }, { -1, \"NONE\" })";
/// assert_eq!(symbols(text), [vec![(7, "SEVEN".to_owned()), (-1, "NONE".to_owned())]]);
/// ```
pub fn symbols(text: &str) -> Vec<Vec<(i64, String)>> {
    let calls = text.split("__print_symbolic(").skip(1);
    calls.map(|call| pairs(call.split("__print_").next().unwrap_or(call))).collect()
}

/// The pairs `{ NUMBER, "NAME" }` up to the first closing parenthesis outside of them.
fn pairs(mut rest: &str) -> Vec<(i64, String)> {
    let mut pairs = vec![];
    while let Some(begin) = rest.find(['{', ')']).filter(|&at| rest[at..].starts_with('{')) {
        let Some((pair, after)) = rest[begin + 1..].split_once('}') else { break };
        if let Some((number, name)) = pair.split_once(',')
            && let Some(number) = number_of(number.trim())
        {
            pairs.push((number, name.trim().trim_matches('"').to_owned()));
        }
        rest = after;
    }
    pairs
}

/// A number as the kernel writes it in C: decimal, hexadecimal, or negative.
fn number_of(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn field(line: &str) -> Option<Field> {
    let (mut name, mut offset, mut size, mut signed) = (None, None, None, false);
    for part in line.split(';') {
        match part.trim().split_once(':') {
            Some(("field", declaration)) => name = name_of(declaration),
            Some(("offset", number)) => offset = number.trim().parse().ok(),
            Some(("size", number)) => size = number.trim().parse().ok(),
            Some(("signed", number)) => signed = number.trim() == "1",
            _ => {}
        }
    }
    Some(Field { name: name?, at: At { offset: offset?, size: size?, signed } })
}

/// The last word of a C declaration, less the length of an array: `char comm[16]`, `__data_loc char[] name`.
fn name_of(declaration: &str) -> Option<String> {
    let word = declaration.split_whitespace().next_back()?;
    let word = word.split('[').next().unwrap_or(word).trim_start_matches('*');
    (!word.is_empty()).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WAKEUP: &str = "name: kvm_vcpu_wakeup\nID: 41\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:__u64 ns;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:bool waited;\toffset:16;\tsize:1;\tsigned:0;\n\
        \tfield:char comm[16];\toffset:24;\tsize:16;\tsigned:0;\n\
        \nprint fmt: \"field:%s\", REC->waited\n";

    #[test]
    fn finds_fields_by_name() {
        let format = Format::parse(WAKEUP).unwrap();
        assert_eq!((format.name.as_str(), format.id), ("kvm_vcpu_wakeup", 41));
        assert_eq!(format.at("ns"), Some(At { offset: 8, size: 8, signed: false }));
        assert_eq!(format.at("common_pid"), Some(At { offset: 4, size: 4, signed: true }));
        assert_eq!(format.at("comm").unwrap().size, 16);
        assert_eq!(format.at("valid"), None);
    }

    #[test]
    fn says_which_line_is_wrong() {
        let cut = WAKEUP.replace("offset:8;", "offset:x;");
        assert!(Format::parse(&cut).unwrap_err().starts_with("line 7: cannot read `"));
        assert_eq!(Format::parse("name: x\n"), Err("has no line `ID:`".to_owned()));
        assert_eq!(Format::parse(""), Err("has no line `name:`".to_owned()));
    }

    #[test]
    fn lists_of_names_end_where_their_call_ends() {
        let text = "print fmt: \"%s%s\", (REC->isa == 1) ? __print_symbolic(REC->why & 0xffff, { 0, \"A B\" }, { 12, \"HLT\" }) \
            : __print_symbolic(REC->why, { 0x078, \"hlt\" }, { x, \"unread\" }), __print_flags(REC->why, \" \", { 1, \"F\" })";
        let wanted = [vec![(0, "A B"), (12, "HLT")], vec![(0x78, "hlt")]];
        let wanted =
            wanted.map(|list| list.into_iter().map(|(n, name)| (n, name.to_owned())).collect::<Vec<_>>());
        assert_eq!(symbols(text), wanted);
        assert!(symbols("").is_empty() && symbols("__print_symbolic(").len() == 1);
    }

    #[test]
    fn a_field_beyond_the_sample_is_not_read() {
        let at = At { offset: 6, size: 4, signed: false };
        assert_eq!(at.read(&[0; 9]), None);
        assert_eq!(at.read(&[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), Some(0xffff_ffff));
        assert_eq!(At { signed: true, ..at }.read(&[0xff; 10]), Some(u64::MAX));
        assert_eq!(At { offset: u16::MAX, size: u16::MAX, signed: true }.read(&[0; 100]), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = (Format::parse(&text), symbols(&text), pairs(&text));
        }

        /// A good file with some characters replaced never panics, and what is read lies where the file says.
        #[test]
        fn damaged_files_are_read_or_refused(at in 0usize..400, with in "\\PC{0,4}") {
            let mut text = WAKEUP.to_owned();
            let at = at.min(text.len());
            if text.is_char_boundary(at) {
                let end = (at + with.len()).min(text.len());
                text.replace_range(at..end, &with);
            }
            if let Ok(format) = Format::parse(&text) {
                for field in &format.fields {
                    let _ = field.at.read(&[0xa5; 64]);
                }
            }
        }

        #[test]
        fn fields_written_are_fields_read(
            fields in prop::collection::vec(("[a-z_]{1,12}", 0u16..4096, 0u16..64, any::<bool>()), 0..20),
            id in any::<u16>(),
        ) {
            let mut text = format!("name: x\nID: {id}\nformat:\n");
            for (name, offset, size, signed) in &fields {
                text += &format!("\tfield:u64 {name};\toffset:{offset};\tsize:{size};\tsigned:{};\n", u8::from(*signed));
            }
            let format = Format::parse(&text).unwrap();
            prop_assert_eq!(format.id, id);
            let read: Vec<_> =
                format.fields.into_iter().map(|f| (f.name, f.at.offset, f.at.size, f.at.signed)).collect();
            prop_assert_eq!(read, fields);
        }
    }
}
