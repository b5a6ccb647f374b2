//! The master that Sentinels name. One task queries them and replaces the node: READONLY comes ten seconds too late,
//! and what a client writes to a demoted master until then is lost.
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>

mod one;

use std::{sync::Arc, time::Duration};

use futures_util::future::{join_all, select_all};
use tokio::{
    select,
    time::{self, Instant},
};
use tollkeeper_base::process::pause::Pause;

use self::one::{Named, NotNamed, PAUSE_MAX, PAUSE_MIN, Sentinel};
use super::{
    directory::Directory,
    failover::{self, Cost, MasterWatch, Replication},
    wrong_modes::WrongModes,
};
use crate::redis::{
    node::{RedisNode, pool},
    wire::endpoint::{Access, Address, Server},
};

/// How often one Sentinel and the master are queried while all is well.
const EVERY: Duration = Duration::from_secs(1);

/// What happens within this time is answered by one query.
const TOGETHER: Duration = Duration::from_millis(50);

/// How often it is queried for the other Sentinels, and how many are remembered.
const OTHERS_EVERY: Duration = Duration::from_secs(10);
const SENTINELS_MAX: usize = 32;

#[derive(Debug)]
pub struct Monitored {
    pub name: String,
    /// Some of the Sentinels, at least one.
    pub sentinels: Vec<Server>,
    pub access: Arc<Access>,
}

