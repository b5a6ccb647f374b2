//! The commands on keys, which scripts and clients run alike.

use super::{
    database::{Database, SortedSet, Value},
    reply::Reply,
};

/// A command on keys.
pub struct Command {
    pub name: &'static str,
    /// The least and the largest number of its arguments.
    arguments: (usize, usize),
    pub kind: Kind,
    run: fn(&mut Database, &[Vec<u8>]) -> Answer,
}

/// What a server that refuses writes does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    /// It frees memory, or takes none.
    Write,
    /// It may take memory: a server that is full refuses it.
    Grow,
}

/// An error is its code and its words.
type Answer = Result<Reply, String>;

use Kind::{Grow, Read, Write};

const ANY: usize = usize::MAX;

const COMMANDS: [Command; 33] = [
    command("DEL", (1, ANY), Write, |db, keys| {
        Ok(Reply::count(keys.iter().filter(|key| db.remove(key)).count()))
    }),
    command("EXISTS", (1, ANY), Read, |db, keys| {
        Ok(Reply::count(keys.iter().filter(|key| db.value(key).is_some()).count()))
    }),
    command("EXPIREAT", (2, 2), Write, |db, args| expire(db, &args[0], 1000 * number(&args[1])?)),
    command(
        "GET",
        (1, 1),
        Read,
        |db, args| Ok(text(db, &args[0])?.map_or(Reply::Nil, Reply::Bulk)),
    ),
    command("HDEL", (2, ANY), Write, |db, args| {
        let Some(_) = hash(db, &args[0])? else { return Ok(Reply::Integer(0)) };
        Ok(Reply::count(with_hash(db, &args[0], |hash| {
            args[1..].iter().filter(|field| hash.remove(*field).is_some()).count()
        })))
    }),
    command("HGET", (2, 2), Read, |db, args| {
        let value = hash(db, &args[0])?.and_then(|hash| hash.get(&args[1]).cloned());
        Ok(value.map_or(Reply::Nil, Reply::Bulk))
    }),
    command("HGETALL", (1, 1), Read, |db, args| {
        let all = hash(db, &args[0])?.into_iter().flatten();
        Ok(Reply::bulks(all.flat_map(|(field, value)| [field.clone(), value.clone()])))
    }),
    command("HLEN", (1, 1), Read, |db, args| {
        Ok(Reply::count(hash(db, &args[0])?.map_or(0, |hash| hash.len())))
    }),
    command("HSET", (3, ANY), Grow, |db, args| {
        hash(db, &args[0])?;
        Ok(Reply::count(with_hash(db, &args[0], |hash| {
            let pairs = args[1..].chunks_exact(2);
            pairs.filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none()).count()
        })))
    }),
    command("INCR", (1, 1), Grow, |db, args| add(db, &args[0], 1)),
    command("INCRBY", (2, 2), Grow, |db, args| add(db, &args[0], number(&args[1])?)),
    command("LINDEX", (2, 2), Read, |db, args| {
        let (index, list) = (number(&args[1])?, list(db, &args[0])?);
        let place = place(index, list.len());
        Ok(place.and_then(|place| list.get(place)).map_or(Reply::Nil, |item| Reply::bulk(&**item)))
    }),
    command("LLEN", (1, 1), Read, |db, args| Ok(Reply::count(list(db, &args[0])?.len()))),
    command("LRANGE", (3, 3), Read, |db, args| {
        let all = list(db, &args[0])?;
        let range = range(number(&args[1])?, number(&args[2])?, all.len());
        Ok(Reply::bulks(all[range].iter().map(|item| &**item)))
    }),
    command("LSET", (3, 3), Grow, |db, args| {
        let (index, length) = (number(&args[1])?, list(db, &args[0])?.len());
        if length == 0 {
            return Err("ERR no such key".to_owned());
        }
        let place = place(index, length).ok_or("ERR index out of range")?;
        with_list(db, &args[0], |list| list[place].clone_from(&args[2]));
        Ok(Reply::ok())
    }),
    command("LTRIM", (3, 3), Write, |db, args| {
        let length = list(db, &args[0])?.len();
        let range = range(number(&args[1])?, number(&args[2])?, length);
        if length > 0 {
            with_list(db, &args[0], |list| *list = list.drain(range).collect());
        }
        Ok(Reply::ok())
    }),
    command("MGET", (1, ANY), Read, |db, keys| {
        let value = |key: &Vec<u8>| text(db, key).ok().flatten().map_or(Reply::Nil, Reply::Bulk);
        Ok(Reply::Array(keys.iter().map(value).collect()))
    }),
    command("PEXPIRE", (2, 2), Write, |db, args| {
        let now = db.now_ms() as i64;
        expire(db, &args[0], now + number(&args[1])?)
    }),
    command("PEXPIREAT", (2, 2), Write, |db, args| expire(db, &args[0], number(&args[1])?)),
    command("PEXPIRETIME", (1, 1), Read, |db, args| {
        Ok(Reply::Integer(match db.ends(&args[0]) {
            None => -2,
            Some(None) => -1,
            Some(Some(ends)) => ends as i64,
        }))
    }),
    command("RPUSH", (2, ANY), Grow, |db, args| {
        list(db, &args[0])?;
        Ok(Reply::count(with_list(db, &args[0], |list| {
            list.extend(args[1..].iter().cloned());
            list.len()
        })))
    }),
    command("SET", (2, 6), Grow, set),
    command("TIME", (0, 0), Read, |db, _| {
        let (seconds, micros) = (db.now_us / 1_000_000, db.now_us % 1_000_000);
        Ok(Reply::bulks([seconds, micros].map(|number| number.to_string())))
    }),
    command("TYPE", (1, 1), Read, |db, args| {
        let name = match db.value(&args[0]) {
            None => "none",
            Some(Value::Text(_)) => "string",
            Some(Value::List(_)) => "list",
            Some(Value::Hash(_)) => "hash",
            Some(Value::Sorted(_)) => "zset",
        };
        Ok(Reply::Status(name.to_owned()))
    }),
    command("ZADD", (3, ANY), Grow, |db, args| {
        let mut added = Vec::new();
        for pair in args[1..].chunks(2) {
            let [score, member] = pair else { return Err("ERR syntax error".to_owned()) };
            added.push((score_of(score)?, member.clone()));
        }
        sorted(db, &args[0])?;
        Ok(Reply::count(with_sorted(db, &args[0], |set| {
            added.into_iter().filter(|(score, member)| set.add(*score, member.clone())).count()
        })))
    }),
    command("ZCARD", (1, 1), Read, |db, args| Ok(Reply::count(sorted(db, &args[0])?.len()))),
    command("ZCOUNT", (3, 3), Read, |db, args| {
        let (from, to) = (bound(&args[1])?, bound(&args[2])?);
        let counted =
            sorted(db, &args[0])?.iter().filter(|(score, _)| lies_within(*score, from, to));
        Ok(Reply::count(counted.count()))
    }),
    command("ZRANGE", (3, 9), Read, zrange),
    command("ZREM", (2, ANY), Write, |db, args| {
        if sorted(db, &args[0])?.is_empty() {
            return Ok(Reply::Integer(0));
        }
        Ok(Reply::count(with_sorted(db, &args[0], |set| {
            args[1..].iter().filter(|member| set.remove(member)).count()
        })))
    }),
    command("ZSCORE", (2, 2), Read, |db, args| {
        let member = sorted(db, &args[0])?.iter().find(|(_, member)| *member == args[1]);
        Ok(member.map_or(Reply::Nil, |(score, _)| Reply::bulk(spell_score(*score))))
    }),
    command("PTTL", (1, 1), Read, |db, args| {
        let now = db.now_ms();
        Ok(Reply::Integer(match db.ends(&args[0]) {
            None => -2,
            Some(None) => -1,
            Some(Some(ends)) => ends.saturating_sub(now) as i64,
        }))
    }),
    command("FLUSHALL", (0, 1), Write, |db, _| {
        db.clear();
        Ok(Reply::ok())
    }),
    command("DBSIZE", (0, 0), Read, |db, _| Ok(Reply::count(db.keys().len()))),
];

