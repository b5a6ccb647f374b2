//! From received bytes to a request. Repeated fields are counted on the wire before anything is
//! allocated for them: two bytes there are a hundred in memory.

use bytes::Bytes;
use prost::Message as _;

use super::{
    decode::{self, Bounds, Decoded},
    pb,
    refusal::Refusal,
};

/// Decodes a request within bounds.
///
/// # Errors
/// If it exceeds a bound, or is not Protobuf.
pub(super) fn request(message: Bytes, bounds: Bounds) -> Result<Decoded, Refusal> {
    count(&message, bounds)?;
    let message = pb::RateLimitRequest::decode(message)
        .map_err(|error| Refusal::Malformed(error.to_string()))?;
    decode::request(message, bounds.echo)
}

/// The tags of `RateLimitRequest.descriptors` and `RateLimitDescriptor.entries`.
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;

/// Refuses a message of too many descriptors, or a descriptor of too many entries. What is not
/// Protobuf is left to the decoder.
fn count(message: &[u8], bounds: Bounds) -> Result<(), Refusal> {
    let descriptors = || fields(message).filter(|(field, _)| *field == DESCRIPTORS);
    bounds.check_descriptors(descriptors().count())?;
    for (index, (_, descriptor)) in descriptors().enumerate() {
        let entries = fields(descriptor).filter(|(field, _)| *field == ENTRIES).count();
        bounds.check_entries(index, entries)?;
    }
    Ok(())
}

