//! Proxies in front of a real Redis, which control when commands and replies pass.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};

use super::redis_server::Redis;

/// Forwards commands at once, and each reply after a delay of its own, in milliseconds.
pub async fn delaying(
    redis: &Redis,
    delays: impl Fn() -> u64 + Clone + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let port = redis.port;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let delays = delays.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_client, &mut to_server).await },
                );
                let mut bytes = vec![0; 65_536];
                while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                    match delays() {
                        0 => {}
                        delay => tokio::time::sleep(Duration::from_millis(delay)).await,
                    }
                    if to_client.write_all(&bytes[..count]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

/// Forwards each command when the test lets it pass, and each reply at once. Commands must arrive one at a
/// time, each in one piece, as those of one caller do.
pub struct Gate {
    pub url: String,
    let_through: Arc<Semaphore>,
    /// Number of commands that have arrived.
    arrived: watch::Receiver<usize>,
    passed: AtomicUsize,
}

impl Gate {
    /// An open gate: everything passes until [`close`](Self::close).
    pub async fn start(redis: &Redis) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let let_through = Arc::new(Semaphore::new(1 << 20));
        let (arrive, arrived) = watch::channel(0);
        let (permits, port) = (Arc::clone(&let_through), redis.port);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (arrive, permits) = (arrive.clone(), Arc::clone(&permits));
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let mut bytes = vec![0; 65_536];
                    loop {
                        tokio::select! {
                            read = client.read(&mut bytes) => {
                                let Ok(count @ 1..) = read else { break };
                                arrive.send_modify(|arrived| *arrived += 1);
                                permits.acquire().await.unwrap().forget();
                                server.write_all(&bytes[..count]).await.unwrap();
                            }
                            read = server.read_u8() => {
                                let Ok(first) = read else { break };
                                bytes[0] = first;
                                let more = server.try_read(&mut bytes[1..]).unwrap_or(0);
                                if client.write_all(&bytes[..=more]).await.is_err() {
                                    break;
                                }
                            }
                        }
                    }
                });
            }
        });
        Self { url, let_through, arrived, passed: AtomicUsize::new(0) }
    }

    /// Closes the gate, and counts commands from here on.
    pub fn close(&self) {
        self.let_through.forget_permits(1 << 20);
        self.passed.store(*self.arrived.borrow(), Ordering::SeqCst);
    }

    /// Waits until a command is waiting at the gate.
    pub async fn command(&self) {
        let passed = self.passed.load(Ordering::SeqCst);
        self.arrived.clone().wait_for(|arrived| *arrived > passed).await.unwrap();
    }

    /// Lets one command pass.
    pub fn pass(&self) {
        self.passed.fetch_add(1, Ordering::SeqCst);
        self.let_through.add_permits(1);
    }
}
