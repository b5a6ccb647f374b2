//! HTTP/2 frames of a client, for tests of behaviour that a client library does not allow.

use super::prelude::*;

/// The path of a call.
pub const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client's first bytes: the preface and empty settings.
pub fn opening() -> Vec<u8> {
    let settings = Frames::default().frame(SETTINGS, 0, 0, &[]).bytes();
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat()
}

/// The type and the payload of the next frame.
pub fn read_frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).unwrap();
    (head[3], payload)
}

/// The frames of calls on one connection.
#[derive(Clone, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// The stream of the last call.
    pub stream: u32,
}

impl Frames {
    /// A whole call on the next stream.
    pub fn call(self, message: &[u8]) -> Self {
        self.headers().data(message)
    }

    /// A call that does not end its stream.
    pub fn open_call(self, message: &[u8]) -> Self {
        self.headers().message(message, 0)
    }

    /// Opens the next stream with the headers of a call.
    pub fn headers(mut self) -> Self {
        // HPACK: `:method: POST`, `:scheme: http`, then the fields that the first call adds to the table.
        let mut block = vec![0x83, 0x86];
        match self.stream {
            0 => {
                let fields = [(0x44, METHOD_PATH), (0x41, "test"), (0x5f, "application/grpc")];
                for (name, value) in fields {
                    block.extend([name, u8::try_from(value.len()).unwrap()]);
                    block.extend(value.as_bytes());
                }
                self.stream = 1;
            }
            _ => {
                block.extend([0xc0, 0xbf, 0xbe]);
                self.stream += 2;
            }
        }
        let stream = self.stream;
        self.frame(HEADERS, END_HEADERS, stream, &block)
    }

    /// Opens the next stream with the headers of a gRPC call and `count` further ones. Each of those counts as
    /// 33 bytes, and takes one byte on the wire.
    pub fn many_headers(mut self, path: &str, count: usize) -> Self {
        let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
        block.extend(path.as_bytes());
        block.extend(b"\x0f\x10\x10application/grpc");
        if self.stream == 0 {
            // Adds the header to the table.
            block.extend(b"\x40\x01a\x00");
        }
        block.resize(block.len() + count, 0xbe);
        self.stream += if self.stream == 0 { 1 } else { 2 };
        let stream = self.stream;
        let mut frames = self;
        let parts = block.chunks(16 << 10).enumerate();
        let last = block.len().div_ceil(16 << 10) - 1;
        for (number, part) in parts {
            let kind = if number == 0 { HEADERS } else { CONTINUATION };
            let flags = if number == last { END_HEADERS } else { 0 };
            frames = frames.frame(kind, flags, stream, part);
        }
        frames
    }

    /// Asks for an answer, which follows the processing of all frames before it.
    pub fn ping(self) -> Self {
        self.frame(PING, 0, 0, &[0; 8])
    }

    /// A message, and the end of the last stream.
    pub fn data(self, message: &[u8]) -> Self {
        self.message(message, END_STREAM)
    }

    /// A message behind gRPC's prefix, on the last stream.
    pub fn message(self, message: &[u8], flags: u8) -> Self {
        let length = u32::try_from(message.len()).unwrap();
        let framed = [&[0], &length.to_be_bytes()[..], message].concat();
        let stream = self.stream;
        self.frame(DATA, flags, stream, &framed)
    }

    /// Cancels the last stream.
    pub fn reset(self) -> Self {
        let stream = self.stream;
        self.frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
    }

    pub fn frame(mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Self {
        let length = u32::try_from(payload.len()).unwrap();
        self.bytes.extend(&length.to_be_bytes()[1..]);
        self.bytes.extend([kind, flags]);
        self.bytes.extend(stream.to_be_bytes());
        self.bytes.extend(payload);
        self
    }

    /// The frames since the last time; later calls go on with the next stream.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    pub fn bytes(self) -> Vec<u8> {
        self.bytes
    }
}
