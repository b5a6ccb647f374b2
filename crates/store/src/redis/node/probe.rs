//! The probe of a server in an outage: a write by the same mechanism as decisions (script or command). On a cluster it
//! goes to a hash slot that the server has, since any other write would be redirected, whether writes work or not.

use parking_lot::Mutex;
use redis::Cmd;
use tollkeeper_engine::key::unused_key;

use crate::redis::wire::hash_slot::HashSlot;

/// How long the key of a probe lives, in milliseconds.
const KEY_LIVES_MS: u64 = 1000;

/// The hash tag of the key on a server that is not part of a cluster.
const TAG: &str = "probe";

#[derive(Debug)]
pub(crate) struct ProbeWrite {
    runs_scripts: bool,
    key_prefix: String,
    /// The hash slot that it writes to, and a tag of that slot.
    target: Mutex<Option<(HashSlot, String)>>,
}

impl ProbeWrite {
    /// A probe whose key begins with `key_prefix`, in any hash slot.
    pub(crate) fn new(runs_scripts: bool, key_prefix: &str) -> Self {
        Self { runs_scripts, key_prefix: key_prefix.to_owned(), target: Mutex::default() }
    }

    /// The hash slot that it writes to, if one was chosen.
    pub(crate) fn slot(&self) -> Option<HashSlot> {
        self.target.lock().as_ref().map(|(slot, _)| *slot)
    }

    pub(crate) fn aim(&self, slot: HashSlot) {
        *self.target.lock() = slot.tag(TAG).map(|tag| (slot, tag));
    }

    /// Writes a key that no counter has.
    pub(crate) fn command(&self) -> Cmd {
        const SCRIPT: &str =
            "redis.call('SET', KEYS[1], '1', 'PX', ARGV[1]) return redis.status_reply('OK')";
        let tag = self.target.lock().as_ref().map_or(TAG.to_owned(), |(_, tag)| tag.clone());
        let key = self.key_prefix.clone() + &unused_key(&tag);
        if self.runs_scripts {
            redis::cmd("EVAL").arg(SCRIPT).arg(1).arg(key).arg(KEY_LIVES_MS).take()
        } else {
            redis::cmd("SET").arg(key).arg("1").arg("PX").arg(KEY_LIVES_MS).take()
        }
    }
}
