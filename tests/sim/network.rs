//! A network between the service and its servers: connections that are slow, stall, drip, are cut or go half-open.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future, io,
    ops::Range,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::{Notify, mpsc, oneshot, watch},
    task::spawn_local,
    time::{self, Instant},
};

use crate::{
    dice::Dice,
    redis::{
        reply::{Reply, parse_command},
        server::{Server, Session},
    },
};

/// What a connection takes, in either direction, before it has to wait.
const BUFFER_BYTES: usize = 1 << 20;

/// More than a script has: what is sent together arrives together.
const MESSAGE_BYTES: usize = 1 << 17;

/// What happens to the commands that arrive together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The connection ends before they run.
    CutBefore,
    /// Half of them run, and half of the bytes of their answers arrive.
    CutInside,
    /// They run, and no answer arrives.
    CutAfter,
    /// From now on no byte arrives in either direction, and neither side gets an error.
    HalfOpen,
    /// They wait before they run.
    Stall,
    /// They run, and their answers wait.
    StallAfter,
    /// The bytes of their answers arrive one after the other.
    Drip,
}

impl Fate {
    pub const ALL: [Self; 7] = [
        Self::CutBefore,
        Self::CutInside,
        Self::CutAfter,
        Self::HalfOpen,
        Self::Stall,
        Self::StallAfter,
        Self::Drip,
    ];
}

/// How a network is at present.
#[derive(Debug, Clone, PartialEq)]
pub struct Weather {
    /// How long a message takes one way, in microseconds.
    pub latency_us: Range<u64>,
    /// How many of a thousand messages have one of these fates.
    pub share: u64,
    pub fates: Vec<Fate>,
    /// How long a message stalls, in microseconds.
    pub stall_us: Range<u64>,
    pub connects: Connects,
}

/// What becomes of new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connects {
    AtOnce,
    Slowly,
    Refused,
    /// Nobody answers.
    Never,
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            latency_us: 50..400,
            share: 0,
            fates: Fate::ALL.to_vec(),
            stall_us: 1000..60_000,
            connects: Connects::AtOnce,
        }
    }
}

/// A server, and the network in front of it.
pub struct Host {
    pub server: RefCell<Server>,
    pub weather: RefCell<Weather>,
    /// It does nothing until then.
    pub stopped_until: Cell<Option<Instant>>,
    resumed: Notify,
    /// How long it runs a message, by its bytes above a KiB, one after the other. Handshakes take no time, as if connections
    /// had been there.
    pub ns_per_byte: Cell<u64>,
    free_at: Cell<Option<Instant>>,
    /// When something was last wrong here.
    pub troubled: Cell<Option<Instant>>,
    /// Changes when all connections are cut.
    cuts: watch::Sender<u64>,
    /// Changes when the network forgets all connections.
    forgotten: watch::Sender<u64>,
    /// The bytes that sessions get which have subscribed.
    announced: watch::Sender<Vec<u8>>,
    dice: Dice,
}

impl Host {
    pub fn new(server: Server, dice: Dice) -> Rc<Self> {
        Rc::new(Self {
            server: RefCell::new(server),
            weather: RefCell::default(),
            stopped_until: Cell::new(None),
            resumed: Notify::new(),
            ns_per_byte: Cell::new(0),
            free_at: Cell::new(None),
            troubled: Cell::new(None),
            cuts: watch::Sender::new(0),
            forgotten: watch::Sender::new(0),
            announced: watch::Sender::default(),
            dice,
        })
    }