const fn command(
    name: &'static str,
    arguments: (usize, usize),
    kind: Kind,
    run: fn(&mut Database, &[Vec<u8>]) -> Answer,
) -> Command {
    Command { name, arguments, kind, run }
}

/// The command with this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| name.eq_ignore_ascii_case(command.name.as_bytes()))
}

impl Command {
    pub fn run(&self, db: &mut Database, arguments: &[Vec<u8>]) -> Reply {
        let (least, most) = self.arguments;
        if arguments.len() < least || arguments.len() > most {
            let name = self.name.to_lowercase();
            return Reply::Error(format!("ERR wrong number of arguments for '{name}' command"));
        }
        (self.run)(db, arguments).unwrap_or_else(Reply::Error)
    }

    /// The keys among its arguments.
    pub fn keys<'a>(&self, arguments: &'a [Vec<u8>]) -> &'a [Vec<u8>] {
        match self.name {
            "DEL" | "EXISTS" | "MGET" => arguments,
            "TIME" | "FLUSHALL" | "DBSIZE" => &[],
            _ => arguments.get(..1).unwrap_or_default(),
        }
    }
}

fn wrong_type() -> String {
    "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
}

fn no_integer() -> String {
    "ERR value is not an integer or out of range".to_owned()
}

/// Only the form in which the server itself writes integers.
fn number(text: &[u8]) -> Result<i64, String> {
    let text = std::str::from_utf8(text).map_err(|_| no_integer())?;
    let number: i64 = text.parse().map_err(|_| no_integer())?;
    if number.to_string() == text { Ok(number) } else { Err(no_integer()) }
}

