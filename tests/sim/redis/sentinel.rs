//! A Sentinel of one master: <https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/>.

use super::reply::Reply;

/// What a Sentinel knows.
pub struct Monitor {
    pub name: &'static str,
    /// Host and port of the master.
    pub master: String,
    /// The number of the failover that made it the master, or that is to replace it.
    pub epoch: u64,
    /// Whether this Sentinel leads a failover, and names the old master.
    pub is_in_failover: bool,
    /// Host and port of the other Sentinels.
    pub others: Vec<String>,
}

/// Where new masters are announced.
const SWITCHES: &str = "+switch-master";

impl Monitor {
    /// Names another master. Returns the announcement.
    pub fn switch(&mut self, master: &str, epoch: u64) -> Reply {
        let earlier = std::mem::replace(&mut self.master, master.to_owned());
        (self.epoch, self.is_in_failover) = (epoch, false);
        let words = [self.name, &earlier, master].join(" ").replace(':', " ");
        Reply::bulks(["message", SWITCHES, &words])
    }

    pub fn answer(&self, name: &str, arguments: &[Vec<u8>]) -> Reply {
        let word = |index: usize| {
            arguments
                .get(index)
                .map_or_else(String::new, |word| String::from_utf8_lossy(word).into())
        };
        match (name, &*word(0).to_uppercase()) {
            ("PING", _) => Reply::Status("PONG".to_owned()),
            ("CLIENT", _) => Reply::ok(),
            ("INFO", _) => {
                Reply::bulk("# Server\r\nredis_version:8.2.3\r\nredis_mode:sentinel\r\n")
            }
            ("SUBSCRIBE", _) => {
                let [kind, channel] = ["subscribe".to_owned(), word(0)].map(Reply::bulk);
                Reply::Array(vec![kind, channel, Reply::Integer(1)])
            }
            ("SENTINEL", "MASTER" | "SENTINELS") if word(1) != self.name => {
                Reply::error("ERR No such master with that name")
            }
            ("SENTINEL", "MASTER") => {
                let flags =
                    if self.is_in_failover { "master,failover_in_progress" } else { "master" };
                fields(&self.master, flags, self.epoch)
            }
            ("SENTINEL", "SENTINELS") => {
                let others = self.others.iter().map(|other| fields(other, "sentinel", self.epoch));
                Reply::Array(others.collect())
            }
            _ => Reply::Error(format!("ERR unknown command '{name}'")),
        }
    }
}

fn fields(address: &str, flags: &str, epoch: u64) -> Reply {
    let (host, port) = address.rsplit_once(':').expect("host and port");
    let epoch = epoch.to_string();
    Reply::bulks([
        "name",
        address,
        "ip",
        host,
        "port",
        port,
        "flags",
        flags,
        "config-epoch",
        &epoch,
    ])
}
