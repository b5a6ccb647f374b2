//! A server: its sessions, its scripts, what it refuses and what it says of itself.

use std::{cell::RefCell, rc::Rc};

use super::{
    cluster::{View, slot_of},
    commands::{self, Command, Kind},
    database::Database,
    reply::Reply,
    scripts::{Keys, Plant, Scripts},
    sentinel::Monitor,
};

/// The reason for which a server refuses commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is full, and takes no command that may take memory.
    OutOfMemory,
    ReadOnly,
    NoReplicas,
    CannotSave,
    /// It reads its data, and answers nothing else.
    Loading,
    /// It is a replica that has lost its master.
    MasterDown,
}

impl Refusal {
    const fn error(self) -> &'static str {
        match self {
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
            Self::ReadOnly => "READONLY You can't write against a read only replica.",
            Self::NoReplicas => "NOREPLICAS Not enough good replicas to write.",
            Self::CannotSave => {
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."
            }
            Self::Loading => "LOADING Redis is loading the dataset in memory",
            Self::MasterDown => {
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
            }
        }
    }

    fn refuses(self, kind: Kind) -> bool {
        match self {
            Self::OutOfMemory => kind == Kind::Grow,
            Self::ReadOnly | Self::NoReplicas | Self::CannotSave => kind != Kind::Read,
            Self::Loading | Self::MasterDown => true,
        }
    }
}

/// What commands, scripts and the test share of a server.
#[derive(Default)]
pub struct State {
    pub database: Database,
    pub refusal: Option<Refusal>,
    /// Whether it takes writes of its master only. In a cluster, its view says so.
    pub is_replica: bool,
    /// The master whose data it has, if it follows one.
    pub replicates: Option<Rc<RefCell<State>>>,
    /// What it knows as a Sentinel, if it is one.
    pub sentinel: Option<Monitor>,
    /// What it knows of its cluster, if it is a node of one.
    pub cluster: Option<View>,
    /// Whether the command that runs follows ASKING.
    is_asking: bool,
    /// Whether the script that runs has written: then it is not refused any more.
    has_written: bool,
}

impl State {
    /// Why it does not run a command of this kind, if it does not.
    fn refusal_of(&self, kind: Kind) -> Option<Refusal> {
        let of_replica = self.is_replica.then_some(Refusal::ReadOnly);
        of_replica.into_iter().chain(self.refusal).find(|refusal| refusal.refuses(kind))
    }

    fn run_command(&mut self, command: &Command, arguments: &[Vec<u8>]) -> Reply {
        match self.refusal_of(command.kind) {
            Some(refusal) => Reply::error(refusal.error()),
            None => command.run(&mut self.database, arguments),
        }
    }

    /// Why it runs nothing on these keys as a node of a cluster, if it does not.
    fn is_elsewhere(&mut self, keys: &[Vec<u8>]) -> Option<String> {
        let Self { database, cluster, is_asking, .. } = self;
        cluster.as_ref()?.refusal(database, keys, *is_asking)
    }
}

impl Keys for State {
    fn run(&mut self, command: &[Vec<u8>]) -> Reply {
        let known =
            command.split_first().and_then(|(name, rest)| Some((commands::find(name)?, rest)));
        let Some((command, arguments)) = known else {
            return Reply::error("ERR Unknown Redis command called from script");
        };
        if let Some(refusal) = self.refusal_of(command.kind).filter(|_| !self.has_written) {
            return Reply::error(refusal.error());
        }
        self.has_written |= command.kind != Kind::Read;
        if self.is_elsewhere(command.keys(arguments)).is_some() {
            let text = "ERR Script attempted to access a non local key in a cluster node";
            return Reply::error(text);
        }
        command.run(&mut self.database, arguments)
    }
}

/// What a server knows of one connection.
#[derive(Default)]
pub struct Session {
    watched: Vec<(Vec<u8>, u64)>,
    /// The commands since MULTI.
    queued: Option<Vec<Vec<Vec<u8>>>>,
    /// Whether EXEC has to refuse them.
    is_aborted: bool,
    is_asking: bool,
    /// Whether it gets what the server announces.
    pub is_subscribed: bool,
}

/// The time in Unix microseconds.
pub type Clock = Rc<dyn Fn() -> u64>;

pub struct Server {
    pub state: Rc<RefCell<State>>,
    scripts: RefCell<Scripts>,
    clock: Clock,
    version: &'static str,
    /// Changes when it starts again.
    pub run: u64,
}

impl Server {
    pub fn new(clock: Clock) -> Self {
        let state = Rc::new(RefCell::new(State::default()));
        let scripts = RefCell::new(Scripts::new(&state));
        Self { state, scripts, clock, version: "8.2.3", run: 1 }
    }

    /// Starts again, empty.
    pub fn restart(&mut self) {
        self.state.borrow_mut().database.clear();
        self.scripts.borrow_mut().flush();
        self.run += 1;
    }

