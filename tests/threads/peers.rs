//! What the files of the store use of others, as little as will do: work is a number, and a server answers with it.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreError {
    NoConnection,
}

impl StoreError {
    pub fn is_of_the_call(&self) -> bool {
        false
    }
}

/// As the store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    No,
    Yes,
}

impl Clear {
    pub fn ends_holds(self) -> bool {
        self == Self::Yes
    }
}

pub mod lateness {
    pub fn starved(_: std::time::Duration, _: &super::metrics::StoreMetrics) {}
}

pub mod metrics {
    #[derive(Debug, Clone, Default)]
    pub struct StoreMetrics {
        pub commits_queued: Number,
        pub unreplicated: Number,
    }

    #[derive(Debug, Clone, Default)]
    pub struct Number;

    impl Number {
        pub fn add<T>(&self, _: T, _: &[()]) {}
    }

    impl StoreMetrics {
        pub fn shed(&self, _: usize) {}

        pub fn debit_dropped(&self, reason: &str) {
            panic!("a debit was dropped: {reason}");
        }
    }
}

pub mod work {
    use std::{iter, time::Duration};

    use tollkeeper_engine::time::Timestamp;

    /// A debit.
    #[derive(Debug, Clone, Default)]
    pub struct NodeWork(pub usize);

    pub struct Counter;

    impl Counter {
        pub fn id_bytes(&self) -> usize {
            1
        }
    }

    impl NodeWork {
        pub fn outlives_answer(&self) -> bool {
            true
        }

        pub fn outliving(&self) -> impl Iterator<Item = Self> {
            iter::once(self.clone())
        }

        pub fn counts_once(&self) -> bool {
            false
        }

        pub fn name_of_once(&self) -> Option<(bool, String)> {
            None
        }

        pub fn releases(&self, _: Timestamp) -> impl Iterator<Item = Self> {
            iter::empty()
        }

        pub fn refunds(&self, _: Timestamp, _: Option<u64>) -> impl Iterator<Item = Self> {
            iter::empty()
        }

        pub fn leased_at(&self) -> Option<Timestamp> {
            None
        }

        pub fn remaining(&self, _: Timestamp) -> Duration {
            Duration::from_secs(86_400)
        }

        pub fn counters(&self) -> impl Iterator<Item = Counter> {
            iter::once(Counter)
        }
    }
}

pub mod decided {
    use super::StoreError;
    use crate::owed::Owed;

    /// The answer to a call is its number.
    pub type CallAnswer = Result<usize, NotDecided>;

    #[derive(Debug)]
    pub enum NotDecided {
        Failed(StoreError),
        WindowEnded,
        Elsewhere(Option<()>, Owed),
    }
}

pub mod batch {
    use super::work::NodeWork;

    /// So that a batch has room for two.
    pub const WEIGHT_MAX: usize = 2;

    #[derive(Debug, Clone, Copy)]
    pub struct Runs;

    impl Runs {
        pub fn keys(self) -> Keys {
            Keys
        }
    }

    #[derive(Debug, Clone, Copy)]
    pub struct ScriptKind;

    impl ScriptKind {
        /// Every second call is heavier than a batch.
        pub fn weight(self, work: &NodeWork, _: Runs) -> usize {
            if work.0 % 2 == 1 { 3 } else { 1 }
        }
    }

    pub struct Keys;

    pub struct Batch;

    impl Batch {
        pub fn new(_: Runs, _: Keys, _: &str) -> Self {
            Self
        }
    }
}

pub mod pool {
    use std::marker::PhantomData;

    pub struct Connected<'pool>(pub PhantomData<&'pool ()>);

    impl Connected<'_> {
        pub async fn query<T>(&mut self, _: &redis::Cmd) -> Result<T, ()> {
            Err(())
        }
    }
}

pub mod link {
    use std::{marker::PhantomData, time::Duration};

    use super::{StoreError, metrics::StoreMetrics, pool::Connected};
    use crate::sync::task;

    #[derive(Debug, Default)]
    pub struct Link {
        pub state: State,
        pub metrics: StoreMetrics,
    }

    #[derive(Debug, Default)]
    pub struct State {
        pub pool: Pool,
        pub breaker: Breaker,
    }

    #[derive(Debug, Default)]
    pub struct Pool;

    impl Pool {
        pub fn timeout(&self) -> Duration {
            Duration::from_secs(1)
        }
    }

    #[derive(Debug, Default)]
    pub struct Breaker;

    impl Breaker {
        pub fn refusal(&self) -> Option<StoreError> {
            None
        }
    }

    impl Link {
        pub async fn connection(&self, _: Duration) -> Result<Connected<'_>, StoreError> {
            task::yield_now().await;
            Ok(Connected(PhantomData))
        }
    }
}

pub mod waiting {
    #[derive(Debug)]
    pub struct CallInQueue {
        pub waits_for: WaitsFor,
    }

    #[derive(Debug)]
    pub enum WaitsFor {
        Batch,
    }
}

pub mod exchange {
    use std::time::Duration;

    use super::{batch::Batch, decided::CallAnswer, pool::Connected};
    use crate::{
        owed::Fate,
        queue::{QueuedCall, Recipient, SentAs, SharedQueue},
        sync::task,
    };

    pub struct Exchanged {
        pub answers: Vec<(Recipient, CallAnswer)>,
        pub again: Vec<QueuedCall>,
        pub charges: u64,
    }

    impl SharedQueue {
        pub fn owed_within(&self, _: SentAs) -> Duration {
            self.link.state.pool.timeout()
        }

        /// Sends again, once, each call with an odd number, and answers the others.
        pub async fn exchange(
            &self,
            _: &mut Connected<'_>,
            _: Batch,
            calls: Vec<QueuedCall>,
            _: Duration,
        ) -> Option<Exchanged> {
            task::yield_now().await;
            let (mut answers, mut again) = (Vec::new(), Vec::new());
            for mut call in calls {
                let number = call.owed.work.0;
                if number % 2 == 1 && call.stale == 0 {
                    call.stale = 1;
                    again.push(call);
                } else {
                    call.owed.is(Fate::Done);
                    answers.push((call.caller, Ok(number)));
                }
            }
            Some(Exchanged { answers, again, charges: 0 })
        }
    }
}
