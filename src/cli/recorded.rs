//! Recorded calls, in the order in which they were decided.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    mem,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use bytes::{Buf as _, Bytes, BytesMut};
use lz4_flex::frame::FrameDecoder;
use prost::{DecodeError, Message as _};
use serde::Serialize;
use tollkeeper_proto::{
    Entry, RateLimitDescriptor,
    recording::{RecordedCall, recorded_call::Meaning},
};

use super::output::{Failed, complain};
use crate::{
    engine::{
        parameters::Parameters,
        request::{self, Descriptor, Hits, HitsMeaning, Request},
        time::Timestamp,
    },
    recording, rls,
    text::counted,
};

/// Workers write their calls at most once in this time, so that the calls of a file are this far from their order.
const DISORDER_MS: u64 = 2_000;

/// No call is longer: the recorder drops those above 64 KiB.
const CALL_BYTES_MAX: usize = 1 << 20;

/// With so many bytes, the length of a call is whole.
const LENGTH_BYTES_MAX: usize = 10;

const READ_BYTES: usize = 64 << 10;

/// A file has no calls that were decided longer before it was begun.
const WRITTEN_WITHIN_MS: i64 = 10_000;

/// Calls of a frame of a new recording.
const GROUP_CALLS: usize = 1_000;

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
    turn: Turn,
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
    /// The place of the next call of each file; of a file that is not open yet, the earliest that it can have.
    next: BTreeSet<Place>,
    problems: Vec<String>,
}

/// The place of a call in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    at: Timestamp,
    turn: Turn,
    /// The index of the file, or of the run in the file.
    index: usize,
}

/// What comes first of a millisecond, where workers or replicas decide at once: so a counter fills, and is full before hits come
/// back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Admitted,
    Denied,
    GivesBack,
}

impl Turn {
    fn new(request: &Request, denied: bool) -> Self {
        let gives_back = |descriptor: &Descriptor| {
            matches!(descriptor.hits, Hits::Refund(_))
                || descriptor.entries.iter().any(Parameters::is_of_commit)
        };
        if denied {
            Self::Denied
        } else if request.descriptors.iter().any(gives_back) {
            Self::GivesBack
        } else {
            Self::Admitted
        }
    }
}

impl Place {
    const fn new(call: &Call, index: usize) -> Self {
        Self { at: call.at, turn: call.turn, index }
    }
}

impl Recording {
    /// A recording of files, and of all files in folders. Each file counts once.
    ///
    /// # Errors
    /// The files that are not there, and the folders that have none.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self, Failed> {
        let (mut files, mut problems) = (BTreeSet::new(), Vec::new());
        for path in paths {
            let found = if path.is_dir() { recording::files(path) } else { Ok(vec![path.clone()]) };
            let found = found.and_then(|found| found.into_iter().map(fs::canonicalize).collect());
            match found {
                Ok(found) if Vec::is_empty(&found) => {
                    problems.push(format!("{}: no file of a recording", path.display()));
                }
                Ok(found) => files.extend(found),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
        if !problems.is_empty() {
            return Err(Failed::problems(problems));
        }
        let files: Vec<CallFile> = files.into_iter().map(CallFile::new).collect();
        let places = files.iter().enumerate().map(|(index, file)| {
            let from = recording::written_from(&file.path).unwrap_or_default();
            let at = from.shifted(-WRITTEN_WITHIN_MS);
            Place { at, turn: Turn::Admitted, index }
        });
        Ok(Self { next: places.collect(), files, problems })
    }

    /// Complains of what could not be read; all that could be counts. Returns the exit code.
    pub(super) fn end(&self) -> ExitCode {
        self.problems.iter().for_each(complain);
        if self.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn advance(&mut self, index: usize) {
        let Some(file) = self.files.get_mut(index) else { return };
        while let Some(next) = file.settle() {
            match next {
                Ok(place) => {
                    self.next.insert(Place { index, ..place });
                    break;
                }
                Err(problem) => self.problems.push(problem),
            }
        }
    }
}

impl Iterator for Recording {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        loop {
            let Place { index, .. } = self.next.pop_first()?;
            let call = self.files.get_mut(index)?.take_settled();
            self.advance(index);
            if call.is_some() {
                return call;
            }
        }
    }
}

/// A recording that is made of calls without verdicts.
#[derive(Default)]
pub(super) struct NewRecording(Vec<(Timestamp, Vec<u8>)>);

impl NewRecording {
    /// Adds a call of one hit.
    ///
    /// # Errors
    /// It is longer than a call that can be read.
    pub(super) fn add(
        &mut self,
        at: Timestamp,
        domain: &str,
        descriptors: Vec<Vec<request::Entry>>,
    ) -> Result<(), String> {
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
        let length = call.encoded_len();
        if length > CALL_BYTES_MAX {
            return Err(format!("a call of {length} bytes, more than {CALL_BYTES_MAX}"));
        }
        self.0.push((at, call.encode_length_delimited_to_vec()));
        Ok(())
    }