    pub fn cut_all(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// From now on all connections are half-open.
    pub fn forget_all(&self) {
        self.forgotten.send_modify(|times| *times += 1);
    }

    /// Sends this to all sessions that have subscribed.
    pub fn announce(&self, announced: &Reply) {
        let mut bytes = Vec::new();
        announced.write(&mut bytes);
        self.announced.send_replace(bytes);
    }

    /// It does nothing for so long, nor while it stands still already.
    pub fn stop(&self, time: Duration) {
        let until = self.stopped_until.get().max(Some(Instant::now() + time));
        self.stopped_until.set(until);
    }

    /// It goes on, and does what has arrived meanwhile.
    pub fn resume(&self) {
        self.stopped_until.set(None);
        self.resumed.notify_waiters();
    }

    /// Whether nothing is wrong here.
    pub fn is_calm(&self) -> bool {
        *self.weather.borrow() == Weather::default()
            && self.server.borrow().state.borrow().refusal.is_none()
            && self.stopped_until.get().is_none_or(|until| until <= Instant::now())
    }

    async fn latency(&self) {
        let latency = self.dice.micros(self.weather.borrow().latency_us.clone());
        time::sleep(latency).await;
    }

    async fn runs(&self) {
        while let Some(until) = self.stopped_until.get().filter(|until| *until > Instant::now()) {
            tokio::select! {
                biased;
                () = self.resumed.notified() => {}
                () = time::sleep_until(until) => {}
            }
        }
    }

    async fn works(&self, bytes: usize) {
        let takes =
            Duration::from_nanos(self.ns_per_byte.get() * bytes.saturating_sub(1024) as u64);
        let now = Instant::now();
        let free_at = self.free_at.get().map_or(now, |free_at| free_at.max(now)) + takes;
        if free_at > now {
            self.free_at.set(Some(free_at));
            time::sleep_until(free_at).await;
        }
    }

    fn fate(&self) -> Option<Fate> {
        let weather = self.weather.borrow();
        self.dice.hits(weather.share).then(|| *self.dice.one_of(&weather.fates))
    }

    async fn stall(&self) {
        let stall = self.dice.micros(self.weather.borrow().stall_us.clone());
        time::sleep(stall).await;
    }

    /// Serves a connection until it is cut or closed.
    async fn serve(self: Rc<Self>, stream: DuplexStream) {
        let mut cuts = self.cuts.subscribe();
        tokio::select! {
            biased;
            _ = cuts.changed() => {}
            _ = self.serve_uncut(stream) => {}
        }
    }

    async fn serve_uncut(&self, mut stream: DuplexStream) -> io::Result<()> {
        let (mut session, mut bytes) = (Session::default(), Vec::with_capacity(MESSAGE_BYTES));
        let (forgotten, mut announced) = (self.forgotten.subscribe(), self.announced.subscribe());
        loop {
            let read = tokio::select! {
                biased;
                read = stream.read_buf(&mut bytes) => read?,
                _ = announced.changed(), if session.is_subscribed => {
                    self.latency().await;
                    let bytes = announced.borrow_and_update().clone();
                    stream.write_all(&bytes).await?;
                    continue;
                }
            };
            if read == 0 {
                return Ok(());
            }
            self.latency().await;
            if forgotten.has_changed().unwrap_or(true) {
                let _open = stream;
                return future::pending().await;
            }
            let fate = self.fate();
            match fate {
                Some(Fate::CutBefore) => return Ok(()),
                Some(Fate::HalfOpen) => {
                    let _open = stream;
                    return future::pending().await;
                }
                Some(Fate::Stall) => self.stall().await,
                _ => {}
            }
            self.runs().await;
            self.works(bytes.len()).await;
            let mut replies = self.run(&mut session, &mut bytes, fate == Some(Fate::CutInside));
            match fate {
                Some(Fate::CutAfter) => return Ok(()),
                Some(Fate::StallAfter) => self.stall().await,
                Some(Fate::CutInside) => replies.truncate(replies.len() / 2),
                _ => {}
            }
            self.latency().await;
            match fate {
                Some(Fate::Drip) => {
                    for byte in replies {
                        time::sleep(Duration::from_millis(1)).await;
                        stream.write_all(&[byte]).await?;
                    }
                }
                _ => stream.write_all(&replies).await?,
            }
            if fate == Some(Fate::CutInside) {
                return Ok(());
            }
        }
    }

    /// Runs the commands that have arrived, or the first half of them, and returns the bytes of their replies.
    fn run(&self, session: &mut Session, bytes: &mut Vec<u8>, half: bool) -> Vec<u8> {
        let (mut commands, mut replies) = (Vec::new(), Vec::new());
        while let Some((command, length)) = parse_command(bytes) {
            bytes.drain(..length);
            commands.push(command);
        }
        if half {
            commands.truncate(commands.len().div_ceil(2));
        }
        let server = self.server.borrow();
        for command in commands {
            let reply: Reply = server.answer(session, &command);
            reply.write(&mut replies);
        }
        replies
    }
}

type Connected = oneshot::Sender<io::Result<DuplexStream>>;

/// A process asks for a connection to a host.
struct Asked {
    host: String,
    connected: Connected,
    process_ends: watch::Receiver<bool>,
}

/// Opens connections to the hosts, by their names, for one process.
#[derive(Clone)]
pub struct Network {
    asked: mpsc::UnboundedSender<Asked>,
    ends: Arc<watch::Sender<bool>>,
}

impl Network {
    /// The network of these hosts, on a [`LocalSet`](tokio::task::LocalSet).
    pub fn start(hosts: BTreeMap<String, Rc<Host>>) -> Self {
        let (sender, mut asked) = mpsc::unbounded_channel::<Asked>();
        spawn_local(async move {
            while let Some(Asked { host, connected, mut process_ends }) = asked.recv().await {
                let host = hosts.get(&host).map(Rc::clone);
                spawn_local(async move {
                    tokio::select! {
                        biased;
                        _ = process_ends.wait_for(|ends| *ends) => {}
                        () = connect(host, connected) => {}
                    }
                });
            }
        });
        Self { asked: sender, ends: Arc::new(watch::Sender::new(false)) }
    }

    /// The same network for another process.
    pub fn of_another_process(&self) -> Self {
        Self { asked: self.asked.clone(), ends: Arc::new(watch::Sender::new(false)) }
    }

    /// The process ends: its connections are cut, and it opens no other.
    pub fn end(&self) {
        self.ends.send_replace(true);
    }

    /// # Errors
    /// The host refuses the connection, or no host has this name.
    pub async fn connect(&self, host: String) -> io::Result<DuplexStream> {
        let (connected, opened) = oneshot::channel();
        drop(self.asked.send(Asked { host, connected, process_ends: self.ends.subscribe() }));
        opened.await.unwrap_or_else(|_| Err(io::ErrorKind::NetworkUnreachable.into()))
    }
}

async fn connect(host: Option<Rc<Host>>, connected: Connected) {
    let Some(host) = host else {
        drop(connected.send(Err(io::ErrorKind::NotFound.into())));
        return;
    };
    let connects = host.weather.borrow().connects;
    match connects {
        Connects::AtOnce => host.latency().await,
        Connects::Slowly => host.stall().await,
        Connects::Refused => {
            host.latency().await;
            drop(connected.send(Err(io::ErrorKind::ConnectionRefused.into())));
            return;
        }
        // The first packet is sent again each second.
        Connects::Never => {
            while host.weather.borrow().connects == Connects::Never && !connected.is_closed() {
                time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
    let (ours, theirs) = duplex(BUFFER_BYTES);
    if connected.send(Ok(theirs)).is_ok() {
        host.serve(ours).await;
    }
}
