//! Follows the frames of a client. h2 decodes a header block as its frames arrive, and keeps the headers until the block
//! ends; meanwhile they count towards the memory of the connection.

use std::{mem, sync::Arc};

use crate::edge::arriving::{BudgetSpent, ConnectionBudget, HeldBytes};

/// What a client sends as soon as it is connected (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A byte can stand for a header, which takes 72 bytes, in a list whose capacity doubles.
const HEADER_BYTES: usize = 2 * 72;
/// Most that the headers of one call take: h2 keeps 9 MiB of them, and counts 32 bytes for each beside its name and value.
const BLOCK_BYTES_MAX: usize = 48 << 20;

const FRAME_HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

pub(crate) struct HeaderBlocks {
    memory: Arc<ConnectionBudget>,
    /// What remains of the preface or of a frame's payload.
    payload_remaining: usize,
    /// The begin of the next frame's head.
    head: Vec<u8>,
    /// The header block that has not ended, and how many bytes it holds.
    block: Option<(HeldBytes, usize)>,
    ends: bool,
}

impl HeaderBlocks {
    pub(crate) fn new(memory: Arc<ConnectionBudget>) -> Self {
        let head = Vec::with_capacity(FRAME_HEAD_BYTES);
        Self { memory, payload_remaining: PREFACE.len(), head, block: None, ends: false }
    }

    pub(crate) fn follow(&mut self, mut bytes: &[u8]) -> Result<(), BudgetSpent> {
        while !bytes.is_empty() {
            let wanted = match self.payload_remaining {
                0 => FRAME_HEAD_BYTES - self.head.len(),
                payload => payload,
            };
            let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.payload_remaining > 0 {
                self.payload_remaining -= taken.len();
            } else {
                self.head.extend_from_slice(taken);
                self.begin_frame()?;
            }
            if self.payload_remaining == 0 && mem::take(&mut self.ends) {
                self.block = None;
            }
        }
        Ok(())
    }

    /// Reads the head of a frame, if it is complete.
    fn begin_frame(&mut self) -> Result<(), BudgetSpent> {
        let [a, b, c, kind, flags, _, _, _, _] = self.head[..] else { return Ok(()) };
        self.head.clear();
        self.payload_remaining = u32::from_be_bytes([0, a, b, c]) as usize;
        if !matches!(kind, HEADERS | CONTINUATION) {
            return Ok(());
        }
        self.ends = flags & END_HEADERS != 0;
        if !self.ends {
            let block = self.block.get_or_insert_with(|| (self.memory.reserve_briefly(), 0));
            let (held, bytes) = block;
            let further = (self.payload_remaining * HEADER_BYTES).min(BLOCK_BYTES_MAX - *bytes);
            held.add(further)?;
            *bytes += further;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::arriving::ArrivalBudget;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], &vec![b'x'; payload]].concat()
    }

    /// Also if the bytes arrive one by one.
    #[test]
    fn a_header_block_is_held_from_its_first_frame_to_the_end_of_its_last() {
        let frames = [
            PREFACE.to_vec(),
            frame(4, 0, 6),
            frame(HEADERS, END_HEADERS, 50),
            frame(0, END_HEADERS, 300),
            frame(HEADERS, 0, 100),
            frame(CONTINUATION, 0, 0),
            frame(CONTINUATION, 0, 1000),
            frame(CONTINUATION, END_HEADERS, 10),
            frame(CONTINUATION, 0, 1),
            frame(CONTINUATION, END_HEADERS, 0),
        ];
        let held_after = [0, 0, 0, 0, 100, 100, 1100, 0, 1, 0].map(|bytes| bytes * HEADER_BYTES);
        for size in [1, 7, 2000] {
            let memory = ArrivalBudget::new(1 << 20).connection(1 << 20);
            let mut blocks = HeaderBlocks::new(Arc::clone(&memory));
            for (number, (frame, held)) in frames.iter().zip(held_after).enumerate() {
                for part in frame[..frame.len() - 1].chunks(size) {
                    blocks.follow(part).unwrap();
                }
                if number == 7 {
                    assert_eq!(memory.held(), 1100 * HEADER_BYTES, "before the last byte");
                }
                blocks.follow(&frame[frame.len() - 1..]).unwrap();
                assert_eq!(memory.held(), held, "frame {number} in parts of {size}");
            }
        }
    }

    #[test]
    fn no_block_holds_more_than_its_headers_can_take() {
        let memory = ArrivalBudget::new(1 << 30).connection(1 << 30);
        let mut blocks = HeaderBlocks::new(Arc::clone(&memory));
        blocks.follow(&[PREFACE, &frame(HEADERS, 0, 16_384)].concat()).unwrap();
        for _ in 0..600 {
            blocks.follow(&frame(CONTINUATION, 0, 16_384)).unwrap();
        }
        assert_eq!(memory.held(), BLOCK_BYTES_MAX);
    }

    #[test]
    fn a_block_over_the_bound_is_an_error() {
        let memory = ArrivalBudget::new(1 << 20).connection(1 << 20);
        let mut blocks = HeaderBlocks::new(memory);
        let bytes = [PREFACE, &frame(HEADERS, 0, 16_384)].concat();
        assert_eq!(blocks.follow(&bytes), Err(BudgetSpent(1 << 20)));
    }
}