/// Queries the master when something shows that it has changed, and from time to time; never ends.
pub(crate) async fn follow(directory: &Directory, monitored: &Monitored) {
    let mut resolver = Resolver::new(directory, monitored);
    let mut cause = SearchCause::Announcement;
    loop {
        let began = Instant::now();
        resolver.answer(cause).await;
        cause = resolver.wait(began).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchCause {
    /// A Sentinel has announced a new master, or may have.
    Announcement,
    /// The master fails, or none is known.
    Failure,
    Timer,
}

struct Resolver<'store> {
    directory: &'store Directory,
    monitored: &'store Monitored,
    sentinels: Vec<Sentinel>,
    wrong_modes: WrongModes,
    turn: usize,
    others_at: Instant,
    present: Option<Present>,
    /// A master that was named and has not answered yet: connecting may take longer than a query.
    candidate: Option<MasterWatch>,
    /// Why the present master may not be the right one, without details.
    problem: Option<String>,
    pause: Pause,
}

struct Present {
    named: Named,
    node: Arc<RedisNode>,
    watch: MasterWatch,
}

impl<'store> Resolver<'store> {
    fn new(directory: &'store Directory, monitored: &'store Monitored) -> Self {
        Self {
            directory,
            monitored,
            sentinels: monitored.sentinels.iter().cloned().map(Sentinel::new).collect(),
            wrong_modes: WrongModes::new(directory.options.metrics.clone()),
            turn: 0,
            others_at: Instant::now(),
            present: None,
            candidate: None,
            problem: None,
            pause: Pause::new(PAUSE_MIN, PAUSE_MAX),
        }
    }

    /// Waits for the next cause. What has rung since `began` is answered together.
    async fn wait(&mut self, began: Instant) -> SearchCause {
        let earliest = began + self.pause.time();
        let is_well = self.problem.is_none();
        let announcements = self.sentinels.iter_mut().map(Sentinel::announcement);
        let announced = select_all(announcements.map(Box::pin));
        let fails = async {
            time::sleep_until(earliest).await;
            if is_well {
                self.directory.search_due.notified().await;
            }
        };
        select! {
            _ = announced => {
                time::sleep_until(began + TOGETHER).await;
                SearchCause::Announcement
            }
            () = fails => SearchCause::Failure,
            () = time::sleep(EVERY), if is_well => SearchCause::Timer,
        }
    }

    async fn answer(&mut self, cause: SearchCause) {
        let found = match cause {
            SearchCause::Timer if self.next_agrees().await => self.check_present().await,
            _ => self.find().await,
        };
        self.note_problem(found.err());
        let of_wrong_mode = self.sentinels.iter().filter(|sentinel| sentinel.is_other_server);
        self.wrong_modes.show(of_wrong_mode.count());
        match cause {
            SearchCause::Failure => self.pause.longer(),
            SearchCause::Announcement | SearchCause::Timer => self.pause.shortest(),
        }
        if self.others_at <= Instant::now() {
            self.learn_of_others().await;
        }
    }

    /// Whether the Sentinel whose turn it is names the present master.
    async fn next_agrees(&mut self) -> bool {
        let present = self.present.as_ref().map(|present| present.named.clone());
        self.turn += 1;
        let turn = self.turn % self.sentinels.len().max(1);
        let Some(sentinel) = self.sentinels.get_mut(turn) else { return false };
        sentinel.master(&self.monitored.name).await.ok() == present
    }

    /// Asks all Sentinels, and makes the master that they name the only node.
    async fn find(&mut self) -> Result<(), String> {
        let name = &self.monitored.name;
        let answers =
            join_all(self.sentinels.iter_mut().map(|sentinel| sentinel.master(name))).await;
        let asked = self.sentinels.iter().map(|sentinel| &sentinel.address).zip(answers);
        let epoch = self.present.as_ref().map_or(0, |present| present.named.epoch);
        let named = judge(asked, epoch, name)?;
        match &mut self.present {
            Some(present) if present.named.address == named.address => {
                present.named = named;
                self.check_present().await
            }
            _ => self.adopt(named).await,
        }
    }

    /// Whether the present master answers, and is one.
    async fn check_present(&mut self) -> Result<(), String> {
        let Some(present) = &mut self.present else { return Ok(()) };
        let replication = replication(&mut present.watch).await?;
        present.watch.note(replication.as_ref(), present.node.link.acknowledged());
        Ok(())
    }

    /// Makes a server the only node, if it is a master. Its Sentinels may know that before it does.
    async fn adopt(&mut self, named: Named) -> Result<(), String> {
        let server = Server::new(named.address.clone(), Arc::clone(&self.monitored.access));
        let known = self.candidate.take_if(|watch| watch.server.address == server.address);
        let watch = known.unwrap_or_else(|| MasterWatch::new(server.clone()));
        let replication = replication(self.candidate.insert(watch)).await?;
        let Some(mut watch) = self.candidate.take() else { return Ok(()) };
        watch.note(replication.as_ref(), 0);
        self.directory.replace_only(&server).await;
        let node = self.directory.node_at(&server, None);
        let (name, Named { address, epoch, .. }) = (&self.monitored.name, named.clone());
        match self.present.replace(Present { named, node, watch }) {
            Some(mut old) => {
                let cost = old.cost(replication.as_ref()).await;
                let from = &old.named.address;
                let text =
                    format!("failover of `{name}` from {from} to {address}, in epoch {epoch}");
                failover::report(&text, cost, &old.node.link.metrics);
            }
            None => tracing::info!("the master `{name}` is {address}, in epoch {epoch}"),
        }
        Ok(())
    }

    /// Notes the present problem, or its end, and logs each once: an error of a Sentinel that follows another is no
    /// new problem.
    fn note_problem(&mut self, problem: Option<String>) {
        let summary = problem.as_ref().and_then(|problem| problem.split(": ").next());
        if summary == self.problem.as_deref() {
            return;
        }
        self.problem = summary.map(str::to_owned);
        match problem {
            Some(problem) => {
                let kept = if self.present.is_some() { "; the present master is kept" } else { "" };
                tracing::warn!("{problem}{kept}");
                self.directory.set_problem(problem);
            }
            None => tracing::info!("the master `{}` is known and answers", self.monitored.name),
        }
    }

    /// Asks a Sentinel for the others, and remembers them beside the configured ones.
    async fn learn_of_others(&mut self) {
        self.others_at = Instant::now() + OTHERS_EVERY;
        let turn = self.turn % self.sentinels.len().max(1);
        let Some(asked) = self.sentinels.get_mut(turn) else { return };
        let Some(others) = asked.others(&self.monitored.name).await else { return };
        let asked = asked.address.clone();
        let configured = &self.monitored.sentinels;
        let stays = |address: &Address| {
            *address == asked
                || others.contains(address)
                || configured.iter().any(|server| server.address == *address)
        };
        self.sentinels.retain(|sentinel| stays(&sentinel.address));
        for address in others {
            let is_known = self.sentinels.iter().any(|sentinel| sentinel.address == address);
            if let Some(configured) = configured.first()
                && !is_known
                && self.sentinels.len() < SENTINELS_MAX
            {
                self.sentinels.push(Sentinel::new(configured.at(address)));
            }
        }
    }
}

impl Present {
    /// What the failover to `next` has cost; `None` if it is not known.
    async fn cost(&mut self, next: Option<&Replication>) -> Option<Cost> {
        let (acknowledged, next) = (self.node.link.acknowledged(), next?);
        self.watch.note_end(acknowledged).await;
        self.watch.cost(acknowledged, next)
    }
}

/// The replication of a server that answers and is a master; `None` if the user may not read it.
async fn replication(watch: &mut MasterWatch) -> Result<Option<Replication>, String> {
    let asked = watch.ask().await;
    let address = &watch.server.address;
    match asked {
        Ok(replication) if replication.is_master => Ok(Some(replication)),
        Ok(_) => Err(format!("{address}, which the Sentinels name, is not a master now")),
        // A user without the right to query it trusts the Sentinels.
        Err(error) if error.code() == Some("NOPERM") => Ok(None),
        Err(error) => {
            let error = pool::unavailable(&error);
            Err(format!("{address}, which the Sentinels name, does not answer: {error}"))
        }
    }
}

/// The master by these answers. The highest epoch wins: a Sentinel that was cut off or stopped may name an earlier
/// master. `epoch` is the present master's.
fn judge<'a>(
    answers: impl Iterator<Item = (&'a Address, Result<Named, NotNamed>)>,
    epoch: u64,
    name: &str,
) -> Result<Named, String> {
    let (mut named, mut unknown, mut failures) = (Vec::new(), 0, Vec::new());
    for (sentinel, answer) in answers {
        match answer {
            Ok(answer) => named.push(answer),
            Err(NotNamed::Unknown) => unknown += 1,
            Err(NotNamed::Failed(error)) => {
                failures.push(format!("{sentinel}: {}", pool::unavailable(&error)));
            }
        }
    }
    let (answered, asked) = (named.len(), named.len() + unknown + failures.len());
    // While the leader of a failover has not ended it, it names the old master in the new epoch.
    match named.into_iter().max_by_key(|named| (named.epoch, !named.is_being_replaced)) {
        // Most Sentinels may start again from zero, as after SENTINEL REMOVE and MONITOR.
        Some(named) if named.epoch >= epoch || 2 * answered > asked => Ok(named),
        Some(_) => Err("only Sentinels answer that have not heard of the last failover".to_owned()),
        None if unknown > 0 => Err(format!("the Sentinels know no master named `{name}`")),
        None => Err(format!("no Sentinel answers: {}", failures.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    fn named(port: u16, epoch: u64, is_being_replaced: bool) -> Result<Named, NotNamed> {
        let address = Address::Tcp { host: "redis".to_owned(), port };
        Ok(Named { address, epoch, is_being_replaced })
    }

    fn failed() -> Result<Named, NotNamed> {
        Err(NotNamed::Failed((ErrorKind::Io, "broken").into()))
    }

    fn judged(answers: Vec<Result<Named, NotNamed>>, epoch: u64) -> Result<u16, String> {
        let sentinel = Address::Tcp { host: "sentinel".to_owned(), port: 1 };
        let answers = answers.into_iter().map(|answer| (&sentinel, answer));
        judge(answers, epoch, "counters").map(|named| match named.address {
            Address::Tcp { port, .. } => port,
            Address::Unix(_) => 0,
        })
    }

    #[test]
    fn the_highest_epoch_wins_however_few_name_it() {
        assert_eq!(
            judged(vec![named(1, 3, false), named(2, 4, false), named(1, 3, false)], 3),
            Ok(2)
        );
    }

    #[test]
    fn the_leader_of_a_failover_that_still_names_the_old_master_loses() {
        assert_eq!(
            judged(vec![named(1, 4, true), named(2, 4, false), named(1, 4, true)], 3),
            Ok(2)
        );
    }

    #[test]
    fn a_stale_sentinel_alone_does_not_bring_back_an_earlier_master() {
        let stale = "only Sentinels answer that have not heard of the last failover";
        assert_eq!(judged(vec![named(1, 3, false), failed(), failed()], 4), Err(stale.to_owned()));
    }

    #[test]
    fn most_sentinels_may_begin_anew_in_a_lower_epoch() {
        assert_eq!(judged(vec![named(1, 0, false), named(1, 0, false), failed()], 4), Ok(1));
    }

    #[test]
    fn an_unknown_name_and_silent_sentinels_are_told_apart() {
        let unknown = || Err(NotNamed::Unknown);
        let message = "the Sentinels know no master named `counters`";
        assert_eq!(judged(vec![unknown(), failed()], 0), Err(message.to_owned()));
        let message = "no Sentinel answers: sentinel:1: broken - Io; sentinel:1: broken - Io";
        assert_eq!(judged(vec![failed(), failed()], 0), Err(message.to_owned()));
    }
}
