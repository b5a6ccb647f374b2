//! An application behind a proxy, which answers every request with 200.

use std::net::ToSocketAddrs;

use super::prelude::*;

pub struct Application {
    pub address: SocketAddr,
    served: Arc<AtomicUsize>,
}

impl Application {
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    pub fn start_at(address: impl ToSocketAddrs) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let (address, served) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&served);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                // Requests without a body, one on each connection.
                let mut head = [0; 4096];
                if stream.read(&mut head).is_ok_and(|length| length > 0) {
                    count.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.write_all(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                    );
                }
            }
        });
        Self { address, served }
    }

    /// Number of requests so far.
    pub fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }
}
