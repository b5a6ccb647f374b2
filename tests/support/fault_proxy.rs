//! A TCP proxy in front of a real Redis. A test sets at any time what it does with connections and bytes.

use std::{io, net::Ipv4Addr, sync::LazyLock};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    runtime::{Builder, Runtime},
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

use super::prelude::*;

/// Proxies do not share the runtime of a test: it may be blocked, or not exist.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
});

/// What a proxy does. By default it forwards everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub connect: Connect,
    pub requests: Flow,
    pub replies: Flow,
    /// Whether `requests` and `replies` apply only to connections that were opened before.
    pub spares_new: bool,
}

/// What happens to new connections.
#[derive(Debug, Clone, Copy, Default)]
pub enum Connect {
    #[default]
    Accept,
    /// The system completes the handshake, and nobody reads: as with a stopped process.
    Mute,
    /// The packets of the handshake are dropped: as with a firewall, or a host that is down.
    Unreachable,
    Refuse,
}

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub enum Flow {
    #[default]
    Forward,
    /// Each piece waits this number of milliseconds, and up to `jitter` more; of 100 pieces, `percent` do.
    Delay { ms: u64, jitter: u64, percent: u64 },
    /// Bytes wait until the fault ends, and arrive then.
    Hold,
    /// Bytes are lost.
    Drop,
    /// Pieces of this number of bytes, with a pause in milliseconds after each.
    Drip { bytes: usize, pause: u64 },
    /// The connection ends in this way after this number of bytes.
    CutAt(usize, Cut),
    /// The highest bit of the byte at this place of each piece is flipped.
    Flip(usize),
    /// Each piece waits for [`FaultProxy::pass`].
    Step,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    /// After what has been sent, as if the peer had closed it.
    Fin,
    /// At once, as if the peer had crashed.
    Rst,
}

pub struct FaultProxy {
    pub url: String,
    control: watch::Sender<Control>,
    shared: Arc<Shared>,
    passed: AtomicUsize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Control {
    faults: Faults,
    /// Number of times that `faults` was set.
    sets: usize,
    /// Number of connections that had been opened when `faults` was set.
    opened: usize,
    /// The last order to cut all connections, and how many were opened before it.
    cut: Option<(usize, Cut)>,
}

struct Shared {
    redis: u16,
    seed: u64,
    opened: AtomicUsize,
    /// How long connections wait at first, in milliseconds.
    connect_ms: AtomicU64,
    /// Number of pieces of requests that have arrived.
    arrived: watch::Sender<usize>,
    steps: Semaphore,
}

impl FaultProxy {
    /// A proxy to this port, which forwards everything at first. The seed is for its delays.
    pub fn start(redis: u16, seed: u64) -> Self {
        let (control, orders) = watch::channel(Control::default());
        let shared = Arc::new(Shared {
            redis,
            seed,
            opened: AtomicUsize::new(0),
            connect_ms: AtomicU64::new(0),
            arrived: watch::channel(0).0,
            steps: Semaphore::new(0),
        });
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let _runtime = RUNTIME.enter();
        let listener = TcpListener::from_std(listener).unwrap();
        RUNTIME.spawn(serve(listener, address.port(), orders, Arc::clone(&shared)));
        Self { url: format!("redis://{address}"), control, shared, passed: AtomicUsize::new(0) }
    }

    /// The port of the proxy.
    pub fn port(&self) -> u16 {
        self.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("it ends with a port")
    }