/// The length-delimited fields of a message, by number; ends where it stops being Protobuf. Fields of
/// a group are not the message's own, and are stepped over as the decoder does it.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    // Counted, not followed: whatever the nesting, this takes no memory. The decoder bounds it.
    let mut open_groups = 0_usize;
    std::iter::from_fn(move || {
        loop {
            let tag = varint(&mut message)?;
            let field = u32::try_from(tag >> 3).ok()?;
            match tag & 7 {
                0 => drop(varint(&mut message)?),
                1 => drop(message.split_off(..8)?),
                5 => drop(message.split_off(..4)?),
                2 => {
                    let length = usize::try_from(varint(&mut message)?).ok()?;
                    let value = message.split_off(..length)?;
                    if open_groups == 0 {
                        return Some((field, value));
                    }
                }
                3 => open_groups = open_groups.checked_add(1)?,
                4 => open_groups = open_groups.checked_sub(1)?,
                _ => return None,
            }
        }
    })
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *message.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { descriptors_max: 64, echo: crate::rls::decode::Echo::Off };

    #[track_caller]
    fn refused(message: &[u8], expected: &str) {
        assert_eq!(count(message, BOUNDS).expect_err("too many").to_string(), expected);
    }

    #[test]
    fn empty_descriptors_are_counted_before_they_are_decoded() {
        count(&[0x12, 0x00].repeat(64), BOUNDS).expect("just enough");
        refused(&[0x12, 0x00].repeat(65), "descriptors: 65 exceeds 64");
        refused(&[0x12, 0x00].repeat(100_000), "descriptors: 100000 exceeds 64");
    }

    #[test]
    fn empty_entries_are_counted_before_they_are_decoded() {
        let mut message = vec![0x12, 66];
        message.extend([0x0a, 0x00].repeat(33));
        refused(&message, "descriptors[0].entries: 33 exceeds 32");
    }

    #[test]
    fn other_fields_are_stepped_over() {
        // Field 3 as varint, 4 as 64 bit, 5 as 32 bit, then one descriptor.
        let mut message = vec![0x18, 0x07, 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x2d, 1, 2, 3, 4];
        message.extend([0x12, 0x02, 0x0a, 0x00]);
        assert_eq!(fields(&message).collect::<Vec<_>>(), [(2, &[0x0a, 0x00][..])]);
    }

    #[test]
    fn groups_are_stepped_over_and_what_is_behind_them_is_counted() {
        // Group 9 with a varint, a group 1 of its own, and what looks like two descriptors.
        let group = [0x4b, 0x08, 0x01, 0x0b, 0x12, 0x00, 0x0c, 0x12, 0x00, 0x4c];
        let message = [&group[..], &[0x12, 0x00].repeat(65)].concat();
        refused(&message, "descriptors: 65 exceeds 64");

        let entries = [&group[..], &[0x0a, 0x00].repeat(33)].concat();
        let message = [&[0x12, 76][..], &entries].concat();
        refused(&message, "descriptors[0].entries: 33 exceeds 32");
    }

    #[test]
    fn groups_in_groups_are_left_to_the_decoder_which_bounds_them() {
        let nested = |depth: usize| [[0x4b].repeat(depth), [0x4c].repeat(depth)].concat();
        for depth in [99, 101, 1_000_000] {
            let message = [&nested(depth)[..], &[0x12, 0x00]].concat();
            count(&message, BOUNDS).expect("one descriptor");
            let decoded = pb::RateLimitRequest::decode(message.as_slice());
            assert_eq!(decoded.is_ok(), depth < 100, "{depth}");
        }
    }

    /// A field of a number and a wire type, with all that belongs to it.
    fn field(number: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut field = Vec::new();
        prost::encoding::encode_varint(u64::from(number << 3 | u32::from(kind)), &mut field);
        if kind == 2 {
            prost::encoding::encode_varint(payload.len() as u64, &mut field);
        }
        field.extend(payload);
        if kind == 3 {
            prost::encoding::encode_varint(u64::from(number << 3 | 4), &mut field);
        }
        field
    }

    /// Fields that no message of ours has, groups among them, one in another.
    fn unknown() -> impl Strategy<Value = Vec<u8>> {
        let number = || 9_u32..3_000;
        let leaf = prop_oneof![
            (number(), 0_u8..0x80).prop_map(|(number, value)| field(number, 0, &[value])),
            (number(), any::<[u8; 8]>()).prop_map(|(number, value)| field(number, 1, &value)),
            (number(), any::<[u8; 4]>()).prop_map(|(number, value)| field(number, 5, &value)),
            (number(), prop::collection::vec(any::<u8>(), 0..9))
                .prop_map(|(number, value)| field(number, 2, &value)),
        ];
        leaf.prop_recursive(8, 32, 4, move |inner| {
            // In a group any number may stand, also those of our descriptors and entries.
            let inside = (1_u32..4, inner.clone()).prop_map(|(number, it)| field(number, 2, &it));
            let fields = prop::collection::vec(prop_oneof![inner, inside], 0..4);
            (number(), fields).prop_map(|(number, fields)| field(number, 3, &fields.concat()))
        })
    }

    /// The number of entries in each descriptor of a message, and the message, in which unknown fields
    /// stand before and in the descriptors, and as the content of the entries.
    fn message() -> impl Strategy<Value = (Vec<usize>, Vec<u8>)> {
        let entries = prop::collection::vec(unknown(), 0..5);
        let descriptors = prop::collection::vec((entries, unknown(), unknown()), 0..5);
        descriptors.prop_map(|descriptors| {
            let counts = descriptors.iter().map(|(entries, ..)| entries.len()).collect();
            let mut message = Vec::new();
            for (entries, inside, before) in descriptors {
                let entries = entries.iter().map(|it| field(ENTRIES, 2, it));
                let inside = iter::once(inside).chain(entries).collect::<Vec<_>>().concat();
                message.extend([before, field(DESCRIPTORS, 2, &inside)].concat());
            }
            (counts, message)
        })
    }

    proptest! {
        /// P33: whatever is counted here, the real decoder sees no more of it.
        #[test]
        fn any_bytes_are_counted_or_left_to_the_decoder(
            message in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let counted = fields(&message).filter(|(field, _)| *field == DESCRIPTORS).count();
            if let Ok(decoded) = pb::RateLimitRequest::decode(message.as_slice()) {
                prop_assert_eq!(decoded.descriptors.len(), counted);
            }
        }

        #[test]
        fn unknown_fields_and_groups_change_no_count((expected, message) in message()) {
            let decoded = pb::RateLimitRequest::decode(message.as_slice()).expect("it is valid");
            let decoded = decoded.descriptors.iter().map(|it| it.entries.len()).collect::<Vec<_>>();
            let counted: Vec<_> = fields(&message)
                .filter(|(field, _)| *field == DESCRIPTORS)
                .map(|(_, it)| fields(it).filter(|(field, _)| *field == ENTRIES).count())
                .collect();
            prop_assert_eq!(&counted, &expected);
            prop_assert_eq!(&decoded, &expected);
        }
    }
}