fn text(db: &mut Database, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
    match db.value(key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong_type()),
    }
}

fn add(db: &mut Database, key: &[u8], change: i64) -> Answer {
    let before = text(db, key)?.map_or(Ok(0), |text| number(&text))?;
    let after = before.checked_add(change).ok_or("ERR increment or decrement would overflow")?;
    let ends = db.ends(key).flatten();
    db.set(key, Value::Text(after.to_string().into_bytes()), ends);
    Ok(Reply::Integer(after))
}

fn expire(db: &mut Database, key: &[u8], ends: i64) -> Answer {
    Ok(Reply::Integer(i64::from(db.expire(key, u64::try_from(ends).unwrap_or_default()))))
}

fn set(db: &mut Database, args: &[Vec<u8>]) -> Answer {
    let (mut ends, mut condition) = (None, None);
    let mut options = args[2..].iter();
    while let Some(option) = options.next() {
        let option = String::from_utf8_lossy(option).to_uppercase();
        match &*option {
            "NX" | "XX" => condition = Some(option == "XX"),
            "EX" | "PX" | "PXAT" => {
                let time = number(options.next().ok_or("ERR syntax error")?)?;
                if time <= 0 {
                    return Err("ERR invalid expire time in 'set' command".to_owned());
                }
                let now = db.now_ms() as i64;
                ends = Some(match &*option {
                    "EX" => now + 1000 * time,
                    "PX" => now + time,
                    _ => time,
                } as u64);
            }
            _ => return Err("ERR syntax error".to_owned()),
        }
    }
    let exists = db.value(&args[0]).is_some();
    if condition.is_some_and(|must_exist| must_exist != exists) {
        return Ok(Reply::Nil);
    }
    db.set(&args[0], Value::Text(args[1].clone()), ends);
    if let Some(ends) = ends {
        db.expire(&args[0], ends);
    }
    Ok(Reply::ok())
}

/// The fields of a hash.
type Hash = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;

fn hash<'a>(db: &'a mut Database, key: &[u8]) -> Result<Option<&'a Hash>, String> {
    match db.value(key) {
        None => Ok(None),
        Some(Value::Hash(hash)) => Ok(Some(hash)),
        Some(_) => Err(wrong_type()),
    }
}

fn with_hash<T>(db: &mut Database, key: &[u8], change: impl FnOnce(&mut Hash) -> T) -> T {
    db.change(
        key,
        || Value::Hash(Hash::new()),
        |value| match value {
            Value::Hash(hash) => change(hash),
            _ => unreachable!("its type was checked"),
        },
    )
}

/// The items of a list, or none if the key does not exist.
fn list<'a>(db: &'a mut Database, key: &[u8]) -> Result<&'a [Vec<u8>], String> {
    match db.value(key) {
        None => Ok(&[]),
        Some(Value::List(list)) => Ok(list),
        Some(_) => Err(wrong_type()),
    }
}

fn with_list<T>(db: &mut Database, key: &[u8], change: impl FnOnce(&mut Vec<Vec<u8>>) -> T) -> T {
    db.change(
        key,
        || Value::List(Vec::new()),
        |value| match value {
            Value::List(list) => change(list),
            _ => unreachable!("its type was checked"),
        },
    )
}