    /// Writes a new file with all calls in the order of their times, or none.
    pub(super) fn write(mut self, path: &Path) -> io::Result<()> {
        self.0.sort_by_key(|(at, _)| *at);
        let file = recording::create(path)?;
        self.write_to(file).inspect_err(|_| drop(fs::remove_file(path)))
    }

    fn write_to(&self, mut file: File) -> io::Result<()> {
        for group in self.0.chunks(GROUP_CALLS) {
            let calls: Vec<u8> = group.iter().flat_map(|(_, call)| call).copied().collect();
            file.write_all(&recording::compressed(&calls)?)?;
        }
        Ok(())
    }
}

/// The calls of one file, in their order.
#[derive(Default)]
struct CallFile {
    path: PathBuf,
    frames: Frames,
    read: BytesMut,
    /// By their numbers.
    shapes: BTreeMap<u32, Arc<Shape>>,
    /// For values.
    memory: BytesMut,
    /// Calls that are read, and before which others may still come.
    runs: Vec<Run>,
    /// The run of the block that is read, of one worker, unless that run has ended or a block begins.
    run_of_block: Option<usize>,
    /// The run whose first call is the next one.
    settled: Option<usize>,
    newest: Timestamp,
    count: usize,
    bad: BadCalls,
}

/// The number of calls that cannot be read, and what is wrong with the first.
#[derive(Default)]
struct BadCalls {
    count: usize,
    first: Option<String>,
}

impl BadCalls {
    fn add(&mut self, problem: String) {
        self.count += 1;
        self.first.get_or_insert(problem);
    }
}

/// Calls in their order, as each worker writes them. Each is decoded when it becomes the first: the others, encoded, are small
/// enough for the processor's cache.
struct Run {
    first: Call,
    rest: VecDeque<EncodedCall>,
}

impl Run {
    fn last_at(&self) -> Timestamp {
        self.rest.back().map_or(self.first.at, |last| last.at)
    }

    /// Whether this call, of another block, can come behind all others.
    fn goes_on(&self, call: &EncodedCall) -> bool {
        match self.last_at().cmp(&call.at) {
            Ordering::Less => true,
            Ordering::Equal => {
                let last = self.rest.back();
                last.map_or(Some(self.first.turn), EncodedCall::turn) <= call.turn()
            }
            Ordering::Greater => false,
        }
    }
}

/// A call that is not decoded yet.
#[derive(Clone)]
struct EncodedCall {
    at: Timestamp,
    message: Bytes,
    shape: Option<Arc<Shape>>,
}

/// What calls have in common that differ in their values.
struct Shape {
    domain: String,
    descriptors: Vec<RateLimitDescriptor>,
}

/// The fields of a `RecordedCall` that are read first.
#[derive(prost::Message)]
struct CallHead {
    #[prost(uint64, tag = 1)]
    at_ms: u64,
    #[prost(string, tag = 2)]
    domain: String,
    #[prost(uint32, tag = 11)]
    shape: u32,
}

impl EncodedCall {
    /// A call, whose shape is one of these or a new one.
    fn new(message: Bytes, shapes: &mut BTreeMap<u32, Arc<Shape>>) -> Result<Self, String> {
        let problem = |error: DecodeError| error.to_string();
        let CallHead { at_ms, domain, shape } = CallHead::decode(&*message).map_err(problem)?;
        if shape > 0 && !domain.is_empty() {
            let call = RecordedCall::decode(message.clone()).map_err(problem)?;
            shapes.insert(shape, Arc::new(Shape { domain, descriptors: call.descriptors }));
        }
        Ok(Self { at: time_of_call(at_ms)?, message, shape: shapes.get(&shape).cloned() })
    }

