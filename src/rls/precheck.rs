//! Turns received bytes into a request. Repeated fields are counted on the wire before memory is allocated
//! for them: two bytes there can take a hundred in memory.

use std::iter;

use bytes::Bytes;
use prost::Message as _;

use super::{
    decode::{self, Bounds, Decoded},
    pb,
    refusal::Refusal,
};
use crate::limiter::FEW_DESCRIPTORS;

/// Decodes a request that is within `bounds`.
pub fn request(message: Bytes, bounds: Bounds) -> Result<Decoded, Refusal> {
    check_counts(repeated(&message, DESCRIPTORS), bounds)?;
    let message = pb::RateLimitRequest::decode(message)
        .map_err(|error| Refusal::Malformed(error.to_string()))?;
    decode::request(message, bounds.echo)
}

/// The field numbers of `RateLimitRequest.descriptors` and `RateLimitDescriptor.entries`.
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;

/// A longer message is large whatever it holds, in bytes.
const SMALL_BYTES: usize = 4 << 10;

/// Whether a call is so large that it waits for its turn.
pub(super) fn is_large(message: &[u8]) -> bool {
    message.len() > SMALL_BYTES || repeated(message, DESCRIPTORS).nth(FEW_DESCRIPTORS).is_some()
}

/// Refuses a call with too many descriptors, or a descriptor with too many entries. Malformed bytes are left to the
/// decoder.
pub(super) fn check_counts<'message>(
    descriptors: impl Iterator<Item = &'message [u8]> + Clone,
    bounds: Bounds,
) -> Result<(), Refusal> {
    bounds.check_descriptors(descriptors.clone().count())?;
    for (index, descriptor) in descriptors.enumerate() {
        bounds.check_entries(index, repeated(descriptor, ENTRIES).count())?;
    }
    Ok(())
}

pub(super) fn repeated(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> + Clone {
    fields(message).filter(move |(field, _)| *field == number).map(|(_, value)| value)
}

/// The length-delimited fields of a message with their numbers, up to the first malformed byte. Fields in a
/// group do not belong to the message, and are skipped, as the decoder skips them.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u32, &[u8])> + Clone {
    let mut open_groups = 0;
    iter::from_fn(move || next_field(&mut message, &mut open_groups)).flatten()
}

/// The next field of a message, if it is length-delimited and not in a group; what is not, is skipped. `None` at the end, or at a
/// malformed byte. Groups are counted, not recursed into, so nesting takes no memory. The decoder bounds its depth.
#[expect(clippy::option_option, reason = "a field that is skipped is not the end")]
pub(super) fn next_field<'message>(
    message: &mut &'message [u8],
    open_groups: &mut usize,
) -> Option<Option<(u32, &'message [u8])>> {
    let tag = varint(message)?;
    let field = u32::try_from(tag >> 3).ok()?;
    match tag & 7 {
        0 => drop(varint(message)?),
        1 => drop(message.split_off(..8)?),
        5 => drop(message.split_off(..4)?),
        2 => {
            let length = usize::try_from(varint(message)?).ok()?;
            let value = message.split_off(..length)?;
            return Some((*open_groups == 0).then_some((field, value)));
        }
        3 => *open_groups = open_groups.checked_add(1)?,
        4 => *open_groups = open_groups.checked_sub(1)?,
        _ => return None,
    }
    Some(None)
}

pub(super) fn varint(message: &mut &[u8]) -> Option<u64> {
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
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_depth_of_nested_groups_is_left_to_the_decoder() {
        let nested = |depth: usize| [[0x4b].repeat(depth), [0x4c].repeat(depth)].concat();
        for depth in [99, 101, 1_000_000] {
            let message = [&nested(depth)[..], &[0x12, 0x00]].concat();
            check_counts(repeated(&message, DESCRIPTORS), Bounds::default())
                .expect("one descriptor");
            let decoded = pb::RateLimitRequest::decode(message.as_slice());
            assert_eq!(decoded.is_ok(), depth < 100, "{depth}");
        }
    }

    fn field(number: u32, wire_type: u8, payload: &[u8]) -> Vec<u8> {
        let mut field = Vec::new();
        prost::encoding::encode_varint(u64::from(number << 3 | u32::from(wire_type)), &mut field);
        if wire_type == 2 {
            prost::encoding::encode_varint(payload.len() as u64, &mut field);
        }
        field.extend(payload);
        if wire_type == 3 {
            prost::encoding::encode_varint(u64::from(number << 3 | 4), &mut field);
        }
        field
    }

    /// Fields that our messages do not have, some of them nested groups.
    fn unknown_field() -> impl Strategy<Value = Vec<u8>> {
        let number = || 9_u32..3_000;
        let leaf = prop_oneof![
            (number(), 0_u8..0x80).prop_map(|(number, value)| field(number, 0, &[value])),
            (number(), any::<[u8; 8]>()).prop_map(|(number, value)| field(number, 1, &value)),
            (number(), any::<[u8; 4]>()).prop_map(|(number, value)| field(number, 5, &value)),
            (number(), prop::collection::vec(any::<u8>(), 0..9))
                .prop_map(|(number, value)| field(number, 2, &value)),
        ];
        leaf.prop_recursive(8, 32, 4, move |inner| {
            // A group may hold any number, also the numbers of our descriptors and entries.
            let inside =
                (1_u32..4, inner.clone()).prop_map(|(number, value)| field(number, 2, &value));
            let fields = prop::collection::vec(prop_oneof![inner, inside], 0..4);
            (number(), fields).prop_map(|(number, fields)| field(number, 3, &fields.concat()))
        })
    }

    /// A message, and before it the number of entries in each of its descriptors. Unknown fields are before
    /// and in the descriptors, and are the contents of the entries.
    fn message() -> impl Strategy<Value = (Vec<usize>, Vec<u8>)> {
        let entries = prop::collection::vec(unknown_field(), 0..5);
        let descriptors = prop::collection::vec((entries, unknown_field(), unknown_field()), 0..5);
        descriptors.prop_map(|descriptors| {
            let counts = descriptors.iter().map(|(entries, ..)| entries.len()).collect();
            let mut message = Vec::new();
            for (entries, inside, before) in descriptors {
                let entries = entries.iter().map(|entry| field(ENTRIES, 2, entry));
                let inside = iter::once(inside).chain(entries).collect::<Vec<_>>().concat();
                message.extend([before, field(DESCRIPTORS, 2, &inside)].concat());
            }
            (counts, message)
        })
    }

    proptest! {
        /// P33: the decoder never finds more descriptors than are counted here.
        #[test]
        fn descriptors_in_any_bytes_are_counted_as_the_decoder_reads_them(
            message in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let counted = repeated(&message, DESCRIPTORS).count();
            if let Ok(decoded) = pb::RateLimitRequest::decode(message.as_slice()) {
                prop_assert_eq!(decoded.descriptors.len(), counted);
            }
        }

        #[test]
        fn unknown_fields_and_groups_do_not_change_the_counts((expected, message) in message()) {
            let decoded = pb::RateLimitRequest::decode(message.as_slice()).expect("it is valid");
            let decoded = decoded.descriptors.iter().map(|descriptor| descriptor.entries.len());
            let decoded: Vec<_> = decoded.collect();
            let counted: Vec<_> = repeated(&message, DESCRIPTORS)
                .map(|descriptor| repeated(descriptor, ENTRIES).count())
                .collect();
            prop_assert_eq!(&counted, &expected);
            prop_assert_eq!(&decoded, &expected);
        }
    }
}
