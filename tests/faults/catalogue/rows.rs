//! The table of faults.

use super::{Change, Counters, Effect, Reach, Row, Setup, Step, World};
use crate::support::{fault_proxy::*, prelude::*};

/// A row whose fault is in the proxy.
const fn of_proxy(fault: &'static str, stage: Change, effect: Effect) -> Row {
    of_redis(fault, stage, |world| world.proxy.heal(), effect).on(Setup::Proxy)
}

/// A row whose fault is what the proxy does with requests.
const fn of_requests(fault: &'static str, requests: Flow) -> Row {
    let row = of_proxy(fault, nothing, Effect::Outage);
    Row { stage: Step::Flows(requests, Flow::Forward), ..row }
}

/// A row whose fault is what the proxy does with replies.
const fn of_replies(fault: &'static str, replies: Flow, effect: Effect) -> Row {
    Row { stage: Step::Flows(Flow::Forward, replies), ..of_proxy(fault, nothing, effect) }
}

/// Of 100 pieces, `percent` wait this number of milliseconds, and up to `jitter` more.
const fn delay(ms: u64, jitter: u64, percent: u64) -> Flow {
    Flow::Delay { ms, jitter, percent }
}

/// A row whose fault is in Redis.
pub(super) const fn of_redis(
    fault: &'static str,
    stage: Change,
    heal: Change,
    effect: Effect,
) -> Row {
    row(fault, Step::Does(stage), Step::Does(heal), effect)
}

/// A row whose fault begins and ends by commands to Redis.
const fn of_orders(
    fault: &'static str,
    stage: &'static str,
    heal: &'static str,
    effect: Effect,
) -> Row {
    row(fault, Step::Orders(stage), Step::Orders(heal), effect)
}

/// A row in which Redis refuses writes with this error.
pub(super) const fn of_refusal(fault: &'static str, error: &'static str) -> Row {
    let heal = Step::Does(|world| world.first().accept_writes());
    row(fault, Step::Refuses(error), heal, Effect::WritesRefused)
}

const fn row(fault: &'static str, stage: Step, heal: Step, effect: Effect) -> Row {
    let (setup, reach, counters) = (Setup::Direct, Reach::All, Counters::Kept);
    Row { fault, setup, stage, heal, effect, reach, counters }
}

/// For faults that end by themselves.
fn nothing(_: &mut World) {}

fn calm(world: &mut World) {
    world.calm();
}

