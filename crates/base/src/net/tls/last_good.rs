//! A value made of files, which is made again when they change. While the new files are bad, the last good
//! value stays.

use std::{
    fmt::{self, Display},
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;

/// A value of type `T`, made of contents of type `C`.
#[derive(Debug)]
pub struct LastGood<C, T> {
    /// What the value is, for log lines.
    name: &'static str,
    value: ArcSwapOption<T>,
    known: Mutex<Known<C>>,
}

#[derive(Debug)]
struct Known<C> {
    /// What the value was made of.
    contents: Option<C>,
    /// Why the present contents are not in use, as it was logged.
    problem: Option<String>,
    /// What [`LastGood::renew_settled`] was called with last.
    seen: Option<Result<C, String>>,
}

impl<C: PartialEq, T> LastGood<C, T> {
    /// Without a value yet. `name` begins the log lines, such as `the TLS files of Redis`.
    pub const fn new(name: &'static str) -> Self {
        let known = Mutex::new(Known { contents: None, problem: None, seen: None });
        Self { name, value: ArcSwapOption::const_empty(), known }
    }

    /// The value for these contents, which is made only if they differ from the contents of the last good value. If they
    /// cannot be read or are bad, that is logged once, and the last good value is returned.
    pub fn renew<E: Display>(
        &self,
        contents: Result<C, E>,
        make: impl FnOnce(&C) -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut state = self.known.lock();
        let last = self.value.load_full();
        let made = match (contents, &last) {
            (Ok(contents), Some(last)) if state.contents.as_ref() == Some(&contents) => {
                state.problem = None;
                return Ok(Arc::clone(last));
            }
            (Ok(contents), _) => make(&contents).map(|value| (contents, Arc::new(value))),
            (Err(problem), _) => Err(problem),
        };
        match (made, last) {
            (Ok((contents, value)), last) => {
                if last.is_some() {
                    tracing::info!("{} have changed and are in use", self.name);
                }
                (state.contents, state.problem) = (Some(contents), None);
                self.value.store(Some(Arc::clone(&value)));
                Ok(value)
            }
            (Err(problem), None) => Err(problem),
            (Err(problem), Some(value)) => {
                let problem = problem.to_string();
                if state.problem.as_ref() != Some(&problem) {
                    tracing::warn!(
                        "{} cannot be used, the last good ones stay: {problem}",
                        self.name
                    );
                    state.problem = Some(problem);
                }
                Ok(value)
            }
        }
    }

    /// Like [`renew`](Self::renew), if the call before had the same contents too: a file may be half written. Returns whether
    /// the newest contents that were taken or refused are in use.
    pub fn renew_settled<E: Display>(
        &self,
        contents: Result<C, E>,
        make: impl FnOnce(&C) -> Result<T, E>,
    ) -> bool
    where
        C: Clone,
    {
        let seen = contents.as_ref().cloned().map_err(E::to_string);
        let before = self.known.lock().seen.replace(seen.clone());
        if before == Some(seen) {
            drop(self.renew(contents, make));
        }
        self.is_newest()
    }

    pub fn is_newest(&self) -> bool {
        self.known.lock().problem.is_none()
    }

    /// The last good value, without a lock; `None` until one was made.
    pub fn value(&self) -> Guard<Option<Arc<T>>> {
        self.value.load()
    }
}

/// A value made of one file, renewed when the file changes.
pub struct OfFile<T> {
    path: PathBuf,
    read: fn(&Path) -> Result<T, String>,
    value: LastGood<T, T>,
}

impl<T: Clone + PartialEq> OfFile<T> {
    /// # Errors
    /// What is wrong with the file.
    pub fn load(
        name: &'static str,
        path: PathBuf,
        read: fn(&Path) -> Result<T, String>,
    ) -> Result<Self, String> {
        let value = LastGood::new(name);
        value.renew(read(&path), |value: &T| Ok(value.clone()))?;
        Ok(Self { path, read, value })
    }

    /// Reads the file again, and returns whether its content is in use. A change applies once two reads in a row find the
    /// same content.
    pub fn renew(&self) -> bool {
        self.value.renew_settled((self.read)(&self.path), |value| Ok(value.clone()))
    }

    /// The last good value, without a lock.
    pub fn value(&self) -> Guard<Option<Arc<T>>> {
        self.value.value()
    }
}

/// The value may be secret.
impl<T> fmt::Debug for OfFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.path, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_again_only_when_the_contents_change_and_the_last_good_one_stays() {
        let value = LastGood::new("the files");
        let mut made = 0;
        let mut renew = |contents: Result<&'static str, &str>| {
            let renewed = value.renew(contents.map_err(str::to_owned), |contents| {
                made += 1;
                contents.parse::<u8>().map(|number| (number, made)).map_err(|e| e.to_string())
            });
            renewed.map(|value| *value)
        };
        assert_eq!(renew(Err("no file")), Err("no file".to_owned()));
        renew(Ok("x")).expect_err("no good value yet");
        assert_eq!(renew(Ok("1")), Ok((1, 2)));
        assert_eq!(renew(Ok("1")), Ok((1, 2)), "not made again");
        assert_eq!(renew(Ok("y")), Ok((1, 2)), "the last good one");
        assert_eq!(renew(Err("no file")), Ok((1, 2)));
        assert_eq!(renew(Ok("1")), Ok((1, 2)), "the old files are back");
        assert_eq!(renew(Ok("2")), Ok((2, 4)));
    }

    #[test]
    fn settled_contents_are_those_of_two_calls() {
        let value = LastGood::new("the files");
        value.renew(Ok::<_, String>("1"), |contents| Ok((*contents).to_owned())).unwrap();
        for (contents, expected) in [
            (Ok("2"), ("1", true)),
            (Ok("2 and"), ("1", true)),
            (Ok("2 and 3"), ("1", true)),
            (Ok("2 and 3"), ("2 and 3", true)),
            (Err("no file"), ("2 and 3", true)),
            (Err("no file"), ("2 and 3", false)),
            (Ok("2 and 3"), ("2 and 3", false)),
            (Ok("2 and 3"), ("2 and 3", true)),
        ] {
            let contents = contents.map_err(str::to_owned);
            let is_newest = value.renew_settled(contents, |contents| Ok((*contents).to_owned()));
            assert_eq!((value.value().as_deref().unwrap().as_str(), is_newest), expected);
        }
    }
}