/// The place that an index means, which counts from the end if it is negative.
fn place(index: i64, length: usize) -> Option<usize> {
    let index = if index < 0 { index + length as i64 } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

/// The places that two indices enclose.
fn range(from: i64, to: i64, length: usize) -> std::ops::Range<usize> {
    let length = length as i64;
    let absolute = |index: i64| if index < 0 { index + length } else { index };
    let (from, to) = (absolute(from).max(0), absolute(to).min(length - 1));
    if from > to { 0..0 } else { from as usize..to as usize + 1 }
}

/// The members of a sorted set, or none if the key does not exist.
fn sorted<'a>(db: &'a mut Database, key: &[u8]) -> Result<&'a [(f64, Vec<u8>)], String> {
    match db.value(key) {
        None => Ok(&[]),
        Some(Value::Sorted(set)) => Ok(set.members()),
        Some(_) => Err(wrong_type()),
    }
}

fn with_sorted<T>(db: &mut Database, key: &[u8], change: impl FnOnce(&mut SortedSet) -> T) -> T {
    db.change(
        key,
        || Value::Sorted(SortedSet::default()),
        |value| match value {
            Value::Sorted(set) => change(set),
            _ => unreachable!("its type was checked"),
        },
    )
}

fn score_of(text: &[u8]) -> Result<f64, String> {
    let text = std::str::from_utf8(text).ok();
    let score = match text {
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some("+inf" | "inf") => Some(f64::INFINITY),
        text => text.and_then(|text| text.parse().ok()),
    };
    // Redis writes 0 for -0.
    score
        .filter(|score: &f64| !score.is_nan())
        .map(|score| score + 0.0)
        .ok_or_else(|| "ERR value is not a valid float".to_owned())
}

fn spell_score(score: f64) -> String {
    assert!(score.fract() == 0.0 && score.abs() < 1e17, "the spelling of {score} is not simulated");
    format!("{score:.0}")
}

/// A score, and whether it is excluded.
type Bound = (f64, bool);

fn bound(text: &[u8]) -> Result<Bound, String> {
    let no_float = |_| "ERR min or max is not a float".to_owned();
    match text.strip_prefix(b"(") {
        Some(text) => Ok((score_of(text).map_err(no_float)?, true)),
        None => Ok((score_of(text).map_err(no_float)?, false)),
    }
}

fn lies_within(score: f64, from: Bound, to: Bound) -> bool {
    let after = if from.1 { score > from.0 } else { score >= from.0 };
    let before = if to.1 { score < to.0 } else { score <= to.0 };
    after && before
}

fn zrange(db: &mut Database, args: &[Vec<u8>]) -> Answer {
    let (mut by_score, mut reversed, mut with_scores, mut limit) = (false, false, false, None);
    let mut options = args[3..].iter();
    while let Some(option) = options.next() {
        match &*String::from_utf8_lossy(option).to_uppercase() {
            "BYSCORE" => by_score = true,
            "REV" => reversed = true,
            "WITHSCORES" => with_scores = true,
            "LIMIT" => {
                let mut next = || number(options.next().ok_or("ERR syntax error")?);
                limit = Some((next()?, next()?));
            }
            _ => return Err("ERR syntax error".to_owned()),
        }
    }
    // The arguments are read before the key.
    let (from, to) = (&args[1], &args[2]);
    let scores = match (by_score, reversed) {
        (true, true) => Some((bound(to)?, bound(from)?)),
        (true, false) => Some((bound(from)?, bound(to)?)),
        (false, _) => None,
    };
    let indices = if by_score { (0, -1) } else { (number(from)?, number(to)?) };
    let mut members = sorted(db, &args[0])?.to_vec();
    if reversed {
        members.reverse();
    }
    members.retain(|(score, _)| scores.is_none_or(|(from, to)| lies_within(*score, from, to)));
    members = members[range(indices.0, indices.1, members.len())].to_vec();
    if let Some((skipped, count)) = limit {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        members = members.into_iter().skip(skipped as usize).take(count).collect();
    }
    Ok(Reply::bulks(members.into_iter().flat_map(|(score, member)| {
        [Some(member), with_scores.then(|| spell_score(score).into_bytes())].into_iter().flatten()
    })))
}
