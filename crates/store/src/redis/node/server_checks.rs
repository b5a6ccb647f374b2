//! What is checked of a server at each new connection, in one round trip: whether we can work with it, and what its
//! operator should know. A finding is logged when it is new or has changed, and counted by a metric.

use std::{collections::BTreeMap, fmt, io, vec};

use parking_lot::Mutex;
use redis::{Cmd, RedisError, RedisResult, Value, from_redis_value, from_redis_value_ref};
use tokio::time::Instant;
use tollkeeper_engine::{key::unused_key, text::named::named};

use crate::{
    metrics::StoreMetrics,
    redis::wire::{
        connection::Connection,
        endpoint::Server,
        server_info::{Expected, ServerInfo, ServerMode},
    },
    report::ServerUsage,
};

/// The commands of the scripts, each with a key as its first argument. INCR and RPUSH come last: they cannot be tried
/// without an effect.
const IN_SCRIPTS: &str = "GET SET EXISTS INCRBY DEL PEXPIREAT LINDEX LLEN LRANGE LSET LTRIM \
    ZADD ZCOUNT ZRANGE ZREM ZSCORE INCR RPUSH";

/// The commands that count without scripts. EXEC ends what WATCH and MULTI begin.
const WITHOUT_SCRIPTS: [&str; 7] = ["GET", "SET", "INCRBY", "DEL", "WATCH", "MULTI", "EXEC"];

/// Queries which commands the user may not run on a key. Redis 6.2 cannot report it, and the reply is nil.
const REFUSED: &str = "if not redis.acl_check_cmd then return false end \
    local refused = {} \
    if not redis.acl_check_cmd('EVALSHA', '', '0') then refused[1] = 'EVALSHA' end \
    for i = 2, #ARGV do \
      if not redis.acl_check_cmd(ARGV[i], ARGV[1]) then refused[#refused + 1] = ARGV[i] end \
    end \
    return refused";

pub(crate) const MODE: &str = "mode";

named! {
    /// What is checked. The first three are reasons not to use the server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Check {
        Time = "time",
        Version = "version",
        Mode = MODE,
        Info = "info",
        Role = "role",
        Eviction = "eviction",
        MaxClients = "maxclients",
        Rights = "rights",
    }
}

impl Check {
    const fn is_fatal(self) -> bool {
        matches!(self, Self::Time | Self::Version | Self::Mode)
    }
}

/// What was found, as sentences.
type ServerFindings = BTreeMap<Check, String>;

#[derive(Debug, Default)]
struct Seen {
    /// What the last connection found.
    found: ServerFindings,
    /// How much memory and how many clients it has, if it reports that.
    usage: Option<ServerUsage>,
    /// Which run of the server has answered last, if it reports that, and since when.
    run: Option<(Option<String>, Instant)>,
}