    /// Makes all scripts that are loaded from now on wrong in this way.
    pub fn plant(&self, fault: Plant) {
        self.scripts.borrow_mut().plant(fault);
    }

    pub fn flush_scripts(&self) {
        self.scripts.borrow_mut().flush();
    }

    /// Runs one command of a connection.
    pub fn answer(&self, session: &mut Session, command: &[Vec<u8>]) -> Reply {
        let (name, arguments) = command.split_first().expect("a command has a name");
        let name = String::from_utf8_lossy(name).to_uppercase();
        let mut state = self.state.borrow_mut();
        if let Some(master) = state.replicates.clone() {
            state.database = master.borrow().database.clone();
        }
        state.database.now_us = (self.clock)();
        state.is_asking = session.is_asking;
        drop(state);
        let reply = self.answer_to(session, &name, arguments, command);
        // It holds for one command, or for one transaction.
        session.is_asking = match session.queued {
            Some(_) => session.is_asking,
            None => name == "ASKING",
        };
        reply
    }

    fn answer_to(
        &self,
        session: &mut Session,
        name: &str,
        arguments: &[Vec<u8>],
        command: &[Vec<u8>],
    ) -> Reply {
        if let Some(monitor) = &self.state.borrow().sentinel {
            session.is_subscribed |= name == "SUBSCRIBE";
            return monitor.answer(name, arguments);
        }
        let ends_queue = matches!(name, "EXEC" | "DISCARD" | "MULTI" | "WATCH");
        if let Some(queued) = session.queued.as_mut().filter(|_| !ends_queue) {
            return match self.why_refused(name, arguments) {
                None => {
                    queued.push(command.to_vec());
                    Reply::Status("QUEUED".to_owned())
                }
                Some(refusal) => {
                    session.is_aborted = true;
                    Reply::Error(refusal)
                }
            };
        }
        let mut state = self.state.borrow_mut();
        if let Some(elsewhere) = state.is_elsewhere(keys_of(name, arguments)) {
            return Reply::Error(elsewhere);
        }
        if let Some(refusal @ (Refusal::Loading | Refusal::MasterDown)) = state.refusal
            && !matches!(name, "INFO" | "AUTH" | "SELECT" | "CLIENT")
        {
            return Reply::error(refusal.error());
        }
        match name {
            "MULTI" => {
                session.queued = Some(Vec::new());
                Reply::ok()
            }
            "DISCARD" => {
                *session = Session::default();
                Reply::ok()
            }
            "WATCH" => {
                let watched = arguments.iter();
                session
                    .watched
                    .extend(watched.map(|key| (key.clone(), state.database.version(key))));
                Reply::ok()
            }
            "UNWATCH" => {
                session.watched.clear();
                Reply::ok()
            }
            "EXEC" => {
                drop(state);
                self.exec(session)
            }
            _ => {
                drop(state);
                self.run(name, arguments)
            }
        }
    }

    /// Why a command is refused before it is queued.
    fn why_refused(&self, name: &str, arguments: &[Vec<u8>]) -> Option<String> {
        let mut state = self.state.borrow_mut();
        if let Some(elsewhere) = state.is_elsewhere(keys_of(name, arguments)) {
            return Some(elsewhere);
        }
        let refusal = state.refusal_of(commands::find(name.as_bytes())?.kind)?;
        Some(refusal.error().to_owned())
    }

    fn exec(&self, session: &mut Session) -> Reply {
        let Session { watched, queued, is_aborted, .. } = std::mem::take(session);
        let Some(queued) = queued else { return Reply::error("ERR EXEC without MULTI") };
        if is_aborted {
            return Reply::error("EXECABORT Transaction discarded because of previous errors.");
        }
        let keys = |command: &Vec<Vec<u8>>| {
            keys_of(&String::from_utf8_lossy(&command[0]).to_uppercase(), &command[1..]).to_vec()
        };
        let keys: Vec<Vec<u8>> = queued.iter().flat_map(keys).collect();
        if let Some(elsewhere) = self.state.borrow_mut().is_elsewhere(&keys) {
            return Reply::Error(elsewhere);
        }
        let has_changed = |(key, version): &(Vec<u8>, u64)| {
            self.state.borrow_mut().database.version(key) != *version
        };
        if watched.iter().any(has_changed) {
            return Reply::NilArray;
        }
        let run = |command: Vec<Vec<u8>>| {
            let name = String::from_utf8_lossy(&command[0]).to_uppercase();
            self.run(&name, &command[1..])
        };
        Reply::Array(queued.into_iter().map(run).collect())
    }