    fn turn(&self) -> Option<Turn> {
        decode(self.clone(), &mut BytesMut::new()).ok().map(|call| call.turn)
    }
}

#[derive(Default)]
enum Frames {
    #[default]
    Unopened,
    Open(Box<FrameDecoder<BufReader<File>>>),
    Ended,
}

impl CallFile {
    fn new(path: PathBuf) -> Self {
        Self { path, memory: BytesMut::with_capacity(READ_BYTES), ..Self::default() }
    }

    /// Reads until no call can come any more before the first one, and returns the place of that one.
    fn settle(&mut self) -> Option<Result<Place, String>> {
        if matches!(self.frames, Frames::Unopened) {
            match File::open(&self.path) {
                Ok(file) => {
                    let file = BufReader::with_capacity(READ_BYTES, file);
                    self.frames = Frames::Open(Box::new(FrameDecoder::new(file)));
                }
                Err(error) => return Some(Err(self.end(&error.to_string()))),
            }
        }
        loop {
            let first = self.first();
            let is_settled =
                first.is_some_and(|first| first.at.plus_millis(DISORDER_MS) < self.newest);
            if is_settled || !matches!(self.frames, Frames::Open(_)) {
                self.settled = first.map(|first| first.index);
                return first.map(Ok).or_else(|| self.bad_calls().map(Err));
            }
            match self.read_call() {
                Ok(Some(call)) => self.add(call),
                Ok(None) => self.frames = Frames::Ended,
                Err(problem) => return Some(Err(self.end(&problem))),
            }
        }
    }

    fn take_settled(&mut self) -> Option<Call> {
        let index = self.settled.take()?;
        let run = self.runs.get_mut(index)?;
        while let Some(next) = run.rest.pop_front() {
            match decode(next, &mut self.memory) {
                Ok(next) => return Some(mem::replace(&mut run.first, next)),
                Err(problem) => self.bad.add(problem),
            }
        }
        self.run_of_block = match self.run_of_block {
            Some(own) if own == index => None,
            Some(own) if own > index => Some(own - 1),
            own => own,
        };
        Some(self.runs.remove(index).first)
    }

    /// Ends with a problem, which it returns with its place.
    fn end(&mut self, problem: &str) -> String {
        self.frames = Frames::Ended;
        let path = self.path.display();
        match self.count {
            0 => format!("{path}: is no recording of calls: {problem}"),
            count => format!("{path}: ends after {}: {problem}", counted(count, "call")),
        }
    }

    /// Describes once the calls that cannot be read.
    fn bad_calls(&mut self) -> Option<String> {
        let BadCalls { count, first } = mem::take(&mut self.bad);
        let (path, calls) = (self.path.display(), counted(count, "call"));
        Some(format!("{path}: {calls} cannot be read; the first: {}", first?))
    }

    fn add(&mut self, call: EncodedCall) {
        self.count += 1;
        self.newest = self.newest.max(call.at);
        // A worker knows what came first in a millisecond.
        let own = self
            .run_of_block
            .filter(|own| self.runs.get(*own).is_some_and(|run| run.last_at() <= call.at));
        let run = own.or_else(|| self.runs.iter().position(|run| run.goes_on(&call)));
        if let Some(known) = run.and_then(|run| self.runs.get_mut(run)) {
            known.rest.push_back(call);
            self.run_of_block = run;
            return;
        }
        match decode(call, &mut self.memory) {
            Ok(first) => {
                self.run_of_block = Some(self.runs.len());
                self.runs.push(Run { first, rest: VecDeque::new() });
            }
            Err(problem) => self.bad.add(problem),
        }
    }

