//! Recording of calls and their verdicts into files, so that they can be replayed with other rules. A call only adds to a
//! buffer of its worker. A task writes what is buffered, and drops what has no place.

mod call;
mod file;

use std::{
    fmt, fs, mem,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Meter},
};
use parking_lot::Mutex;
use siphasher::sip::SipHasher24;
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use self::{
    call::{CALL_BYTES_MAX, RecordedValues, Shapes},
    file::Folder,
};
pub use self::{
    call::{Recorded, fill_in},
    file::{compressed, create, files, written_from},
};
use crate::{
    engine::rule_set::RuleSet,
    process::{clock::system_clock, workers},
    telemetry::{LogCause, due_line, instruments},
};

instruments! {
    struct RecordingInstruments {
        calls: Counter<u64> => CALLS = Counter("ratelimit.recorded_calls", ["outcome"],
            "calls for the recording of `--record`: `written`, or `dropped`, because the disk took them too slowly or not at all, they are longer than 64 KiB, or the key of digests was not known");
    }
}

/// A worker hands its buffer over when it has this size.
const BLOCK_BYTES: usize = 256 << 10;

/// A whole buffer, and its last call.
const BLOCK_CAPACITY: usize = BLOCK_BYTES + CALL_BYTES_MAX;

/// The most buffers that wait for the disk, beside one of each worker.
const BLOCKS_MAX: usize = 32;

/// A worker hands its buffer over at the latest after this time.
const HAND_OVER_EVERY: Duration = Duration::from_secs(1);

/// Where calls are recorded.
#[derive(Debug, Clone)]
pub struct RecordingOptions {
    pub folder: PathBuf,
    /// The most bytes of all files in the folder.
    pub bytes_max: usize,
    /// Whether values are recorded themselves, in place of digests.
    pub shows_values: bool,
    /// Whether calls are recorded only while an operator has asked for it.
    pub when_asked: bool,
}

/// Gives the key of digests, which the replicas share, once it is known.
pub type Key = Box<dyn Fn() -> Option<[u8; 16]> + Send + Sync>;

/// Records calls.
pub struct Recorder {
    options: RecordingOptions,
    key: Key,
    /// One for each worker, and one for other threads.
    buffers: Box<[Buffer]>,
    full: mpsc::Sender<Block>,
    blocks: tokio::sync::Mutex<mpsc::Receiver<Block>>,
    metrics: RecordingInstruments,
    /// Each second it is seen whether it has ended.
    is_on: AtomicBool,
    /// When it ends; `None` if it does not.
    ends: Mutex<Option<Instant>>,
}

/// Its key is a secret.
impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What a worker writes at each call, apart from the cache lines of the others.
#[derive(Default)]
#[repr(align(128))]
struct Buffer(Mutex<Buffered>);

#[derive(Default)]
struct Buffered {
    /// Makes digests; `None` until their key is known.
    digests: Option<SipHasher24>,
    shapes: Shapes,
    block: Block,
}

/// Calls one after another, as they are written.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    calls: u64,
}

impl Buffered {
    /// Takes the block. The next one has shapes of its own, since a reader may see no other block.
    fn take(&mut self, next: Block) -> Block {
        self.shapes.clear();
        mem::replace(&mut self.block, next)
    }
}

impl Recorder {
    /// Records calls of this number of workers, once the key of digests is known.
    pub fn new(options: RecordingOptions, key: Key, workers: usize, meter: &Meter) -> Self {
        let (full, blocks) = mpsc::channel(BLOCKS_MAX + workers);
        let metrics = RecordingInstruments::of_meter(meter);
        for outcome in ["written", "dropped"] {
            metrics.calls.add(0, &[KeyValue::new("outcome", outcome)]);
        }
        let is_on = !options.when_asked;
        Self {
            is_on: is_on.into(),
            ends: Mutex::new((!is_on).then(Instant::now)),
            options,
            key,
            buffers: (0..=workers).map(|_| Buffer::default()).collect(),
            full,
            blocks: blocks.into(),
            metrics,
        }
    }

    pub fn folder_path(&self) -> &Path {
        &self.options.folder
    }

    /// Records calls for this time from now on, or for ever if not only when asked; at once no more if it is 0.
    pub fn record_for(&self, time: Duration) {
        let mut ends = self.ends.lock();
        *ends = (self.options.when_asked || time.is_zero()).then(|| Instant::now() + time);
        self.is_on.store(!time.is_zero(), Ordering::Relaxed);
    }

