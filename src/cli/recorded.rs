//! Recorded calls, in the order in which they were decided.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
};

use bytes::{Buf as _, BytesMut};
use lz4_flex::frame::FrameDecoder;
use prost::Message as _;
use serde::Serialize;
use tollkeeper_proto::{
    Entry, RateLimitDescriptor,
    recording::{RecordedCall, recorded_call::Meaning},
};

use crate::{
    engine::{
        parameters::Parameters,
        request::{self, Descriptor, Hits, HitsMeaning, Request},
        time::Timestamp,
    },
    recording, rls,
};

/// Workers write their calls at most once in this time, so that the calls of a file are this far from their order.
const DISORDER_MS: u64 = 2_000;

/// No call is longer: messages of the service have at most 64 MiB.
const CALL_BYTES_MAX: usize = 128 << 20;

const READ_BYTES: usize = 64 << 10;

/// A recorded call.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) at: Timestamp,
    pub(super) request: Request,
    pub(super) meaning: HitsMeaning,
    pub(super) denied: bool,
    pub(super) over: Vec<Over>,
    /// The digest of the token of what it has taken; empty if nothing.
    pub(super) hold: String,
    pub(super) without_store: bool,
    pub(super) overridden: bool,
}

/// A limit that a recorded call was over.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Over {
    pub(super) descriptor: usize,
    pub(super) rule: String,
    pub(super) limit: String,
    pub(super) reset_ms: u64,
    pub(super) shadow: bool,
}

/// Files of recordings, whose calls are read in their order.
pub(super) struct Recording {
    files: Vec<CallFile>,
    /// The next call of each file.
    next: BTreeMap<Place, Call>,
    problems: Vec<String>,
}

/// The place of a call in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    at: Timestamp,
    turn: Turn,
    /// The index of the file, or the number of the call in its file.
    number: usize,
}

/// What comes first of a millisecond, since many calls are decided in one step, and by several workers: so a counter fills, and
/// is full before hits come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Admitted,
    Denied,
    GivesBack,
}

impl Place {
    fn new(call: &Call, number: usize) -> Self {
        let gives_back = |descriptor: &Descriptor| {
            matches!(descriptor.hits, Hits::Refund(_))
                || Parameters::of(&descriptor.entries).is_some_and(|one| one.commit().is_some())
        };
        let turn = if call.denied {
            Turn::Denied
        } else if call.request.descriptors.iter().any(gives_back) {
            Turn::GivesBack
        } else {
            Turn::Admitted
        };
        Self { at: call.at, turn, number }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl Recording {
    /// Opens files, and all files of a recording in folders.
    ///
    /// # Errors
    /// The files that cannot be opened, and the folders that have none.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, Vec<String>> {
        let (mut files, mut problems) = (Vec::new(), Vec::new());
        for path in paths {
            let found = if path.is_dir() { recording::files(path) } else { Ok(vec![path.clone()]) };
            match found {
                Ok(found) if found.is_empty() => {
                    problems.push(format!("{}: no file of a recording", path.display()));
                }
                Ok(found) => files.extend(found),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
        let mut opened = Vec::new();
        for path in files {
            match CallFile::open(&path) {
                Ok(file) => opened.push(file),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let mut recording = Self { files: opened, next: BTreeMap::new(), problems };
        (0..recording.files.len()).for_each(|index| recording.advance(index));
        Ok(recording)
    }

    /// What was wrong with files so far. All that could be read before counts.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    fn advance(&mut self, index: usize) {
        let Some(file) = self.files.get_mut(index) else { return };
        match file.next() {
            Some(Ok(call)) => {
                self.next.insert(Place::new(&call, index), call);
            }
            Some(Err(problem)) => {
                self.problems.push(problem);
                self.advance(index);
            }
            None => {}
        }
    }
}

impl Iterator for Recording {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        let (Place { number, .. }, call) = self.next.pop_first()?;
        self.advance(number);
        Some(call)
    }
}

/// Writes a recording of calls without verdicts.
pub(super) struct RecordingWriter {
    file: File,
    calls: Vec<u8>,
}

impl RecordingWriter {
    /// Creates the file.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create_new(path)?, calls: Vec::new() })
    }

    /// Adds a call of one hit.
    pub(super) fn add(
        &mut self,
        at: Timestamp,
        domain: &str,
        descriptors: Vec<Vec<request::Entry>>,
    ) -> io::Result<()> {
        let entry = |request::Entry { key, value }| Entry { key, value };
        let descriptors = descriptors.into_iter().map(|entries| RateLimitDescriptor {
            entries: entries.into_iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        });
        let call = RecordedCall {
            at_ms: at.as_millis(),
            domain: domain.to_owned(),
            descriptors: descriptors.collect(),
            hits: 1,
            ..RecordedCall::default()
        };
        call.encode_length_delimited(&mut self.calls).map_err(io::Error::other)?;
        if self.calls.len() >= READ_BYTES { self.finish() } else { Ok(()) }
    }

    /// Writes what is left.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.file.write_all(&recording::compressed(&self.calls)?)?;
        self.calls.clear();
        Ok(())
    }
}

/// The calls of one file, in their order.
struct CallFile {
    path: PathBuf,
    /// `None` at the end.
    frames: Option<FrameDecoder<BufReader<File>>>,
    read: BytesMut,
    count: usize,
    /// Calls before which others may still come.
    waiting: BTreeMap<Place, Call>,
    newest: Timestamp,
}

impl CallFile {
    fn open(path: &Path) -> io::Result<Self> {
        let frames = FrameDecoder::new(BufReader::with_capacity(READ_BYTES, File::open(path)?));
        Ok(Self {
            path: path.to_owned(),
            frames: Some(frames),
            read: BytesMut::new(),
            count: 0,
            waiting: BTreeMap::new(),
            newest: Timestamp::default(),
        })
    }

