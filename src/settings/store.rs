//! Where counters are kept, and how long a decision may wait for them. `url` reads the URL, and `access` adds logins and
//! TLS; connecting is for `store/redis/`.

pub(super) mod access;
pub(super) mod url;

use std::time::Duration;

use self::{
    access::{STORE, StoreAccess},
    url::StoreUrl,
};
use super::reader::{
    SettingReader,
    environment::Given,
    form::{Custom, Size, Time, WholeNumber, invalid, switch},
};
use crate::store::{guard::Timeouts, memory::metrics::MemorySize};

#[derive(Debug, Clone)]
pub struct StoreSettings {
    pub url: StoreUrl,
    pub pool_size: u32,
    /// Number of replicas of Redis that charges are expected on; 0 is off.
    pub wait_replicas: u32,
    pub key_prefix: String,
    /// Number of counters to remember as over their limit.
    pub over_limit_cache: usize,
    /// Maximum number and size of counters in memory.
    pub memory_max: MemorySize,
    pub timeouts: Timeouts,
    /// Maximum number of debits and refunds that wait for Redis.
    pub debits_queued_max: usize,
    /// Replicas that share a limit counted locally.
    pub replicas: u32,
    /// Whether the service is ready without the store.
    pub ready: ReadyNeeds,
}

const DECISION_TIME: Time = Time(Duration::from_millis(1)..=Duration::from_secs(60));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyNeeds {
    /// The store must have answered once, or ten seconds must have passed.
    Start,
    /// The store must answer.
    Store,
}

impl StoreSettings {
    #[rustfmt::skip]
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let settings = Self {
            url: Self::read_url(reader),
            pool_size: reader.read("store-pool-size", WholeNumber(1..=1000), "16", "Maximum number of connections to each Redis server"),
            wait_replicas: reader.read("store-wait-replicas", WholeNumber(0..=10), "0", "Count charges that N replicas of Redis have not acknowledged within 5ms (WAIT); 0 is off"),
            key_prefix: reader.read("key-prefix", KEY_PREFIX, "", "Prefix of all keys in Redis: at most 64 visible ASCII characters, no braces"),
            over_limit_cache: reader.read("over-limit-cache", WholeNumber(0..=10_000_000), "100000", "Counters remembered for a second as over their limit; 0 is off"),
            memory_max: MemorySize {
                counters: reader.read("memory-counters-max", WholeNumber(1000..=1_000_000_000), "1000000", "Maximum number of counters in memory"),
                bytes: reader.read("memory-size-max", Size(1 << 20..=1 << 40), "256MiB", "Maximum size of the counters in memory"),
            },
            timeouts: Timeouts {
                budget: reader.read("decision-budget", DECISION_TIME, "15ms", "How long a decision may take for a caller without a timeout; if Redis has not answered by then, it has failed"),
                announced_max: reader.read("decision-budget-max", DECISION_TIME, "1s", "A decision takes at most three quarters of its caller's timeout, and never longer than this"),
            },
            debits_queued_max: reader.read("debits-queued-max", WholeNumber(0..=10_000_000), "10000", "Maximum number of debits and refunds that wait for Redis; 0 is off"),
            replicas: reader.read("replicas", WholeNumber(1..=10_000), "1", "Replicas that share a limit counted locally"),
            ready: reader.read("ready-needs-store", switch(ReadyNeeds::Store, ReadyNeeds::Start), "off", "Be ready only while the store answers"),
        };
        if matches!(settings.url, StoreUrl::Memory) && settings.replicas > 1 {
            reader.warn_unused("replicas", "with memory:// each replica has the whole limit");
        }
        settings
    }

    fn read_url(reader: &mut SettingReader<'_>) -> StoreUrl {
        let problems_before = reader.problems.len();
        let help = "Where counters are kept: memory://, redis://[user:password@]host:port[/db], redis+unix:///path[?db=N], redis+sentinel://host:port,host:port/name[/db] or redis+cluster://host:port,host:port; with TLS rediss://, rediss+sentinel:// or rediss+cluster://";
        let Given { value: url, name } = reader.read_given(STORE, URL, "memory://", help);
        let is_bad = reader.problems.len() > problems_before;
        let access = StoreAccess::read(reader);
        match url {
            // A bad URL is read as the default.
            StoreUrl::Memory if is_bad => access.check(reader),
            // A file that is not used need not exist.
            StoreUrl::Memory => {
                access.warn_of_memory(reader);
                reader.warn_unused("store-pool-size", "memory:// has no connections");
                reader.warn_unused("store-wait-replicas", "memory:// has no replicas");
                reader.warn_unused("over-limit-cache", "memory:// needs no cache");
                reader.warn_unused("debits-queued-max", "memory:// always answers");
                reader.warn_unused("key-prefix", "memory:// has no keys in Redis");
            }
            StoreUrl::Redis(url) => {
                access.check(reader);
                return StoreUrl::Redis(access.add_to(Given { value: url, name }, reader));
            }
        }
        StoreUrl::Memory
    }
}

const URL: Custom<StoreUrl> = Custom { name: "URL", read: str::parse };

const KEY_PREFIX: Custom<String> = Custom { name: "TEXT", read: key_prefix };

fn key_prefix(text: &str) -> Result<String, String> {
    if text.len() <= 64 && text.bytes().all(may_be_in_prefix) {
        Ok(text.to_owned())
    } else {
        Err(invalid(text, "at most 64 visible ASCII characters, without braces"))
    }
}

/// Braces would move the hash tag of a key.
fn may_be_in_prefix(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}')
}