pub(crate) struct Checks {
    server: Server,
    expected: Expected,
    /// A key that no counter has.
    key: String,
    metrics: StoreMetrics,
    seen: Mutex<Seen>,
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Checks {
    /// The checks of a server whose keys begin with `key_prefix`.
    pub(crate) fn new(
        server: Server,
        expected: Expected,
        key_prefix: &str,
        metrics: StoreMetrics,
    ) -> Self {
        for (name, _) in Check::NAMED {
            metrics.check_failed(name, 0);
        }
        let key = key_prefix.to_owned() + &unused_key("probe");
        Self { server, expected, key, metrics, seen: Mutex::default() }
    }

    /// Checks the server behind a new connection.
    ///
    /// # Errors
    /// A sentence if it cannot be used; errors of the network, and of a server that does not answer INFO.
    pub(crate) async fn run(&self, connection: &mut Connection) -> RedisResult<()> {
        let found = self.find(connection).await?;
        let fatal = found.iter().find(|(check, _)| check.is_fatal());
        let answer = fatal.map_or(Ok(()), |(_, sentence)| Err(io::Error::other(sentence.clone())));
        self.note(found);
        Ok(answer?)
    }

    async fn find(&self, connection: &mut Connection) -> RedisResult<ServerFindings> {
        let mut commands = vec![redis::cmd("INFO"), redis::cmd("TIME")];
        commands.extend(self.questions_of_rights());
        let answers = ask(connection, &commands).await;
        let mut answers = answers.map_err(closed_at_info)?.into_iter();
        let (Some(info), Some(time)) = (answers.next(), answers.next()) else {
            return Ok(ServerFindings::new());
        };

        let mut found = ServerFindings::new();
        let mut refused = Vec::new();
        if is_refused(&time) {
            refused.push("TIME".to_owned());
        } else if !is_of_a_server(&time) {
            let sentence = "a proxy such as Envoy's redis_proxy answers TIME instead of Redis: write \
                            the address of Redis itself";
            found.insert(Check::Time, sentence.to_owned());
        }
        refused.extend(self.refused_commands(connection, answers).await?);
        if !refused.is_empty() {
            let sentence = format!(
                "{} may not run {} with the keys of counters: docs/redis.md lists the rights that are \
                 needed",
                self.server.access.user_in_words(),
                refused.join(", ")
            );
            found.insert(Check::Rights, sentence);
        }
        if is_refused(&info) {
            self.learn_run(None);
            let sentence = format!(
                "{} may not run INFO: version, cluster mode, role, maxmemory-policy and maxclients \
                 are not checked",
                self.server.access.user_in_words()
            );
            found.insert(Check::Info, sentence);
        } else if !found.contains_key(&Check::Time) {
            self.read_info(info, &mut found)?;
        }
        Ok(found)
    }

    fn questions_of_rights(&self) -> Vec<Cmd> {
        if !self.expected.runs_scripts {
            return WITHOUT_SCRIPTS.iter().filter_map(|name| self.harmless(name)).collect();
        }
        let mut refused = redis::cmd("EVAL");
        refused.arg(REFUSED).arg(0).arg(&self.key);
        refused.arg(IN_SCRIPTS.split(' ').collect::<Vec<_>>());
        if self.expected.mode == ServerMode::Cluster {
            refused.arg("ASKING");
        }
        vec![refused]
    }

    /// The commands that the user may not run, by the answers to [the questions](Self::questions_of_rights).
    /// Where a script cannot check it, those that can be tried are tried.
    async fn refused_commands(
        &self,
        connection: &mut Connection,
        mut answers: vec::IntoIter<Value>,
    ) -> RedisResult<Vec<String>> {
        if !self.expected.runs_scripts {
            return Ok(refused_of(WITHOUT_SCRIPTS, answers).collect());
        }
        let answer = answers.next();
        if let Some(Value::Array(names)) = answer {
            return Ok(names.into_iter().filter_map(|name| from_redis_value(name).ok()).collect());
        }
        let tried = ["EVALSHA"].into_iter().chain(IN_SCRIPTS.split(' '));
        let tried = tried.filter_map(|name| Some((name, self.harmless(name)?)));
        let (names, commands): (Vec<&str>, Vec<Cmd>) = tried.unzip();
        let tried = ask(connection, &commands).await?;
        Ok(refused_of(["EVAL"], answer).chain(refused_of(names, tried)).collect())
    }

    fn read_info(&self, answer: Value, found: &mut ServerFindings) -> RedisResult<()> {
        let info: String = from_redis_value(answer.extract_error()?)?;
        let info = ServerInfo(&info);
        self.learn_usage(info);
        self.learn_run(info.run().map(str::to_owned));
        if let Err(problem) = info.check_version() {
            found.insert(Check::Version, problem);
        }
        if let Err(problem) = info.check_mode(self.expected.mode, &self.server) {
            found.insert(Check::Mode, problem);
        }
        // The masters of a cluster are known from its map.
        if info.is_replica() && self.expected.mode == ServerMode::Single {
            let sentence = "it is a replica, and takes no writes: calls that it would admit are \
                            answered by on_store_failure; write the address of the master";
            found.insert(Check::Role, sentence.to_owned());
        }
        if let Some(policy) = info.evicts() {
            let sentence = format!(
                "it may evict counters, and then limits start again from zero: its maxmemory-policy is \
                 {policy}; set it to noeviction"
            );
            found.insert(Check::Eviction, sentence);
        }
        let clients = self.expected.clients;
        if let Some(max) = info.clients_max().filter(|max| *max < clients) {
            let sentence = format!(
                "it takes {max} clients (maxclients), and all replicas of this service may open \
                 {clients} connections: lower --store-pool-size"
            );
            found.insert(Check::MaxClients, sentence);
        }
        Ok(())
    }

    /// Learns from an answer to INFO how much memory and how many clients the server has.
    pub(crate) fn learn_usage(&self, info: ServerInfo<'_>) {
        self.seen.lock().usage = Some(info.usage());
    }

    /// Learns which run of the server is behind a new connection. An unknown one may be another each time.
    fn learn_run(&self, run: Option<String>) {
        let mut seen = self.seen.lock();
        if run.is_none() || seen.run.as_ref().is_none_or(|(known, _)| *known != run) {
            seen.run = Some((run, Instant::now()));
        }
    }

    /// Since when the present run of the server is known; it may have lost the data of the one before.
    pub(crate) fn known_since(&self) -> Option<Instant> {
        self.seen.lock().run.as_ref().map(|(_, since)| *since)
    }

    /// The server's last report of its use; `None` if it was not queried, or gives none.
    pub(crate) fn usage(&self) -> Option<ServerUsage> {
        self.seen.lock().usage
    }

    /// The command with arguments with which it changes nothing, since the key does not exist or they are invalid.
    fn harmless(&self, name: &str) -> Option<Cmd> {
        let rest: &[&str] = match name {
            "INCR" | "RPUSH" => return None,
            "MULTI" | "EXEC" => return Some(redis::cmd(name)),
            "SET" => &["0", "NX", "XX"],
            "INCRBY" | "PEXPIREAT" | "ZREM" | "ZSCORE" => &["x"],
            "ZADD" => &["x", "x"],
            "EVALSHA" | "LINDEX" => &["0"],
            "LRANGE" | "LSET" | "LTRIM" | "ZCOUNT" | "ZRANGE" => &["0", "0"],
            _ => &[],
        };
        Some(redis::cmd(name).arg(&self.key).arg(rest).take())
    }

    /// Logs each finding once, however many connections find it.
    fn note(&self, found: ServerFindings) {
        let known = &mut self.seen.lock().found;
        for (check, sentence) in &found {
            // The outage's log line says why a server cannot be used.
            if known.get(check) != Some(sentence) && !check.is_fatal() {
                tracing::warn!("Redis at {}: {sentence}", self.server.address);
            }
        }
        for (name, check) in Check::NAMED {
            let change =
                i64::from(found.contains_key(&check)) - i64::from(known.contains_key(&check));
            if change != 0 {
                self.metrics.check_failed(name, change);
            }
        }
        *known = found;
    }
}

/// A server that has left fails no check.
impl Drop for Checks {
    fn drop(&mut self) {
        self.note(ServerFindings::new());
    }
}

/// The answers to commands that are sent together. Errors of the server are among them.
async fn ask(connection: &mut Connection, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
    let mut encoded = Vec::new();
    for command in commands {
        command.write_packed_command(&mut encoded);
    }
    let answers = connection.exchange(&encoded, commands.len(), redis::parse_redis_value).await;
    answers.into_iter().collect()
}

/// The names of the commands whose answers are refusals.
fn refused_of(
    names: impl IntoIterator<Item = &'static str>,
    answers: impl IntoIterator<Item = Value>,
) -> impl Iterator<Item = String> {
    let answered = names.into_iter().zip(answers);
    answered.filter(|(_, answer)| is_refused(answer)).map(|(name, _)| name.to_owned())
}

/// Whether the user may not run the command, or not with this key. EXEC is refused with a code of its own.
fn is_refused(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if matches!(error.code(), "NOPERM" | "EXECABORT"))
}

/// Names a cause of a connection that ends at the first commands.
fn closed_at_info(error: RedisError) -> RedisError {
    if !error.is_connection_dropped() {
        return error;
    }
    let sentence = format!(
        "{error}: the connection was closed at INFO, as a proxy such as twemproxy does; write the address of Redis itself"
    );
    io::Error::other(sentence).into()
}

/// Whether this is what a server answers to TIME: its second number is less than a million microseconds. Errors
/// are not judged.
fn is_of_a_server(time: &Value) -> bool {
    let Value::Array(numbers) = time else { return matches!(time, Value::ServerError(_)) };
    let micros = numbers.get(1).and_then(|micros| from_redis_value_ref::<u64>(micros).ok());
    micros.is_some_and(|micros| micros < 1_000_000)
}
