//! Messages of protobuf that are written field by field: a generated type would need a copy of each value. Fields have numbers
//! up to 15.

use prost::encoding::WireType;

/// Writes a number, unless it is 0, which is the same as none.
pub(crate) fn number(field: u8, value: u64, to: &mut Vec<u8>) {
    if value > 0 {
        write_number(field, value, to);
    }
}

pub(crate) fn write_number(field: u8, value: u64, to: &mut Vec<u8>) {
    to.push(field << 3 | WireType::Varint as u8);
    write_varint(value, to);
}

pub(crate) fn text(field: u8, value: &str, to: &mut Vec<u8>) {
    if !value.is_empty() {
        write_bytes(field, value.as_bytes(), to);
    }
}

/// Writes bytes, such as a whole message.
pub(crate) fn write_bytes(field: u8, value: &[u8], to: &mut Vec<u8>) {
    to.push(field << 3 | WireType::LengthDelimited as u8);
    write_varint(value.len() as u64, to);
    to.extend_from_slice(value);
}

/// Writes a message of these fields.
pub(crate) fn nested(field: u8, to: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    to.push(field << 3 | WireType::LengthDelimited as u8);
    delimited(to, fields);
}

/// Writes fields behind their length, which takes one byte up to 127.
pub(crate) fn delimited(to: &mut Vec<u8>, fields: impl FnOnce(&mut Vec<u8>)) {
    let begin = to.len();
    to.push(0);
    fields(to);
    let length = to.len() - begin - 1;
    match (u8::try_from(length), to.get_mut(begin)) {
        (Ok(short @ ..0x80), Some(prefix)) => *prefix = short,
        _ => {
            let mut prefix = Vec::new();
            write_varint(length as u64, &mut prefix);
            to.splice(begin..=begin, prefix);
        }
    }
}

/// Writes a number, with seven bits in each byte: a `Vec` takes single bytes faster than a `BufMut`.
fn write_varint(mut value: u64, to: &mut Vec<u8>) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return to.push(low & 0x7f);
        }
        to.push(low | 0x80);
    }
}
