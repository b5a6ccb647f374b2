//! A client that costs next to nothing: it writes HTTP/2 frames and counts answers on the raw stream, so that the
//! service is what limits the load.

use std::{io::BufReader, sync::atomic::AtomicI64, thread::JoinHandle};

use super::{
    http2::{DATA, Frames, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, opening},
    prelude::*,
};

/// For the times at which calls were due, by their number modulo this.
const TIMES: u64 = 1 << 16;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;

/// How a call was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawAnswer {
    Ok,
    OverLimit,
    /// With an error, or by a reset.
    Failed,
}

/// A call that was answered.
#[derive(Debug, Clone, Copy)]
pub struct RawCall {
    /// Its number on its connection, from 0.
    pub number: u64,
    pub due: Instant,
    pub answered: Instant,
    pub answer: RawAnswer,
}

/// A connection. Its calls have these messages in turn.
pub struct RawClient {
    stream: TcpStream,
    messages: Vec<Vec<u8>>,
    open_max: u64,
    frames: Frames,
    sent: u64,
    shared: Arc<Shared>,
    reader: JoinHandle<Vec<RawCall>>,
}

struct Shared {
    began: Instant,
    /// When calls were due, in microseconds since `began`.
    due: Vec<AtomicU64>,
    /// Bytes of messages that the service takes.
    window: AtomicI64,
    answered: AtomicU64,
}

impl RawClient {
    /// At most `open_max` calls, up to 8,192, are open at a time.
    pub fn connect(service: SocketAddr, messages: Vec<Vec<u8>>, open_max: u64) -> Self {
        let mut stream = TcpStream::connect(service).unwrap();
        stream.set_nodelay(true).unwrap();
        let window = (i32::MAX as u32 - 65_535).to_be_bytes();
        let frames = Frames::default().frame(SETTINGS, ACK, 0, &[]);
        let start = frames.frame(WINDOW_UPDATE, 0, 0, &window).bytes();
        stream.write_all(&[opening(), start].concat()).unwrap();
        let shared = Arc::new(Shared {
            began: Instant::now(),
            due: (0..TIMES).map(|_| AtomicU64::new(0)).collect(),
            window: AtomicI64::new(65_535),
            answered: AtomicU64::new(0),
        });
        let (from, of_reader) = (stream.try_clone().unwrap(), Arc::clone(&shared));
        let reader = thread::spawn(move || of_reader.read(from));
        Self { stream, messages, open_max, frames: Frames::default(), sent: 0, shared, reader }
    }

    /// Sends calls at this rate per second, whether answers come or not. Returns how many calls it could not send,
    /// since too many were open.
    pub fn send_at(&mut self, rate: f64, time: Duration) -> u64 {
        let (began, mut unsent, mut number) = (Instant::now(), 0, 0.0);
        while began.elapsed() < time {
            while number < began.elapsed().as_secs_f64() * rate {
                if self.has_room() {
                    self.add(began + Duration::from_secs_f64(number / rate));
                } else {
                    unsent += 1;
                }
                number += 1.0;
            }
            self.flush();
            thread::sleep(Duration::from_micros(500));
        }
        unsent
    }

    /// Keeps this number of calls open.
    pub fn send_in_turn(&mut self, open: u64, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            while self.open() < open && self.has_room() {
                self.add(Instant::now());
            }
            self.flush();
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until every call is answered, and returns them in the order of their answers.
    pub fn finish(self) -> Vec<RawCall> {
        super::wait_until("every call is answered", || self.open() == 0);
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
        self.reader.join().unwrap()
    }

    fn open(&self) -> u64 {
        self.sent - self.shared.answered.load(Ordering::Acquire)
    }

    fn has_room(&self) -> bool {
        self.open() < self.open_max && self.shared.window.load(Ordering::Acquire) > 1_000
    }

    fn add(&mut self, due: Instant) {
        let message = &self.messages[(self.sent % self.messages.len() as u64) as usize];
        let micros = due.saturating_duration_since(self.shared.began).as_micros() as u64;
        self.shared.due[(self.sent % TIMES) as usize].store(micros, Ordering::Release);
        self.frames = std::mem::take(&mut self.frames).call(message);
        self.shared.window.fetch_sub(message.len() as i64 + 5, Ordering::AcqRel);
        self.sent += 1;
    }

    fn flush(&mut self) {
        self.stream.write_all(&self.frames.take_bytes()).unwrap();
    }
}

impl Shared {
    fn read(&self, stream: TcpStream) -> Vec<RawCall> {
        let mut answers = stream.try_clone().unwrap();
        let mut from = BufReader::with_capacity(256 << 10, stream);
        let mut calls: Vec<RawCall> = Vec::new();
        // The codes of calls whose streams have not ended.
        let mut codes = vec![RawAnswer::Failed; TIMES as usize];
        let (mut head, mut payload) = ([0; 9], Vec::new());
        while from.read_exact(&mut head).is_ok() {
            payload.resize(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize, 0);
            if from.read_exact(&mut payload).is_err() {
                break;
            }
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let number = u64::from(stream / 2);
            let ends = match kind {
                DATA => {
                    // gRPC's prefix, then `overall_code`.
                    codes[(number % TIMES) as usize] = match payload.get(5..7) {
                        Some([8, 1]) => RawAnswer::Ok,
                        Some([8, 2]) => RawAnswer::OverLimit,
                        _ => RawAnswer::Failed,
                    };
                    flags & END_STREAM != 0
                }
                HEADERS => flags & END_STREAM != 0,
                RST_STREAM => true,
                WINDOW_UPDATE if stream == 0 => {
                    let more = u32::from_be_bytes([payload[0], payload[1], payload[2], payload[3]]);
                    self.window.fetch_add(i64::from(more), Ordering::AcqRel);
                    false
                }
                PING if flags & ACK == 0 => {
                    let ack = Frames::default().frame(PING, ACK, 0, &payload).bytes();
                    answers.write_all(&ack).unwrap();
                    false
                }
                _ => false,
            };
            if ends {
                let index = (number % TIMES) as usize;
                let due = Duration::from_micros(self.due[index].load(Ordering::Acquire));
                let answer = std::mem::replace(&mut codes[index], RawAnswer::Failed);
                let (due, answered) = (self.began + due, Instant::now());
                calls.push(RawCall { number, due, answered, answer });
                self.answered.fetch_add(1, Ordering::AcqRel);
            }
        }
        calls
    }
}