    fn run(&self, name: &str, arguments: &[Vec<u8>]) -> Reply {
        match name {
            "PING" => Reply::Status("PONG".to_owned()),
            "SELECT" | "CLIENT" | "ASKING" => Reply::ok(),
            "CLUSTER" => self.of_cluster(arguments),
            "INFO" => Reply::bulk(self.info()),
            "WAIT" => Reply::Integer(0),
            "EVAL" | "EVALSHA" => self.eval(name == "EVAL", arguments),
            "SCRIPT" => self.script(arguments),
            "SCAN" => {
                let keys = self.state.borrow_mut().database.keys();
                let found = Reply::bulks(keys.into_iter().filter(|key| matches(arguments, key)));
                Reply::Array(vec![Reply::bulk("0"), found])
            }
            _ => match commands::find(name.as_bytes()) {
                Some(command) => self.state.borrow_mut().run_command(command, arguments),
                None => Reply::Error(format!("ERR unknown command '{name}'")),
            },
        }
    }

    fn of_cluster(&self, arguments: &[Vec<u8>]) -> Reply {
        let state = self.state.borrow();
        let Some(view) = &state.cluster else {
            return Reply::error("ERR This instance has cluster support disabled");
        };
        match &*String::from_utf8_lossy(&arguments[0]).to_uppercase() {
            "INFO" => Reply::bulk(match view.is_down {
                false => "cluster_state:ok\r\n",
                true => "cluster_state:fail\r\n",
            }),
            "SLOTS" => view.slots(),
            "KEYSLOT" => Reply::Integer(slot_of(&arguments[1]).into()),
            other => Reply::Error(format!("ERR unknown subcommand '{other}'.")),
        }
    }

    fn eval(&self, is_text: bool, arguments: &[Vec<u8>]) -> Reply {
        let Some(keys) = declared(arguments) else {
            return Reply::error("ERR Number of keys can't be greater than number of args");
        };
        let values = &arguments[2 + keys.len()..];
        self.state.borrow_mut().has_written = false;
        let mut scripts = self.scripts.borrow_mut();
        let hash = if is_text {
            match scripts.load(&arguments[0]) {
                Ok(hash) => hash,
                Err(error) => return Reply::Error(error),
            }
        } else {
            String::from_utf8_lossy(&arguments[0]).to_lowercase()
        };
        let missing = || Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        scripts.run(&hash, keys, values).unwrap_or_else(missing)
    }

    fn script(&self, arguments: &[Vec<u8>]) -> Reply {
        let mut scripts = self.scripts.borrow_mut();
        match &*String::from_utf8_lossy(&arguments[0]).to_uppercase() {
            "LOAD" => scripts.load(&arguments[1]).map_or_else(Reply::Error, Reply::bulk),
            "FLUSH" => {
                scripts.flush();
                Reply::ok()
            }
            other => Reply::Error(format!("ERR unknown subcommand '{other}'.")),
        }
    }

    fn info(&self) -> String {
        let Self { version, run, .. } = self;
        let state = self.state.borrow();
        let is_node = u8::from(state.cluster.is_some());
        let is_replica =
            state.is_replica || state.cluster.as_ref().is_some_and(|view| !view.is_master());
        let (mode, role) = (
            ["standalone", "cluster"][usize::from(is_node)],
            if is_replica { "slave" } else { "master" },
        );
        format!(
            "# Server\r\nredis_version:{version}\r\nredis_mode:{mode}\r\nrun_id:{run:040x}\r\n\
             # Clients\r\nconnected_clients:1\r\nmaxclients:10000\r\n\
             # Memory\r\nused_memory:1000000\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
             # Replication\r\nrole:{role}\r\nmaster_replid:{run:040x}\r\nmaster_replid2:0\r\n\
             master_repl_offset:0\r\nsecond_repl_offset:-1\r\n\
             # Cluster\r\ncluster_enabled:{is_node}\r\n"
        )
    }
}

/// The keys that a command names. A script may access others.
fn keys_of<'a>(name: &str, arguments: &'a [Vec<u8>]) -> &'a [Vec<u8>] {
    match name {
        "WATCH" => arguments,
        "EVAL" | "EVALSHA" => declared(arguments).unwrap_or_default(),
        _ => commands::find(name.as_bytes()).map_or(&[], |command| command.keys(arguments)),
    }
}

/// The keys that are declared for a script; `None` if there are fewer than it says.
fn declared(arguments: &[Vec<u8>]) -> Option<&[Vec<u8>]> {
    let count: usize = std::str::from_utf8(arguments.get(1)?).ok()?.parse().ok()?;
    arguments.get(2..)?.get(..count)
}

/// Whether a key matches the pattern of a SCAN, which has its one star at the end.
fn matches(arguments: &[Vec<u8>], key: &[u8]) -> bool {
    let pattern = arguments.iter().position(|word| word.eq_ignore_ascii_case(b"MATCH"));
    let pattern = pattern.and_then(|place| arguments.get(place + 1));
    pattern.is_none_or(|pattern| match pattern.strip_suffix(b"*") {
        Some(start) => key.starts_with(&unescaped(start)),
        None => key == &unescaped(pattern)[..],
    })
}

fn unescaped(pattern: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        text.push(if *byte == b'\\' { *bytes.next().unwrap_or(byte) } else { *byte });
    }
    text
}
