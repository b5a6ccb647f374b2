//! An HTTP server that answers every request with 200.

use std::{io::BufReader, thread::JoinHandle};

use crate::support::prelude::*;

/// A running server.
pub struct Backend {
    pub port: u16,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_ending = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_ending);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                answer(stream.unwrap());
            }
        });
        Self { port, is_ending, thread: Some(thread) }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Reads one request without a body, and closes the connection after its answer.
fn answer(mut stream: TcpStream) {
    for line in BufReader::new(&stream).lines().map_while(Result::ok) {
        if line.is_empty() {
            break;
        }
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
}