    /// Has each new connection wait for this time before anything is forwarded, whatever else is set.
    pub fn delay_connects(&self, time: Duration) {
        self.shared.connect_ms.store(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Does this from now on.
    pub fn set(&self, faults: Faults) {
        let opened = self.opened();
        self.control.send_modify(|control| {
            *control = Control { faults, sets: control.sets + 1, opened, cut: control.cut };
        });
    }

    /// Forwards everything again.
    pub fn heal(&self) {
        self.set(Faults::default());
    }

    /// Ends all connections.
    pub fn cut(&self, how: Cut) {
        let opened = self.opened();
        self.control.send_modify(|control| control.cut = Some((opened, how)));
    }

    /// Number of connections that have been opened.
    pub fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// Holds each request from now on until [`pass`](Self::pass). Requests must arrive one at a time, each in one
    /// piece, as requests of one caller do.
    pub fn step(&self) {
        self.passed.store(*self.shared.arrived.borrow(), Ordering::SeqCst);
        self.set(Faults { requests: Flow::Step, ..Faults::default() });
    }

    /// Waits until a request waits for [`pass`](Self::pass).
    pub async fn request(&self) {
        let passed = self.passed.load(Ordering::SeqCst);
        let mut arrived = self.shared.arrived.subscribe();
        arrived.wait_for(|arrived| *arrived > passed).await.unwrap();
    }

    /// Lets one request pass.
    pub fn pass(&self) {
        self.passed.fetch_add(1, Ordering::SeqCst);
        self.shared.steps.add_permits(1);
    }
}

async fn listen(port: u16, backlog: u32) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    socket.listen(backlog)
}

/// Listens again on a port that was given up. Another program may have it for an instant.
async fn listen_again(port: u16, backlog: u32) -> TcpListener {
    loop {
        match listen(port, backlog).await {
            Ok(listener) => return listener,
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Accepts connections, until the proxy is dropped.
async fn serve(
    listener: TcpListener,
    port: u16,
    mut orders: watch::Receiver<Control>,
    shared: Arc<Shared>,
) {
    let mut listener = Some(listener);
    loop {
        let connect = orders.borrow_and_update().faults.connect;
        let mut fillers = Vec::new();
        match connect {
            Connect::Accept => {
                let open = match listener.take() {
                    Some(open) => open,
                    None => listen_again(port, 1024).await,
                };
                tokio::select! {
                    accepted = open.accept() => if let Ok((client, _)) = accepted {
                        let number = shared.opened.fetch_add(1, Ordering::SeqCst);
                        let link = Link { number, orders: orders.clone(), shared: Arc::clone(&shared) };
                        RUNTIME.spawn(link.run(client));
                    },
                    changed = orders.changed() => if changed.is_err() { return },
                }
                listener = Some(open);
                continue;
            }
            Connect::Mute => {}
            Connect::Refuse => listener = None,
            Connect::Unreachable => {
                drop(listener.take());
                let full = listen_again(port, 0).await;
                // The system drops handshakes once the queue of the listener is full.
                for _ in 0..3 {
                    let filler = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
                    fillers.push(timeout(Duration::from_millis(20), filler).await);
                }
                listener = Some(full);
            }
        }
        if orders.changed().await.is_err() {
            return;
        }
        if matches!(connect, Connect::Unreachable) {
            listener = None;
        }
    }
}

/// One connection from the service, and its other half to Redis.
struct Link {
    number: usize,
    orders: watch::Receiver<Control>,
    shared: Arc<Shared>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

impl Link {
    async fn run(self, mut client: TcpStream) {
        let _ = client.set_nodelay(true);
        sleep(Duration::from_millis(self.shared.connect_ms.load(Ordering::SeqCst))).await;
        let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.shared.redis)).await
        else {
            let _ = client.set_zero_linger();
            return;
        };
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let how = tokio::select! {
            ended = async { tokio::try_join!(
                self.pump(from_client, to_server, Direction::Request),
                self.pump(from_server, to_client, Direction::Reply),
            ) } => match ended {
                Ok(_) => Cut::Fin,
                Err(how) => how,
            },
            how = self.is_cut() => how,
        };
        if let Cut::Rst = how {
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
    }

    /// Returns when an order to cut this connection is given, or the proxy is dropped.
    async fn is_cut(&self) -> Cut {
        let mut orders = self.orders.clone();
        loop {
            match orders.borrow_and_update().cut {
                Some((opened, how)) if self.number < opened => return how,
                _ => {}
            }
            if orders.changed().await.is_err() {
                return Cut::Fin;
            }
        }
    }

    /// Forwards one direction until it ends.
    async fn pump(
        &self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        direction: Direction,
    ) -> Result<(), Cut> {
        let mut orders = self.orders.clone();
        let mut bytes = vec![0; 65_536];
        let mut dice =
            Dice(self.shared.seed ^ ((self.number as u64 * 2 + direction as u64 + 1) << 32));
        // Which faults apply, and the number of bytes since they were set.
        let (mut sets, mut passed) = (0, 0);
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            let piece = &mut bytes[..count];
            if direction == Direction::Request {
                self.shared.arrived.send_modify(|arrived| *arrived += 1);
            }
            loop {
                let control = *orders.borrow_and_update();
                if sets != control.sets {
                    (sets, passed) = (control.sets, 0);
                }
                let sent = match self.flow(&control, direction) {
                    Flow::Forward => to.write_all(piece).await,
                    Flow::Delay { ms, jitter, percent } => {
                        if dice.below(100) < percent {
                            sleep(Duration::from_millis(ms + dice.below(jitter + 1))).await;
                        }
                        to.write_all(piece).await
                    }
                    Flow::Hold => {
                        let _ = orders.changed().await;
                        continue;
                    }
                    Flow::Drop => Ok(()),
                    Flow::Drip { bytes, pause } => drip(&mut to, piece, bytes, pause).await,
                    Flow::CutAt(at, how) if passed + count >= at => {
                        let _ = to.write_all(&piece[..at - passed]).await;
                        return Err(how);
                    }
                    Flow::CutAt(..) => to.write_all(piece).await,
                    Flow::Flip(at) => {
                        piece[at.min(count - 1)] ^= 0x80;
                        to.write_all(piece).await
                    }
                    Flow::Step => {
                        self.shared.steps.acquire().await.unwrap().forget();
                        to.write_all(piece).await
                    }
                };
                if sent.is_err() {
                    return Err(Cut::Rst);
                }
                break;
            }
            passed += count;
        }
        let _ = to.shutdown().await;
        Ok(())
    }

    fn flow(&self, control: &Control, direction: Direction) -> Flow {
        match direction {
            _ if control.faults.spares_new && self.number >= control.opened => Flow::Forward,
            Direction::Request => control.faults.requests,
            Direction::Reply => control.faults.replies,
        }
    }
}

async fn drip(to: &mut WriteHalf<'_>, piece: &[u8], bytes: usize, pause: u64) -> io::Result<()> {
    for drop in piece.chunks(bytes) {
        to.write_all(drop).await?;
        sleep(Duration::from_millis(pause)).await;
    }
    Ok(())
}
