//! The memory that clients make us hold: parts of messages and of header blocks, open calls, answers that are not read.
//! Bounded for each connection, and for all of them.
//!
//! At the bound of all, a connection that holds more than an equal part is refused. For one that holds less, the one
//! that holds most is closed. So connections that hold the whole bound do not get the calls of others refused.

use std::{
    mem,
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::time;
use tokio_util::sync::CancellationToken;

/// Most bytes that one connection holds. Enough for the messages of Envoy's default of 1,024 concurrent calls, each with
/// its default maximum of 60 KiB of headers, or for one message of the largest `--max-message-bytes`.
pub(crate) const CONNECTION_BYTES_MAX: usize = 65 << 20;

/// Bytes of each connection that do not count towards `--max-arriving-bytes`, so that usual calls do not touch what all
/// connections share.
const FREE_BYTES: usize = 16 << 10;

/// About what an open call takes whose answer is not read, in bytes.
pub(crate) const ANSWERED_CALL_BYTES: usize = 1 << 10;

/// What a client must read or complete is held for at most twice this time.
const HELD_FOR: Duration = Duration::from_secs(10);

/// A bound on the bytes that all connections hold.
#[derive(Debug)]
pub struct ArrivalBudget {
    bytes_max: usize,
    held: AtomicUsize,
    open: AtomicUsize,
    /// The open connections, and some that have ended.
    connections: Mutex<Vec<Weak<ConnectionBudget>>>,
}

/// A bound on the bytes that one connection holds.
#[derive(Debug)]
pub struct ConnectionBudget {
    all: Arc<ArrivalBudget>,
    bytes_max: usize,
    held: AtomicUsize,
    /// Cancelled when the connection must make room for others.
    pub(crate) closing: CancellationToken,
    /// What is held briefly keeps the `Arc` of the [span](HELD_FOR) in which it began, this one or the last.
    spans: Mutex<[Arc<()>; 2]>,
}

/// The budget is used up. It holds the bound, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unfinished messages and unread answers: over {0} bytes")]
pub struct BudgetSpent(pub usize);

impl ArrivalBudget {
    pub fn new(bytes_max: usize) -> Arc<Self> {
        let connections = Mutex::default();
        Arc::new(Self { bytes_max, held: 0.into(), open: 0.into(), connections })
    }

    pub fn connection(self: &Arc<Self>, bytes_max: usize) -> Arc<ConnectionBudget> {
        self.open.fetch_add(1, Relaxed);
        let connection = Arc::new(ConnectionBudget {
            all: Arc::clone(self),
            bytes_max,
            held: 0.into(),
            closing: CancellationToken::new(),
            spans: Mutex::default(),
        });
        let mut connections = self.connections.lock();
        if connections.len() == connections.capacity() {
            connections.retain(|connection| connection.strong_count() > 0);
        }
        connections.push(Arc::downgrade(&connection));
        connection
    }

    /// Makes room for a connection that holds `own` bytes.
    fn make_room(&self, own: usize) -> Result<(), BudgetSpent> {
        if own > self.bytes_max / self.open.load(Relaxed).max(1) {
            return Err(BudgetSpent(self.bytes_max));
        }
        let connections = self.connections.lock();
        let open = connections.iter().filter_map(Weak::upgrade);
        let (closing, open): (Vec<_>, Vec<_>) = open.partition(|one| one.closing.is_cancelled());
        let held = |connection: &Arc<ConnectionBudget>| connection.held.load(Relaxed);
        // Connections that are being closed soon free their part.
        let staying = self.held.load(Relaxed).saturating_sub(closing.iter().map(held).sum());
        if staying > self.bytes_max
            && let Some(greediest) = open.into_iter().max_by_key(held)
        {
            greediest.closing.cancel();
        }
        Ok(())
    }
}

impl ConnectionBudget {
    /// Nothing yet, to be added to.
    pub(crate) fn reserve(self: &Arc<Self>) -> HeldBytes {
        HeldBytes { budget: Arc::clone(self), bytes: 0, _span: None }
    }

    /// Whether as many bytes can be held without taking room from others.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let is_below = |held: &AtomicUsize, most| held.load(Relaxed).saturating_add(bytes) <= most;
        is_below(&self.held, self.bytes_max) && is_below(&self.all.held, self.all.bytes_max)
    }

    /// Like [`reserve`](Self::reserve). The connection is closed if it is not dropped in time.
    pub(crate) fn reserve_briefly(self: &Arc<Self>) -> HeldBytes {
        let [span, _] = &*self.spans.lock();
        HeldBytes { budget: Arc::clone(self), bytes: 0, _span: Some(Arc::clone(span)) }
    }

    /// An answer, which is held until it is written.
    pub(crate) fn hold_answer(
        self: &Arc<Self>,
        answer: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Bytes, BudgetSpent> {
        let mut held = self.reserve_briefly();
        held.add(ANSWERED_CALL_BYTES + answer.as_ref().len())?;
        Ok(held.hold(answer))
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Ends when the connection must be closed: for others, or since it has held something for too long.
    pub(crate) async fn is_over(&self) {
        let overdue = async {
            loop {
                time::sleep(HELD_FOR).await;
                if self.begin_span() {
                    break;
                }
            }
        };
        self.closing.run_until_cancelled(overdue).await;
    }

    /// Returns whether something is still held since the span before the last.
    fn begin_span(&self) -> bool {
        let mut spans = self.spans.lock();
        let [this, last] = &mut *spans;
        Arc::strong_count(&mem::replace(last, mem::take(this))) > 1
    }

    /// Holds these bytes, or refuses them at once. Waiting could deadlock: the unread data of a waiting message
    /// fills the flow-control windows that the other messages need to arrive.
    fn take(&self, bytes: usize) -> Result<(), BudgetSpent> {
        let before = self.held.fetch_add(bytes, Relaxed);
        let own = before.saturating_add(bytes);
        let counted = own.saturating_sub(before.max(FREE_BYTES));
        // What all connections share is left alone by usual calls.
        let is_over =
            counted > 0 && self.all.held.fetch_add(counted, Relaxed) + counted > self.all.bytes_max;
        let taken = match own > self.bytes_max {
            true => Err(BudgetSpent(self.bytes_max)),
            false if is_over => self.all.make_room(own),
            false => Ok(()),
        };
        taken.inspect_err(|_| self.release(bytes))
    }

    fn release(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Relaxed);
        let counted = before.saturating_sub((before - bytes).max(FREE_BYTES));
        if counted > 0 {
            self.all.held.fetch_sub(counted, Relaxed);
        }
    }
}

impl Drop for ConnectionBudget {
    fn drop(&mut self) {
        self.all.open.fetch_sub(1, Relaxed);
    }
}

/// Bytes that a connection holds. They are released on drop.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    budget: Arc<ConnectionBudget>,
    bytes: usize,
    /// The span in which it began, if it is to be short.
    _span: Option<Arc<()>>,
}

