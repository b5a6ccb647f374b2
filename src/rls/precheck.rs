//! From received bytes to a request. Repeated fields are counted on the wire before anything is
//! allocated for them: two bytes there are a hundred in memory.

use bytes::Bytes;
use prost::Message as _;
use tonic::Status;

use super::{
    decode::{self, Bounds, Decoded},
    pb,
};

/// Decodes a request within bounds.
///
/// # Errors
/// INVALID_ARGUMENT, with the field and the bound; INTERNAL for what is not Protobuf.
pub(super) fn request(message: Bytes, bounds: Bounds) -> Result<Decoded, Status> {
    count(&message, bounds)?;
    let message = pb::RateLimitRequest::decode(message)
        .map_err(|error| Status::internal(error.to_string()))?;
    decode::request(message, bounds)
}

/// The tags of `RateLimitRequest.descriptors` and `RateLimitDescriptor.entries`.
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;

/// Refuses a message of too many descriptors, or a descriptor of too many entries. What is not
/// Protobuf is left to the decoder.
fn count(message: &[u8], bounds: Bounds) -> Result<(), Status> {
    let descriptors = || fields(message).filter(|(field, _)| *field == DESCRIPTORS);
    bounds.check_descriptors(descriptors().count())?;
    for (index, (_, descriptor)) in descriptors().enumerate() {
        let entries = fields(descriptor).filter(|(field, _)| *field == ENTRIES).count();
        bounds.check_entries(index, entries)?;
    }
    Ok(())
}

/// The length-delimited fields of a message, by number; ends where it stops being Protobuf.
fn fields(mut message: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
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
                    return Some((field, message.split_off(..length)?));
                }
                // Groups: proto3 has none, and the decoder says so.
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
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { descriptors_max: 64, echo: crate::rls::decode::Echo::Off };

    #[track_caller]
    fn refused(message: &[u8], expected: &str) {
        assert_eq!(count(message, BOUNDS).expect_err("too many").message(), expected);
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
    }
}