    fn next(&mut self) -> Option<Result<Call, String>> {
        while self.frames.is_some() && !self.is_first_settled() {
            match self.read_call() {
                Ok(Some(call)) => {
                    self.newest = self.newest.max(call.at);
                    self.waiting.insert(Place::new(&call, self.count), call);
                    self.count += 1;
                }
                Ok(None) => self.frames = None,
                Err(problem) => {
                    self.frames = None;
                    let path = self.path.display();
                    return Some(Err(match self.count {
                        0 => format!("{path}: is no recording of calls: {problem}"),
                        count => format!("{path}: ends after {count} calls: {problem}"),
                    }));
                }
            }
        }
        self.waiting.pop_first().map(|(_, call)| Ok(call))
    }

    /// Whether no call can come any more before the first that waits.
    fn is_first_settled(&self) -> bool {
        let first = self.waiting.first_key_value();
        first.is_some_and(|(place, _)| place.at.plus_millis(DISORDER_MS) < self.newest)
    }

    fn read_call(&mut self) -> Result<Option<Call>, String> {
        loop {
            if let Some((length, varint)) = length(&self.read)? {
                if length > CALL_BYTES_MAX {
                    return Err(format!("a call of {length} bytes"));
                }
                if self.read.len() >= varint + length {
                    self.read.advance(varint);
                    let message = self.read.split_to(length).freeze();
                    let call = RecordedCall::decode(message).map_err(|error| error.to_string())?;
                    return call_of(call).map(Some);
                }
            }
            if self.fill().map_err(|error| error.to_string())? == 0 {
                let is_whole = self.read.is_empty();
                return if is_whole { Ok(None) } else { Err("it ends within a call".to_owned()) };
            }
        }
    }

    /// Reads more bytes; 0 at the end.
    fn fill(&mut self) -> io::Result<usize> {
        let Some(frames) = &mut self.frames else { return Ok(0) };
        let before = self.read.len();
        self.read.resize(before + READ_BYTES, 0);
        let into = self.read.get_mut(before..).unwrap_or_default();
        // At the end of a frame it returns 0 once.
        let read = match frames.read(into) {
            Ok(0) => frames.read(into),
            read => read,
        };
        self.read.truncate(before + *read.as_ref().unwrap_or(&0));
        read
    }
}

/// The length of the message that begins here, and of its varint; `None` if the varint is not whole.
fn length(bytes: &[u8]) -> Result<Option<(usize, usize)>, String> {
    let mut length = 0_usize;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((length, index + 1)));
        }
    }
    if bytes.len() < 5 { Ok(None) } else { Err("a length that is none".to_owned()) }
}

fn call_of(call: RecordedCall) -> Result<Call, String> {
    let meaning = match call.meaning() {
        Meaning::Charged => HitsMeaning::Charged,
        Meaning::Expected => HitsMeaning::Expected,
        Meaning::Done => HitsMeaning::Done,
        Meaning::Part => HitsMeaning::Part,
        Meaning::Checked => HitsMeaning::Checked,
        Meaning::Read => HitsMeaning::Read,
    };
    let request = rls::decode::recorded(call.domain, call.descriptors, call.hits)?;
    let over = call.over.into_iter().map(|over| Over {
        descriptor: usize::try_from(over.descriptor).unwrap_or(usize::MAX),
        rule: over.rule,
        limit: over.limit,
        reset_ms: over.reset_ms,
        shadow: over.shadow,
    });
    Ok(Call {
        at: Timestamp::from_millis(call.at_ms),
        request,
        meaning,
        denied: call.denied,
        over: over.collect(),
        hold: call.hold,
        without_store: call.without_store,
        overridden: call.overridden,
    })
}