impl HeldBytes {
    /// Takes further bytes, or refuses them at once.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), BudgetSpent> {
        self.budget.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes what is missing to this many bytes, or refuses it at once.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), BudgetSpent> {
        self.add(bytes.saturating_sub(self.bytes))
    }

    /// An answer, which holds these bytes until it is written.
    pub(crate) fn hold(self, answer: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(HeldAnswer { answer, _held: self })
    }

    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: Arc::clone(&self.budget), bytes, _span: self._span.clone() }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

/// A buffer of what arrives. Its allocation counts, whatever it is filled with.
pub(crate) struct HeldBuffer {
    bytes: BytesMut,
    held: HeldBytes,
}

impl HeldBuffer {
    pub(crate) fn new(budget: &Arc<ConnectionBudget>) -> Self {
        Self { bytes: BytesMut::new(), held: budget.reserve() }
    }

    /// Appends this data. A buffer without room for it grows to `wanted` bytes, or to what the data needs if that is more.
    pub(crate) fn push(&mut self, data: &[u8], wanted: usize) -> Result<(), BudgetSpent> {
        let length = self.bytes.len() + data.len();
        if length > self.bytes.capacity() {
            let (before, capacity) = (self.held.bytes, length.max(wanted));
            self.held.grow_to(capacity)?;
            let mut bytes = BytesMut::with_capacity(capacity);
            bytes.extend_from_slice(&self.bytes);
            self.bytes = bytes;
            drop(self.held.split(before.saturating_sub(capacity)));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Holds what needs no copy, instead of what it has.
    pub(crate) fn hold(mut self, data: Bytes) -> Result<(Bytes, HeldBytes), BudgetSpent> {
        self.held.add(data.len())?;
        Ok((data, self.held))
    }

    /// Takes the first bytes, up to this index. Neither they nor the rest keep the memory of the other.
    pub(crate) fn take(&mut self, end: usize) -> Result<(Bytes, HeldBytes), BudgetSpent> {
        let (first, rest) = self.bytes.split_at(end.min(self.bytes.len()));
        let mut other = Self::new(&self.held.budget);
        if rest.len() > first.len() {
            other.push(first, 0)?;
            self.bytes.advance(other.bytes.len());
        } else {
            other.push(rest, 0)?;
            mem::swap(self, &mut other);
            other.bytes.truncate(end);
        }
        Ok((other.bytes.freeze(), other.held))
    }
}

impl Deref for HeldBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

struct HeldAnswer<A> {
    answer: A,
    _held: HeldBytes,
}

impl<A: AsRef<[u8]>> AsRef<[u8]> for HeldAnswer<A> {
    fn as_ref(&self) -> &[u8] {
        self.answer.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections of a budget, each with what it holds first.
    fn connections<const N: usize>(
        all: &Arc<ArrivalBudget>,
        bytes: [usize; N],
    ) -> [(Arc<ConnectionBudget>, HeldBytes); N] {
        let all = [(); N].map(|()| all.connection(1 << 20));
        let mut sizes = bytes.into_iter();
        all.map(|connection| {
            let mut held = connection.reserve();
            assert_eq!(held.add(sizes.next().unwrap()), Ok(()));
            (connection, held)
        })
    }

    #[test]
    fn bytes_over_the_bound_of_a_connection_are_refused_and_dropped_ones_are_free_again() {
        let all = ArrivalBudget::new(1 << 20);
        let connection = all.connection(100_000);
        let (mut first, mut second) = (connection.reserve(), connection.reserve());
        assert_eq!(first.add(60_000), Ok(()));
        assert_eq!(second.add(50_000), Err(BudgetSpent(100_000)));
        assert_eq!(second.add(40_000), Ok(()));
        drop(first);
        assert_eq!(second.add(60_000), Ok(()));
        assert_eq!(all.held.load(Relaxed), 100_000 - FREE_BYTES);
        drop((second, connection));
        assert_eq!((all.held.load(Relaxed), all.open.load(Relaxed)), (0, 0));
    }

    #[test]
    fn the_first_bytes_of_each_connection_do_not_count_towards_the_bound_of_all() {
        let all = ArrivalBudget::new(100_000);
        let held = connections(&all, [FREE_BYTES; 20]);
        assert_eq!(all.held.load(Relaxed), 0);
        drop(held);
        assert_eq!(all.held.load(Relaxed), 0);
    }

    #[test]
    fn at_the_bound_of_all_who_holds_much_is_refused_and_for_others_the_greediest_is_closed() {
        let all = ArrivalBudget::new(200_000);
        let free = FREE_BYTES;
        let [(greediest, _a), (greedy, mut b), (modest, mut c), (_, _d)] =
            connections(&all, [120_000 + free, 80_000 + free, 10_000, 0]);
        assert_eq!(b.add(1), Err(BudgetSpent(200_000)));
        assert!(!greediest.closing.is_cancelled(), "nobody is closed for one that holds much");
        for bytes in [20_000, 1, 1] {
            assert_eq!(c.add(bytes), Ok(()));
            assert!(greediest.closing.is_cancelled());
            assert!(!greedy.closing.is_cancelled(), "the greediest has not given back yet");
            assert!(!modest.closing.is_cancelled());
        }
    }

    #[test]
    fn a_buffer_holds_what_it_has_allocated_until_that_is_free_again() {
        let connection = ArrivalBudget::new(1 << 20).connection(1_000);
        let mut buffer = HeldBuffer::new(&connection);
        let held = |buffer: &HeldBuffer| {
            assert_eq!(connection.held(), buffer.bytes.capacity());
            connection.held()
        };
        let pushed = [(3, 0, 3), (4, 100, 100), (93, 900, 100), (1, 150, 150), (100, 0, 201)];
        for (bytes, wanted, allocated) in pushed {
            assert_eq!(buffer.push(&[b'x'; 100][..bytes], wanted), Ok(()));
            assert_eq!(held(&buffer), allocated);
        }
        assert_eq!(buffer.push(b"x", 1_001), Err(BudgetSpent(1_000)));
        assert_eq!((buffer.len(), held(&buffer)), (201, 201));

        let (first, of_first) = buffer.take(101).unwrap();
        assert_eq!((first.len(), buffer.len(), connection.held()), (101, 100, 201 + 100));
        drop((first, of_first));
        let (short, of_short) = buffer.take(10).unwrap();
        assert_eq!((short.len(), buffer.len(), connection.held()), (10, 90, 10 + 100));
        drop((short, of_short));
        assert_eq!(buffer.push(b"x", 0), Ok(()));
        assert_eq!((buffer.len(), held(&buffer)), (91, 91), "what was taken is free");
        let last = buffer.take(91).unwrap();
        assert_eq!((last.0.len(), buffer.len(), connection.held()), (91, 0, 91));
        drop((last, buffer));
        assert_eq!(connection.held(), 0);
    }

    #[test]
    fn a_connection_is_over_if_something_is_not_read_in_time() {
        let connection = ArrivalBudget::new(1 << 20).connection(1 << 20);
        let waits = connection.reserve();
        let answer = || connection.hold_answer("answer").unwrap();
        let first = answer();
        assert!(!connection.begin_span());
        drop(first);
        let second = answer();
        assert!(!connection.begin_span());
        assert!(connection.begin_span());
        assert_eq!(connection.held(), ANSWERED_CALL_BYTES + 6);
        drop((second, waits));
        assert!(!connection.begin_span());
        assert_eq!(connection.held(), 0);
    }
}
