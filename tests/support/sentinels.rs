//! Three Sentinels that watch a master and two replicas.

use super::{certificates::Issued, prelude::*, redis_server::Setup};

/// The name by which the Sentinels know the master.
pub const NAME: &str = "counters";

/// The time after which a Sentinel gets the command to replace the master again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How to start them.
#[derive(Clone, Debug, Default)]
pub struct SentinelSetup {
    pub version: Version,
    /// The password of master and replicas, or empty.
    pub password: String,
    /// The Sentinels' own password, or empty.
    pub sentinel_password: String,
    /// The certificate of all of them. Sentinels, and clients that ask them, then use the TLS ports.
    pub tls: Option<Issued>,
}

pub struct Sentinels {
    pub sentinels: Vec<Redis>,
    /// The master and its replicas, in an order that does not change.
    pub redises: Vec<Redis>,
    /// The index of the master that was killed, stopped or replaced, until [`heal`](Self::heal).
    replaced: Option<usize>,
    /// Whether it is replaced by a command to a Sentinel.
    by_hand: bool,
    tls: bool,
}

/// A Sentinel that watches this Redis alone: enough where nothing fails.
pub fn sentinel_of(redis: &Redis) -> Redis {
    sentinel_of_port(redis.port)
}

/// Like [`sentinel_of`], for a Redis behind this port.
pub fn sentinel_of_port(port: u16) -> Redis {
    let configuration = format!("sentinel monitor {NAME} 127.0.0.1 {port} 1\n");
    Redis::start_as(Setup { configuration, ..Setup::default() }.with(&["--sentinel"]))
}

impl Sentinels {
    pub fn start() -> Self {
        Self::start_as(&SentinelSetup::default())
    }

    pub fn start_as(setup: &SentinelSetup) -> Self {
        let SentinelSetup { version, password, sentinel_password, tls } = setup;
        let tls_arguments: &[&str] =
            if tls.is_some() { &["--tls-replication", "yes"] } else { &[] };
        let redis = Setup {
            version: *version,
            password: password.clone(),
            tls: tls.clone(),
            ..Setup::default()
        }
        .with(&["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"])
        .with(tls_arguments);
        let master = Redis::start_as(redis.clone());
        let port = if tls.is_some() { master.tls_port } else { master.port }.to_string();
        let replica = redis.with(&["--replicaof", "127.0.0.1", &port]);
        let redises = vec![master, Redis::start_as(replica.clone()), Redis::start_as(replica)];

        let mut configuration = format!(
            "sentinel monitor {NAME} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {NAME} 500\n\
             sentinel failover-timeout {NAME} 1000\n"
        );
        if !password.is_empty() {
            configuration += &format!("sentinel auth-pass {NAME} {password}\n");
        }
        if !sentinel_password.is_empty() {
            configuration += &format!("sentinel sentinel-pass {sentinel_password}\n");
        }
        let sentinel = Setup {
            version: *version,
            password: sentinel_password.clone(),
            tls: tls.clone(),
            configuration,
            ..Setup::default()
        }
        .with(&["--sentinel"])
        .with(tls_arguments);
        // A Sentinel asks for the replicas when it starts, and then only every ten seconds.
        wait_until("the replicas are connected", || {
            let info: String = redises[0].query(&["INFO", "replication"]);
            info.matches("state=online").count() == 2
        });
        let sentinels: Vec<_> = (0..3).map(|_| Redis::start_as(sentinel.clone())).collect();
        if *version != Version::Redis6 {
            let faster = "PING-PERIOD 100 INFO-PERIOD 500 ASK-PERIOD 100 PUBLISH-PERIOD 300";
            for sentinel in &sentinels {
                let words: Vec<_> =
                    ["SENTINEL", "DEBUG"].into_iter().chain(faster.split(' ')).collect();
                sentinel.query::<()>(&words);
            }
        }
        let formed =
            Self { sentinels, redises, replaced: None, by_hand: false, tls: tls.is_some() };
        formed.ready();
        formed
    }

    /// Host and port of each Sentinel, with commas between.
    pub fn hosts(&self) -> String {
        let host = |sentinel| format!("127.0.0.1:{}", self.port_of(sentinel));
        self.sentinels.iter().map(host).collect::<Vec<_>>().join(",")
    }

    /// The port that the servers use among themselves, and tell to clients.
    fn port_of(&self, server: &Redis) -> u16 {
        if self.tls { server.tls_port } else { server.port }
    }

