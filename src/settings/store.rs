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
    Setting, SettingReader,
    environment::Given,
    form::{self, Arity, Custom, OnOff, Time, WholeNumber, invalid},
};
use crate::store::{guard::Patience, memory::metrics::MemorySize};

/// Where counters are kept, and how long a decision may wait for them.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Where counters are kept.
    pub url: StoreUrl,
    /// Maximum number of connections to Redis.
    pub pool_size: u32,
    /// Number of replicas of Redis that charges are expected on; 0 is off.
    pub wait_replicas: u32,
    /// Prefix of all keys in Redis.
    pub key_prefix: String,
    /// Number of counters to remember as over their limit.
    pub over_limit_cache: usize,
    /// Maximum number and size of counters in memory.
    pub memory_max: MemorySize,
    pub patience: Patience,
    /// Maximum number of debits and refunds that wait for Redis.
    pub debits_queued_max: usize,
    /// Replicas that share a limit counted locally.
    pub replicas: u32,
    /// Whether the service is ready without the store.
    pub ready: ReadyNeeds,
}

const DECISION_TIME: Time = Time { min: Duration::from_millis(1), max: Duration::from_secs(60) };

/// What the service needs to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyNeeds {
    /// The store must have answered once, or ten seconds must have passed.
    Start,
    /// The store must answer.
    Store,
}

impl StoreSettings {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let settings = Self {
            url: Self::read_url(reader),
            pool_size: reader.read(&Setting {
                flag: "store-pool-size",
                form: WholeNumber { min: 1, max: 1000 },
                default: "16",
                help: "Maximum number of connections to each Redis server",
            }),
            wait_replicas: reader.read(&Setting {
                flag: "store-wait-replicas",
                form: WholeNumber { min: 0, max: 10 },
                default: "0",
                help: "Count charges that fewer than N replicas of Redis have after 5ms (WAIT); 0 is off",
            }),
            key_prefix: Self::read_key_prefix(reader),
            over_limit_cache: reader.read(&Setting {
                flag: "over-limit-cache",
                form: WholeNumber { min: 0, max: 10_000_000 },
                default: "100000",
                help: "Counters remembered for a second as over their limit; 0 is off",
            }),
            memory_max: MemorySize {
                counters: reader.read(&Setting {
                    flag: "memory-counters-max",
                    form: WholeNumber { min: 1000, max: 1_000_000_000 },
                    default: "1000000",
                    help: "Maximum number of counters in memory",
                }),
                bytes: reader.read(&Setting {
                    flag: "memory-size-max",
                    form: form::Size { min: 1 << 20, max: 1 << 40 },
                    default: "256MiB",
                    help: "Maximum size of the counters in memory",
                }),
            },
            patience: Patience {
                budget: reader.read(&Setting {
                    flag: "decision-budget",
                    form: DECISION_TIME,
                    default: "15ms",
                    help: "Maximum duration of a decision for a caller without a timeout; a Redis silent for as long has failed",
                }),
                announced_max: reader.read(&Setting {
                    flag: "decision-budget-max",
                    form: DECISION_TIME,
                    default: "1s",
                    help: "Maximum duration for a caller with a timeout, of which a decision may take three quarters",
                }),
            },
            debits_queued_max: reader.read(&Setting {
                flag: "debits-queued-max",
                form: WholeNumber { min: 0, max: 10_000_000 },
                default: "10000",
                help: "Maximum number of debits and refunds that wait for Redis; 0 is off",
            }),
            replicas: reader.read(&Setting {
                flag: "replicas",
                form: WholeNumber { min: 1, max: 10_000 },
                default: "1",
                help: "Replicas that share a limit counted locally",
            }),
            ready: reader.read(&Setting {
                flag: "ready-needs-store",
                form: OnOff { on: ReadyNeeds::Store, off: ReadyNeeds::Start, arity: Arity::Switch },
                default: "off",
                help: "Be ready only while the store answers",
            }),
        };
        if matches!(settings.url, StoreUrl::Memory) && settings.replicas > 1 {
            reader.warn_unused("replicas", "with memory:// each replica has the whole limit");
        }
        settings
    }

    fn read_url(reader: &mut SettingReader<'_>) -> StoreUrl {
        let problems_before = reader.problems.len();
        let Given { value: url, name } = reader.read_given(&Setting {
            flag: STORE,
            form: Custom { name: "URL", read: str::parse },
            default: "memory://",
            help: "Where counters are kept: memory://, redis://[user:password@]host:port[/db], redis+unix:///path[?db=N], redis+sentinel://host:port,host:port/name[/db] or redis+cluster://host:port,host:port; with TLS rediss://, rediss+sentinel:// or rediss+cluster://",
        });
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

    fn read_key_prefix(reader: &mut SettingReader<'_>) -> String {
        reader.read(&Setting {
            flag: "key-prefix",
            form: Custom { name: "TEXT", read: key_prefix },
            default: "",
            help: "Prefix of all keys in Redis: at most 64 visible ASCII characters, no braces",
        })
    }
}

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