pub(super) const ROWS: &[Row] = &[
    of_proxy(
        "F01 Redis is absent at start",
        |world| world.proxy.set(Faults { connect: Connect::Refuse, ..Faults::default() }),
        Effect::Outage,
    )
    .on(Setup::ProxyFromStart),
    of_redis(
        "F02 Redis is killed",
        |world| world.redis.stop(),
        |world| world.redis.start_again(),
        Effect::Outage,
    )
    .counters(Counters::Lost(1)),
    of_redis(
        "F02 Redis is killed three times",
        |world| {
            for _ in 0..2 {
                world.redis.stop();
                world.redis.start_again();
            }
            world.redis.stop();
        },
        |world| world.redis.start_again(),
        Effect::Outage,
    )
    .counters(Counters::Lost(3)),
    of_proxy(
        "F03 connections are reset, new ones refused",
        |world| {
            world.proxy.set(Faults { connect: Connect::Refuse, ..Faults::default() });
            world.proxy.cut(Cut::Rst);
        },
        Effect::Outage,
    ),
    of_proxy("F03 connections are reset once", |world| world.proxy.cut(Cut::Rst), Effect::Mixed),
    of_proxy("F03 connections are closed once", |world| world.proxy.cut(Cut::Fin), Effect::Mixed),
    of_proxy(
        "F32 connections are reset once, and opening one takes 400 ms",
        |world| {
            world.proxy.delay_connects(Duration::from_millis(400));
            world.proxy.cut(Cut::Rst);
        },
        Effect::Mixed,
    ),
    of_requests("F03 requests are cut at byte 20 by RST", Flow::CutAt(20, Cut::Rst)),
    of_replies("F03 replies are cut at byte 5 by FIN", Flow::CutAt(5, Cut::Fin), Effect::Outage),
    of_proxy(
        "F04 black hole, handshakes are dropped",
        |world| {
            let flow = Flow::Hold;
            let connect = Connect::Unreachable;
            world.proxy.set(Faults { connect, requests: flow, replies: flow, spares_new: false });
        },
        Effect::Outage,
    ),
    of_proxy(
        "F04 black hole, handshakes are completed",
        |world| {
            let flow = Flow::Hold;
            let connect = Connect::Mute;
            world.proxy.set(Faults { connect, requests: flow, replies: flow, spares_new: false });
        },
        Effect::Outage,
    ),
    of_proxy(
        "F04 open connections are half-open",
        |world| {
            let (requests, replies) = (Flow::Drop, Flow::Drop);
            world.proxy.set(Faults { requests, replies, spares_new: true, ..Faults::default() });
        },
        Effect::Mixed,
    ),
    of_requests("F04 requests wait, replies pass", Flow::Hold),
    of_replies("F33 replies are lost", Flow::Drop, Effect::Outage),
    of_redis(
        "F05 Redis is stopped by SIGSTOP",
        |world| world.redis.signal("STOP"),
        |world| world.redis.signal("CONT"),
        Effect::Outage,
    ),
    of_redis(
        "F05 Redis is stopped for 20 ms again and again",
        |world| {
            for _ in 0..5 {
                world.redis.signal("STOP");
                std::thread::sleep(Duration::from_millis(20));
                world.redis.signal("CONT");
                std::thread::sleep(Duration::from_millis(20));
            }
        },
        nothing,
        Effect::Mixed,
    ),
    of_orders("F05 CLIENT PAUSE", "CLIENT PAUSE 60000 ALL", "CLIENT UNPAUSE", Effect::Outage),
    of_redis(
        "F31 DEBUG SLEEP 0.3 again and again",
        |world| world.repeat(&["DEBUG", "SLEEP", "0.3"], Duration::from_millis(20)),
        calm,
        Effect::Mixed,
    ),
    of_replies("F05 replies take 500 ms", delay(500, 0, 100), Effect::Outage),
    of_replies("F05 replies take 1 to 10 ms", delay(1, 9, 100), Effect::Mixed),
    of_replies("F05 of 10 replies, 3 take 100 to 400 ms", delay(100, 300, 30), Effect::Mixed),
    of_replies(
        "F05 replies drip, a byte each 2 ms",
        Flow::Drip { bytes: 1, pause: 2 },
        Effect::Mixed,
    ),
    of_redis(
        "F06 a script of another client never ends",
        |world| {
            world.order(&["CONFIG", "SET", "busy-reply-threshold", "50"]);
            world.in_background(&["EVAL", "while true do end", "0"]);
        },
        |world| world.order(&["SCRIPT", "KILL"]),
        Effect::Mixed,
    ),
    of_refusal("F07 MISCONF: Redis cannot save", "MISCONF"),
    of_orders(
        "F07 MASTERDOWN: a replica without its master",
        "CONFIG SET replica-serve-stale-data no; REPLICAOF 127.0.0.1 1",
        "REPLICAOF NO ONE",
        Effect::Outage,
    ),
    of_redis(
        "F07 LOADING: Redis reads its dump",
        |world| {
            const FILL: &str =
                "for i = 1, 3000 do redis.call('SET', 'other' .. i, 'x', 'EX', 1000) end";
            world.order(&["EVAL", FILL, "0"]);
            world.order(&["CONFIG", "SET", "key-load-delay", "150"]);
            world.order(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
            world.in_background(&["DEBUG", "RELOAD"]);
        },
        nothing,
        Effect::Mixed,
    ),
    of_refusal("F08 OOM", "OOM"),
    of_orders(
        "F10 maxclients is reached",
        "CONFIG SET maxclients 1; CLIENT KILL TYPE normal",
        "CONFIG SET maxclients 1000",
        Effect::Outage,
    ),
    of_orders(
        "F11 the password changes",
        "CONFIG SET requirepass other; CLIENT KILL TYPE normal",
        "CONFIG SET requirepass ''",
        Effect::Outage,
    ),
    of_orders(
        "F11 the user may no longer run scripts",
        "ACL SETUSER default -evalsha -eval",
        "ACL SETUSER default +@all",
        Effect::Outage,
    ),
    of_redis(
        "F12 SCRIPT FLUSH every 10 ms",
        |world| world.repeat(&["SCRIPT", "FLUSH"], Duration::from_millis(10)),
        calm,
        Effect::Served,
    ),
    of_redis("F12 FLUSHALL", |world| world.order(&["FLUSHALL"]), nothing, Effect::Served)
        .counters(Counters::Lost(1)),
    of_replies("F13 the first bit of each reply is flipped", Flow::Flip(0), Effect::Outage),
    of_requests("F13 the first bit of each request is flipped", Flow::Flip(0)),
    of_refusal("F21 READONLY: Redis is a replica now", "READONLY"),
    of_refusal("F22 NOREPLICAS", "NOREPLICAS"),
    of_redis(
        "F62 the service gets no processor time",
        |world| world.signal_service("STOP"),
        |world| world.signal_service("CONT"),
        Effect::Mixed,
    ),
    of_redis(
        "F62 the service gets no processor time, memory",
        |world| world.signal_service("STOP"),
        |world| world.signal_service("CONT"),
        Effect::Served,
    )
    .on(Setup::Memory),
    of_redis(
        "F62 the service gets 10 ms of processor time in each 110 ms",
        |world| {
            for _ in 0..7 {
                world.signal_service("STOP");
                std::thread::sleep(Duration::from_millis(100));
                world.signal_service("CONT");
                std::thread::sleep(Duration::from_millis(10));
            }
        },
        nothing,
        Effect::Mixed,
    ),
    of_redis("F68 the rule file is cut off", cut_rules, nothing, Effect::Served),
    of_redis("F68 the rule file is cut off, memory", cut_rules, nothing, Effect::Served)
        .on(Setup::Memory),
];

fn cut_rules(world: &mut World) {
    std::fs::write(&world.service().rules, "domain: faults\ndescriptors: [").unwrap();
}