    /// The store's URL, for servers without passwords and TLS.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", self.hosts())
    }

    /// The master that all Sentinels name.
    pub fn master(&self) -> &Redis {
        &self.redises[self.master_index()]
    }

    fn master_index(&self) -> usize {
        eventually("the Sentinels name one master", || {
            let mut named = self.sentinels.iter().map(|sentinel| self.named_by(sentinel));
            let first = named.next()?;
            named.all(|other| other == first).then_some(first)
        })
    }

    /// The index of the master that this Sentinel names.
    fn named_by(&self, sentinel: &Redis) -> usize {
        let (_, port): (String, u16) =
            sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
        self.redises
            .iter()
            .position(|redis| self.port_of(redis) == port)
            .expect("one of the deployment")
    }

    /// Waits until a failover would succeed and lose nothing: every Sentinel sees two connected replicas and two
    /// other Sentinels, and a replica acknowledges a write.
    pub fn ready(&self) {
        wait_until("every Sentinel sees the others", || {
            self.sentinels.iter().all(|sentinel| self.sees_all(sentinel))
        });
        // A replica that is connected may not receive writes for up to a second.
        eventually("both replicas acknowledge a write", || {
            let mut connection = self.master().connect();
            let mut write = redis::pipe();
            write.cmd("SET").arg("ready").arg(1).ignore().cmd("DEL").arg("ready").ignore();
            write.cmd("WAIT").arg(2).arg(1_000);
            let acknowledged: (usize,) = write.query(&mut connection).ok()?;
            (acknowledged.0 == 2).then_some(())
        });
    }

    fn sees_all(&self, sentinel: &Redis) -> bool {
        // Pairs of name and value.
        let ask = |what| sentinel.query::<Vec<Vec<String>>>(&["SENTINEL", what, NAME]);
        let is = |server: &[String], name: &str, value: &str| {
            server.chunks(2).any(|pair| pair == [name, value])
        };
        let (replicas, others) = (ask("REPLICAS"), ask("SENTINELS"));
        let master = self.port_of(&self.redises[self.named_by(sentinel)]).to_string();
        replicas.len() == 2
            && replicas.iter().all(|replica| {
                is(replica, "flags", "slave")
                    && is(replica, "master-link-status", "ok")
                    && is(replica, "master-port", &master)
            })
            && others.len() == 2
            && others.iter().all(|other| {
                // Valkey never forgets that another Sentinel found an earlier master down.
                is(other, "flags", "sentinel") || is(other, "flags", "sentinel,master_down")
            })
    }

    /// Waits until both replicas have what was written until now.
    pub fn replicated(&self) {
        let mut write = redis::pipe();
        write.cmd("SET").arg("replicated").arg(1).arg("PX").arg(1_000).ignore();
        write.cmd("WAIT").arg(2).arg(10_000);
        let (replicas,): (u8,) = write.query(&mut self.master().connect()).unwrap();
        assert_eq!(replicas, 2);
    }

    /// Ends the master's process at once.
    pub fn kill_master(&mut self) {
        self.master_to_replace().stop();
    }

    /// Stops the master's process, as a host that hangs would.
    pub fn stop_master(&mut self) {
        self.master_to_replace().signal("STOP");
    }

    /// Lets the master go on that was [`stop_master`](Self::stop_master)ped.
    pub fn resume_master(&self) {
        self.redises[self.replaced.expect("a failover")].signal("CONT");
    }

    /// Has the Sentinels consider the master down after this time without an answer.
    pub fn notice_after(&self, time: Duration) {
        for sentinel in &self.sentinels {
            let time = time.as_millis().to_string();
            sentinel.query::<()>(&["SENTINEL", "SET", NAME, "down-after-milliseconds", &time]);
        }
    }

    /// Has a Sentinel replace the master, which lives on and takes writes for some ten seconds.
    pub fn failover_by_hand(&mut self) {
        self.master_to_replace();
        self.by_hand = true;
        self.sentinels[0].query::<()>(&["SENTINEL", "FAILOVER", NAME]);
    }

    fn master_to_replace(&mut self) -> &mut Redis {
        assert!(self.replaced.is_none(), "heal() comes between two failovers");
        let master = self.master_index();
        self.replaced = Some(master);
        &mut self.redises[master]
    }

    /// Waits until a Sentinel names another master than the replaced one, and returns when that was, to 20 ms.
    pub fn announced(&self) -> Instant {
        let replaced = self.replaced.expect("a failover");
        let mut again = Instant::now() + AGAIN_AFTER;
        eventually("a Sentinel names another master", || {
            if self.by_hand && Instant::now() > again {
                // It may have given up, and refuses while it has not.
                let mut connection = self.sentinels[0].connect();
                let command = redis::cmd("SENTINEL").arg("FAILOVER").arg(NAME).take();
                let _ = command.query::<()>(&mut connection);
                again = Instant::now() + AGAIN_AFTER;
            }
            let names_another = |sentinel| self.named_by(sentinel) != replaced;
            self.sentinels.iter().any(names_another).then(Instant::now)
        })
    }

    /// Starts the replaced master again, as a replica of the new one, and waits until all are
    /// [`ready`](Self::ready).
    pub fn heal(&mut self) {
        self.announced();
        self.by_hand = false;
        let port = self.port_of(self.master());
        // Sentinel would do the same, but waits for ten seconds.
        let replaced = &mut self.redises[self.replaced.take().expect("a failover")];
        replaced.stop();
        replaced.start_again_as_replica_of(port);
        self.ready();
    }
}