    fn first(&self) -> Option<Place> {
        let runs = self.runs.iter().enumerate();
        runs.map(|(index, run)| Place::new(&run.first, index)).min()
    }

    fn read_call(&mut self) -> Result<Option<EncodedCall>, String> {
        loop {
            let mut rest = &self.read[..];
            match prost::decode_length_delimiter(&mut rest) {
                Ok(length) if length > CALL_BYTES_MAX => {
                    return Err(format!("a call of {length} bytes"));
                }
                Ok(length) if rest.len() >= length => {
                    let begins = self.read.len() - rest.len();
                    self.read.advance(begins);
                    let message = self.read.split_to(length).freeze();
                    match EncodedCall::new(message, &mut self.shapes) {
                        Ok(call) => return Ok(Some(call)),
                        Err(problem) => self.bad.add(problem),
                    }
                    continue;
                }
                Err(error) if self.read.len() >= LENGTH_BYTES_MAX => return Err(error.to_string()),
                // It is not read to its end.
                Ok(_) | Err(_) => {}
            }
            if self.fill().map_err(|error| error.to_string())? == 0 {
                let is_whole = self.read.is_empty();
                return if is_whole { Ok(None) } else { Err("it ends within a call".to_owned()) };
            }
        }
    }

    /// Reads more bytes; 0 at the end.
    fn fill(&mut self) -> io::Result<usize> {
        let Frames::Open(frames) = &mut self.frames else { return Ok(0) };
        let before = self.read.len();
        self.read.resize(before + READ_BYTES, 0);
        let into = self.read.get_mut(before..).unwrap_or_default();
        let read = loop {
            // At the end of a frame it returns 0.
            match frames.read(into) {
                Ok(0) => match frames.get_mut().fill_buf() {
                    Ok([]) => break Ok(0),
                    Ok(_) => self.run_of_block = None,
                    Err(error) => break Err(error),
                },
                read => break read,
            }
        };
        self.read.truncate(before + *read.as_ref().unwrap_or(&0));
        read
    }
}

/// The instant at this number of milliseconds since 1970; `None` if it is after the year 9999.
pub(super) fn time(millis: impl TryInto<i64>) -> Option<Timestamp> {
    let time = jiff::Timestamp::from_millisecond(millis.try_into().ok()?).ok()?;
    u64::try_from(time.as_millisecond()).ok().map(Timestamp::from_millis)
}

fn time_of_call(at_ms: u64) -> Result<Timestamp, &'static str> {
    time(at_ms).ok_or("a time after the year 9999")
}