    /// How long calls are recorded from now on, 0 if they are not; `None` without end.
    pub fn time_left(&self) -> Option<Duration> {
        let ends = self.ends.lock();
        let left = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            self.is_on.store(false, Ordering::Relaxed);
        }
        left
    }

    /// Whether calls are recorded now.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Records a call that was decided by these rules, while [`is_on`](Self::is_on).
    pub fn record(&self, rules: &RuleSet, call: Recorded<'_>) {
        let Some(buffer) = self.buffers.get(workers::share(self.buffers.len())) else { return };
        let mut buffered = buffer.0.lock();
        let Buffered { digests, shapes, block } = &mut *buffered;
        if digests.is_none() {
            *digests = self.digests();
        }
        let Some(digests) = digests else { return self.count("dropped", 1) };
        let values = RecordedValues { rules, digests, shows_values: self.options.shows_values };
        if !values.write(call, shapes, &mut block.bytes) {
            block.bytes.shrink_to(BLOCK_CAPACITY);
            return self.count("dropped", 1);
        }
        block.calls += 1;
        if block.bytes.len() >= BLOCK_BYTES {
            let next = Block { bytes: Vec::with_capacity(BLOCK_CAPACITY), calls: 0 };
            self.hand_over(buffered.take(next));
        }
    }

    /// Writes what is recorded, until `stop`.
    pub async fn follow(&self, stop: CancellationToken) {
        let path = self.options.folder.clone();
        let created = spawn_blocking(move || {
            fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))
        });
        if let Ok(Err(problem)) = created.await {
            report(&problem);
        }
        // Not behind the disk: a reader expects the calls of a file at most two seconds out of order.
        let handing_over = async {
            let mut due = time::interval(HAND_OVER_EVERY);
            while stop.run_until_cancelled(due.tick()).await.is_some() {
                if let Some(digests) = self.digests() {
                    let buffers = self.buffers.iter();
                    buffers.for_each(|buffer| buffer.0.lock().digests = Some(digests));
                }
                self.time_left();
                self.buffered().into_iter().for_each(|block| self.hand_over(block));
            }
        };
        let writing = async {
            let (mut folder, mut full) = (self.folder(), self.blocks.lock().await);
            while let Some(Some(block)) = stop.run_until_cancelled(full.recv()).await {
                folder = self.write(folder, block).await;
            }
        };
        tokio::join!(handing_over, writing);
    }

    /// Writes what is left.
    pub async fn end(&self) {
        let (mut folder, mut full) = (self.folder(), self.blocks.lock().await);
        while let Ok(block) = full.try_recv() {
            folder = self.write(folder, block).await;
        }
        for block in self.buffered() {
            folder = self.write(folder, block).await;
        }
    }

    /// What is buffered, in few blocks.
    fn buffered(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for buffer in &self.buffers {
            let block = buffer.0.lock().take(Block::default());
            let fits = |last: &&mut Block| last.bytes.len() + block.bytes.len() <= BLOCK_BYTES;
            match blocks.last_mut().filter(fits) {
                Some(last) => {
                    last.bytes.extend_from_slice(&block.bytes);
                    last.calls += block.calls;
                }
                None if block.calls > 0 => blocks.push(block),
                None => {}
            }
        }
        blocks
    }

    fn hand_over(&self, block: Block) {
        if let Err(error) = self.full.try_send(block) {
            self.count("dropped", error.into_inner().calls);
        }
    }

    fn folder(&self) -> Folder {
        Folder::new(&self.options.folder, self.options.bytes_max)
    }

    async fn write(&self, mut folder: Folder, block: Block) -> Folder {
        let calls = block.calls;
        let written = spawn_blocking(move || {
            let written = folder.write(&block.bytes, system_clock());
            (folder, written)
        });
        let (folder, written) = match written.await {
            Ok(written) => written,
            Err(error) => (self.folder(), Err(error.to_string())),
        };
        match written {
            Ok(()) => self.count("written", calls),
            Err(problem) => {
                self.count("dropped", calls);
                report(&problem);
            }
        }
        folder
    }

    fn digests(&self) -> Option<SipHasher24> {
        (self.key)().map(|key| SipHasher24::new_with_key(&key))
    }

    fn count(&self, outcome: &'static str, calls: u64) {
        self.metrics.calls.add(calls, &[KeyValue::new("outcome", outcome)]);
    }
}

fn report(problem: &str) {
    if let Some(line) = due_line(LogCause::Recording, "") {
        tracing::error!(suppressed = line.suppressed, "calls cannot be recorded: {problem}");
    }
}