/// Decodes a call, with its values in this memory.
fn decode(call: EncodedCall, memory: &mut BytesMut) -> Result<Call, String> {
    let EncodedCall { message, shape, .. } = call;
    let mut call = RecordedCall::decode(message).map_err(|error| error.to_string())?;
    if call.shape > 0 {
        let shape = shape.ok_or("no call before it has its shape")?;
        call.domain.clone_from(&shape.domain);
        call.descriptors.clone_from(&shape.descriptors);
        recording::fill_in(&mut call.descriptors, mem::take(&mut call.values), memory)?;
    }
    let meaning = match call.meaning() {
        Meaning::Charged => HitsMeaning::Charged,
        Meaning::Expected => HitsMeaning::Expected,
        Meaning::Done => HitsMeaning::Done,
        Meaning::Part => HitsMeaning::Part,
        Meaning::Lease => HitsMeaning::Lease,
        Meaning::Assigned => HitsMeaning::Assigned,
        Meaning::Checked => HitsMeaning::Checked,
        Meaning::Read => HitsMeaning::Read,
    };
    let at = time_of_call(call.at_ms)?;
    let request = rls::decode::recorded(call.domain, call.descriptors, call.hits)?;
    let over = call.over.into_iter().map(|over| Over {
        descriptor: usize::try_from(over.descriptor_index).unwrap_or(usize::MAX),
        rule: over.rule,
        limit: over.limit,
        reset_ms: over.reset_ms,
        shadow: over.shadow,
    });
    Ok(Call {
        at,
        turn: Turn::new(&request, call.denied),
        request,
        meaning,
        denied: call.denied,
        over: over.collect(),
        hold: call.hold,
        without_store: call.without_store,
        overridden: call.overridden,
    })
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::engine::descriptor_syntax;

    fn call(at_ms: u64, domain: &str, denied: bool) -> EncodedCall {
        let entry = Entry { key: "user".into(), value: "a".into() };
        let descriptors =
            vec![RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }];
        let domain = domain.to_owned();
        let call = RecordedCall { at_ms, domain, descriptors, denied, ..Default::default() };
        EncodedCall::new(call.encode_to_vec().into(), &mut BTreeMap::new()).unwrap()
    }

    #[test]
    fn a_call_that_was_denied_comes_behind_those_of_other_workers_that_filled_the_counter_in_its_millisecond()
     {
        let mut file = CallFile::new(PathBuf::new());
        // One worker has decided the first three, another one the next three, and a third one the last.
        let of_workers = [
            (1, false, false),
            (5, true, false),
            (6, true, false),
            (5, false, true),
            (7, true, false),
            (7, false, false),
            (6, false, true),
        ];
        for (at_ms, denied, begins) in of_workers {
            if begins {
                file.run_of_block = None;
            }
            file.add(call(at_ms, "shop", denied));
        }
        file.frames = Frames::Ended;
        let calls = iter::from_fn(|| file.settle().and_then(|_| file.take_settled()));
        let order: Vec<_> = calls.map(|call| (call.at.as_millis(), call.denied)).collect();
        let expected =
            [(1, false), (5, false), (5, true), (6, false), (6, true), (7, true), (7, false)];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_call_without_a_domain_has_that_of_the_last_one_of_its_shape() {
        let mut shapes = BTreeMap::new();
        let mut read = |shape, domain: &str, value: &'static str| -> Result<String, String> {
            let entry = Entry { key: domain.to_owned().into(), value: Bytes::new() };
            let descriptor =
                RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
            let descriptors = if domain.is_empty() { vec![] } else { vec![descriptor] };
            let (domain, values) = (domain.to_owned(), vec![value.into()]);
            let call = RecordedCall { domain, descriptors, shape, values, ..Default::default() };
            let call = EncodedCall::new(call.encode_to_vec().into(), &mut shapes)?;
            let request = decode(call, &mut BytesMut::new())?.request;
            Ok(request.domain + "|" + &descriptor_syntax::write(&request.descriptors[0].entries))
        };
        for (shape, domain, value, expected) in [
            (1, "shop", "a", Ok("shop|shop=a")),
            (2, "bank", "b", Ok("bank|bank=b")),
            (1, "", "c", Ok("shop|shop=c")),
            (1, "club", "d", Ok("club|club=d")),
            (1, "", "e", Ok("club|club=e")),
            (3, "", "f", Err("no call before it has its shape")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(read(shape, domain, value), expected);
        }
    }

    #[test]
    fn calls_that_cannot_be_read_are_left_out_and_reported_once() {
        let mut file = CallFile::new("calls".into());
        for (at_ms, domain) in [(1, ""), (2, "shop"), (3, ""), (4, "shop"), (5, "")] {
            file.add(call(at_ms, domain, false));
        }
        file.frames = Frames::Ended;
        let (mut times, mut problems) = (Vec::new(), Vec::new());
        while let Some(next) = file.settle() {
            problems.extend(next.err());
            times.extend(file.take_settled().map(|call| call.at.as_millis()));
        }
        assert_eq!(times, [2, 4]);
        let problem =
            "calls: 3 calls cannot be read; the first: a call without a domain or a descriptor";
        assert_eq!(problems, [problem]);
    }
}
